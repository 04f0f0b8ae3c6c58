"""Retention: executions, values, receipts and items go by the policy of their tier, and what is left says so."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.polling import until
from tests.support.queue_urls import queue_url

import stepwell
from stepwell import (
    ExecutionRemoved,
    FakeClock,
    InvalidInput,
    NotFound,
    Stepwell,
    StoreUnavailable,
    read_archive,
    verify_archive,
    verify_proof,
    workflow,
)
from stepwell.fault_points import armed
from stepwell.maintenance import retention as rounds
from stepwell.testing.store_access import parts_of, run_operation

__all__ = ["queue_url"]

DAY = 86_400


@pytest.fixture
def well(queue_url: str, clock: FakeClock) -> Iterator[Any]:
    """A well on each store, whose time stands still."""
    with Stepwell(queue_url, clock=clock, worker=False) as well:
        yield well


@workflow(name="retention.report")
async def report(value: int) -> int:
    return value


def ended(well: Any, name: str, status: str = "COMPLETED", *, workspace: str = "default") -> str:
    """Create an execution with values in it that has ended."""
    well.create(name, workspace=workspace, context={"customer": "Ada"})
    with well.transaction(name) as tx:
        tx.set_variable("secret", "4711")
        tx.set_status("RUNNING")
    with well.transaction(name) as tx:
        tx.set_status(status)
    return name


def test_nothing_goes_without_a_policy(well: Any, clock: FakeClock):
    ended(well, "a")
    clock.advance(10_000 * DAY)
    done = well.retention.apply()
    assert (done.removed, done.cleared, done.rotated, done.items) == (0, 0, 0, 0)
    assert well.load("a").variables == {"secret": "4711"}


def test_executions_go_by_the_status_they_ended_with(well: Any, clock: FakeClock):
    """Old rows, too: the policy comes after them."""
    for name, status in (("good", "COMPLETED"), ("bad", "FAILED"), ("off", "CANCELLED")):
        ended(well, name, status)
    well.create("live")
    well.retention.put(executions={"COMPLETED": "30d", "FAILED": "90d"})
    clock.advance(29 * DAY)
    assert well.retention.apply().removed == 0
    clock.advance(2 * DAY)
    assert well.retention.apply().removed == 1
    assert {each.execution_id for each in well.executions.list()} == {"bad", "off", "live"}
    clock.advance(60 * DAY)
    assert well.retention.apply().removed == 1
    assert {each.execution_id for each in well.executions.list()} == {"off", "live"}


def test_each_tier_has_its_own_policy_and_others_the_common_one(well: Any, clock: FakeClock):
    for tier in ("free", "scale", "startup"):
        well.workspaces.put(f"of {tier}", tier=tier)
        ended(well, tier, workspace=f"of {tier}")
    ended(well, "nowhere", workspace="never put")
    well.retention.put("free", executions="1d")
    well.retention.put("SCALE", executions="100d")
    well.retention.put(executions="10d")
    clock.advance(2 * DAY)
    well.retention.apply()
    assert {each.execution_id for each in well.executions.list()} == {"scale", "startup", "nowhere"}
    clock.advance(10 * DAY)
    well.retention.apply()
    assert [each.execution_id for each in well.executions.list()] == ["scale"]
    assert [each.tier for each in well.retention.list()] == ["*", "free", "scale"]
    assert (well.retention.remove("scale"), well.retention.remove("scale")) == (True, False)
    assert well.retention.apply().removed == 1


CALLS: dict[str, Callable[[Any], Any]] = {
    "load": lambda well: well.load("a"),
    "receipts": lambda well: well.receipts("a"),
    "verify": lambda well: well.verify("a"),
    "status": lambda well: well.run("a").status(),
    "result": lambda well: well.run("a").result(timeout=5),
    "signal": lambda well: well.run("a").signal("s"),
    "retry": lambda well: well.run("a").retry(),
    "get": lambda well: well.executions.get("a"),
    "fork": lambda well: well.fork("a", "b"),
    "export": lambda well: well.export("a"),
}


def test_tombstone_says_when_and_by_which_policy_an_execution_was_removed(well: Any, clock: FakeClock):
    ended(well, "a", workspace="acme")
    head = well.receipts("a")[-1].digest
    well.load("a")
    well.retention.put(executions="30d")
    clock.advance(30 * DAY)
    well.retention.apply()
    for call in CALLS.values():
        with pytest.raises(ExecutionRemoved) as caught:
            call(well)
        assert "ended as COMPLETED, was removed at " in str(caught.value)
        assert "of tier '*' (executions COMPLETED 30d)" in str(caught.value)
        assert (caught.value.workspace_id, caught.value.policy, caught.value.has_record) == ("acme", "*", False)
        assert isinstance(caught.value, NotFound)
    tombstone = well.retention.tombstone("a")
    assert (tombstone.digest, tombstone.revision, tombstone.status, tombstone.rule) == (
        head,
        2,
        "COMPLETED",
        "executions COMPLETED 30d",
    )
    assert [each.execution_id for each in well.retention.tombstones(workspace="acme")] == ["a"]
    assert well.retention.tombstones(workspace="other") == []
    with pytest.raises(NotFound):
        well.retention.tombstone("b")


def test_tombstones_are_listed_by_pages_and_go_when_their_time_is_over(well: Any, clock: FakeClock):
    names = {ended(well, f"run {number}") for number in range(7)}
    well.retention.put(executions="1d", tombstones="10d")
    clock.advance(DAY)
    assert well.retention.apply().removed == 7
    seen: list[str] = []
    while page := well.retention.tombstones(after=seen[-1] if seen else None, limit=3):
        seen += [each.execution_id for each in page]
    assert len(seen) == 7
    assert set(seen) == names
    clock.advance(11 * DAY)
    assert well.retention.tombstones() == []
    with pytest.raises(NotFound) as caught:
        well.load("run 1")
    assert not isinstance(caught.value, ExecutionRemoved)


def test_values_go_sooner_than_the_record_of_an_execution(well: Any, clock: FakeClock):
    ended(well, "a", "FAILED")
    well.load("a")
    well.retention.put(payloads="7d", executions="30d")
    clock.advance(7 * DAY)
    assert well.retention.apply().cleared == 1
    assert well.retention.apply().cleared == 0
    assert [(each.execution_id, each.status) for each in well.executions.list(status="FAILED")] == [("a", "FAILED")]
    state = well.load("a")
    assert (state.status, state.variables, state.context, state.result["removed"]["rule"]) == (
        "FAILED",
        {},
        {},
        "payloads FAILED 7d",
    )
    assert b"4711" not in well.snapshot("a")
    assert well.receipts("a") == []
    assert well.verify("a").ok
    with pytest.raises(NotFound):
        well.load("a", at=2)
    for name in ("result", "retry", "fork"):
        with pytest.raises(ExecutionRemoved, match="payloads FAILED 7d") as caught:
            CALLS[name](well)
        assert caught.value.has_record
    with pytest.raises(ExecutionRemoved):
        well.run("a").steps()
    clock.advance(22 * DAY)
    assert well.retention.apply().removed == 0
    clock.advance(DAY)  # 30 days after its end, not after its values went
    assert well.retention.apply().removed == 1
    assert well.retention.tombstone("a").rule == "executions FAILED 30d"


def test_result_of_a_workflow_is_not_mistaken_for_none_after_its_values_went(open_well: OpenWell, url: str):
    well: Any = open_well(url)
    run = well.start(report, 7)
    assert run.result(timeout=30) == 7
    well.retention.put(payloads=0)
    assert well.retention.apply().cleared == 1
    with pytest.raises(ExecutionRemoved):
        well.run(run.execution_id).result(timeout=5)
    with pytest.raises(ExecutionRemoved):
        run.result(timeout=5)


def test_execution_that_is_due_for_both_is_removed_at_once(well: Any, clock: FakeClock):
    ended(well, "a")
    well.retention.put(payloads="7d", executions="30d")
    clock.advance(31 * DAY)
    done = well.retention.apply()
    assert (done.cleared, done.removed) == (0, 1)


def test_receipts_of_a_long_execution_rotate_behind_a_snapshot(well: Any, tmp_path: Path):
    """Seed 002's first limitation: the receipts of an execution that never ends do not grow for ever."""
    well.create("meter")
    well.retention.put(receipts=20, archive=tmp_path / "archive")
    for reading in range(119):
        with well.transaction("meter") as tx:
            tx.set_variable("reading", reading)
    assert well.retention.apply().rotated == 0  # a hundred more may stay
    for reading in range(119, 130):
        with well.transaction("meter") as tx:
            tx.set_variable("reading", reading)
    assert well.retention.apply().rotated == 111
    assert len(well.receipts("meter")) == 20
    assert well.verify("meter").ok
    assert well.load("meter").variables == {"reading": 129}
    with well.transaction("meter") as tx:
        tx.set_variable("reading", 130)
    [proof] = read_archive(tmp_path / "archive", "meter")
    assert verify_proof(proof).receipts == 111
    assert verify_proof(proof).head == well.receipts("meter")[0].previous


def test_archive_has_what_was_removed_and_verifies(well: Any, clock: FakeClock, tmp_path: Path):
    folder = tmp_path / "archive"
    for name, workspace in (("a", "acme"), ("b", "a/b"), ("c", "acme")):
        ended(well, name, workspace=workspace)
    well.retention.put(payloads="7d", executions="30d", archive=folder)
    clock.advance(7 * DAY)
    assert well.retention.apply().cleared == 3
    ended(well, "d", workspace="acme")
    clock.advance(30 * DAY)
    assert well.retention.apply().removed == 4
    found = verify_archive(folder)
    assert (found.ok, found.files, found.proofs, found.receipts) == (True, 3, 4, 3 * 4 + 3)
    [proof] = read_archive(folder, "a")
    assert verify_proof(proof).head == well.retention.tombstone("a").digest
    assert b"4711" in proof
    assert (folder / (well.retention.tombstone("d").archive or "")).exists()
    with pytest.raises(NotFound):
        read_archive(folder, "z")


@pytest.mark.parametrize("workspace", ["..", ".", "x" * 300, "é" * 60])
def test_archive_of_a_workspace_with_an_odd_id_stays_in_its_folder(well: Any, clock: FakeClock, tmp_path: Path, workspace: str):
    ended(well, "a", workspace=workspace)
    well.retention.put(executions=0, archive=tmp_path / "outer" / "archive")
    clock.advance(1)
    assert well.retention.apply().removed == 1
    assert [path.name for path in (tmp_path / "outer").iterdir()] == ["archive"]
    [proof] = read_archive(tmp_path / "outer" / "archive", "a")
    assert verify_proof(proof).ok


def test_changed_or_cut_archive_file_is_found(well: Any, clock: FakeClock, tmp_path: Path):
    ended(well, "a")
    well.retention.put(executions=0, archive=tmp_path / "archive")
    well.retention.apply()
    [path] = (tmp_path / "archive").glob("*/*")
    data = path.read_bytes()
    for damaged in (data[:-1], data[:40] + b"?" + data[41:], b"", zlib.compress(b"")):
        path.write_bytes(damaged)
        assert not verify_archive(tmp_path / "archive").ok


def test_execution_that_goes_on_at_the_last_moment_is_not_removed(well: Any):
    """B1: what was decided on an earlier revision does not hold; the tombstone is taken back."""
    ended(well, "a", "FAILED")
    ended(well, "b", "FAILED")
    well.retention.put(executions=0)

    def go_on(point: str) -> None:
        if point == "retention.tombstones_written":
            with well.transaction("a") as tx:
                tx.set_status("PENDING")

    with armed(go_on):
        assert well.retention.apply().removed == 1
    assert (well.load("a").status, well.load("a").variables) == ("PENDING", {"secret": "4711"})
    assert [each.execution_id for each in well.retention.tombstones()] == ["b"]
    well.delete("a")
    with pytest.raises(NotFound) as caught:
        well.load("a")
    assert not isinstance(caught.value, ExecutionRemoved)


def test_nothing_is_removed_before_a_restore_is_resumed(tmp_path: Path):
    with Stepwell("memory://", worker=False) as well:
        ended(well, "a")
        well.retention.put(executions=0)
        well.backup(tmp_path / "backup")
    with Stepwell("memory://", worker=False) as well:
        well.restore_backup(tmp_path / "backup")
        assert [each.tier for each in well.retention.list()] == ["*"]
        assert well.retention.apply().removed == 0
        well.resume_restored()
        assert well.retention.apply().removed == 1


def test_nothing_is_removed_while_the_archive_cannot_be_written(well: Any, clock: FakeClock, tmp_path: Path):
    ended(well, "a")
    (tmp_path / "file").write_text("no folder")
    well.retention.put(executions=0, archive=tmp_path / "file")
    with pytest.raises(StoreUnavailable, match="archive"):
        well.retention.apply()
    assert well.load("a").variables == {"secret": "4711"}


def test_plan_says_what_goes_when_and_removes_nothing(well: Any, clock: FakeClock):
    well.workspaces.put("acme", tier="free")
    ended(well, "a", workspace="acme")
    clock.advance(DAY)
    ended(well, "b", "FAILED", workspace="acme")
    well.retention.put("free", payloads="7d", executions={"COMPLETED": "30d"})
    plan = well.retention.plan()
    assert (plan.counts, plan.first) == ({"remove": 0, "clear": 0, "rotate": 0, "items": 0}, ())
    plan = well.retention.plan(within="7d")
    assert plan.counts["clear"] == 2
    assert [(each.execution_id, str(each.action), each.rule) for each in plan.first] == [
        ("a", "clear", "payloads COMPLETED 7d"),
        ("b", "clear", "payloads FAILED 7d"),
    ]
    assert DAY * 1000 <= plan.first[1].at_ms - plan.first[0].at_ms < (DAY + 60) * 1000
    assert well.retention.plan(within="7d", limit=1).counts["clear"] == 2
    plan = well.retention.plan(within="40d")
    assert [(each.execution_id, str(each.action)) for each in plan.first] == [("a", "clear"), ("b", "clear"), ("a", "remove")]
    clock.advance(40 * DAY)
    assert [(each.execution_id, str(each.action)) for each in well.retention.plan().first] == [("b", "clear"), ("a", "remove")]
    assert well.load("a").variables == {"secret": "4711"}


def test_items_go_by_tier_status_and_override(well: Any, clock: FakeClock):
    for tier in ("free", "scale"):
        well.workspaces.put(tier, tier=tier)
        for _ in range(2):
            well.enqueue(report, 1, workspace=tier).cancel()
    well.enqueue(report, 1, workspace="free")
    clock.advance(8 * DAY)
    well.retention.put("scale", items={"CANCELLED": "30d"})
    well.workspaces.override("free", "retention_seconds", "20d", span="10d")
    assert well.retention.plan().counts["items"] == 0
    assert well.retention.apply().items == 0
    clock.advance(10 * DAY)  # the override has ended, and the tier keeps them for 7 days
    assert well.retention.plan().counts["items"] == 2
    assert well.retention.apply().items == 2
    assert len(well.queue.list(workspace="free")) == 1
    assert len(well.queue.list(workspace="scale")) == 2
    clock.advance(12 * DAY)
    assert well.retention.apply().items == 2


def test_child_stays_while_its_parent_goes_on(open_well: OpenWell, url: str):
    well: Any = open_well(url)
    run = well.start(parent, execution_id="parent")
    child = wait_for_child(well)
    well.retention.put(executions=0)
    assert well.retention.apply().removed == 0
    run.signal("go")
    assert run.result(timeout=30) == 7
    assert well.retention.apply().removed == 2
    assert well.retention.tombstone(child).status == "COMPLETED"


@workflow(name="retention.child")
async def child_of(value: int) -> int:
    return value


@workflow(name="retention.parent")
async def parent() -> Any:
    value = await child_of(7)
    await stepwell.wait_signal("go")
    return value


def wait_for_child(well: Any) -> str:
    """Wait until the child has ended; its id."""

    def ended_child() -> str | None:
        found = well.executions.list(workflow="retention.child", status="COMPLETED")
        return found[0].execution_id if found else None

    until(lambda: ended_child() is not None)
    return ended_child() or ""


def test_workers_apply_the_policies_by_themselves(file_url: str):
    with Stepwell(file_url, worker=False) as well:
        ended(well, "a")
        well.retention.put(executions=0)
    with Stepwell(file_url) as well:
        until(lambda: well.retention.tombstones() != [])
        assert well.executions.list() == []


def test_round_that_is_cut_short_is_continued_by_the_next(monkeypatch: pytest.MonkeyPatch):
    """A worker that stops does not wait for the end of a long round."""
    monkeypatch.setattr(rounds, "_BATCH", 2)
    monkeypatch.setattr(rounds, "_PAGE", 4)
    with Stepwell("memory://", worker=False) as well:
        for number in range(11):
            ended(well, f"run {number}")
        well.retention.put(executions={"COMPLETED": 0})
        retention = parts_of(well).retention
        done = [run_operation(well, retention.sweep(0)) for _ in range(6)]
        assert [(each.removed, each.is_complete) for each in done] == [*[(2, False)] * 5, (1, True)]
        assert run_operation(well, retention.sweep(1_000, lambda: True)).is_complete
        assert len(well.retention.tombstones()) == 11


@pytest.mark.parametrize(
    "rules",
    [
        {"executions": {"RUNNING": "1d"}},
        {"executions": {"DONE": "1d"}},
        {"items": {"PARTIALLY_COMPLETED": "1d"}},
        {"executions": "soon"},
        {"executions": -1},
        {"payloads": {1: "1d"}},
        {"receipts": 0},
        {"receipts": 1.5},
        {"tombstones": "soon"},
        {"archive": ""},
        {"archive": 7},
        {"tier": ""},
    ],
)
def test_wrong_policy_is_refused_before_anything_is_written(rules: dict[str, Any]):
    with Stepwell("memory://", worker=False) as well:
        with pytest.raises(InvalidInput):
            well.retention.put(**rules)
        assert well.retention.list() == []


def test_policy_of_an_unknown_tier_is_not_found(well: Any):
    with pytest.raises(NotFound, match="free"):
        well.retention.put("platinum", executions="1d")
