"""``WorkerCrashed``: only claims that ended while a step of the run was under way count, and the error says which step."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepwell import ExecutionFailed, Status, Stepwell, step, workflow
from stepwell.errors import StoreUnavailable
from stepwell.flow import call, define, subworkflow
from stepwell.model.commit import Claim, Commit, Outcome
from stepwell.testing.store_access import store_under

WAIT = 30
calls: Counter[str] = Counter()
outages: list[int] = []
"""How many commits meet no store after each call of the first step."""


left = [0]


@step(name="crashes.first")
async def first() -> str:
    calls["first"] += 1
    left[0] = outages.pop() if outages else 0
    return "first"


@step(name="crashes.second")
async def second() -> str:
    calls["second"] += 1
    return "second"


@workflow(name="crashes.code")
async def code() -> str:
    return f"{await first()} {await second()}"


@workflow(name="crashes.plain")
def plain() -> str:
    return f"{first()} {second()}"


declared = define("crashes-declared", call("crashes.first"), call("crashes.second"))
WAYS: Any = pytest.mark.parametrize("way", [code, plain, declared], ids=["async", "plain", "declared"])
MARKS = {"counts": {"crashes.second": 3}, "holder": "host:1:a", "began_at": "2026-01-01T00:00:00+00:00"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    calls.clear()
    return f"sqlite:///{tmp_path}/well.db?synchronous=NORMAL"


def changes(well: Any, execution_id: str) -> list[Any]:
    return [each for receipt in well.receipts(execution_id) for each in receipt.mutations]


@WAYS
def test_run_whose_claims_ended_without_a_step_under_way_does_not_fail(url: str, way: Any) -> None:
    """Its workers were paused, or stopped by something else; it has not even begun."""
    with Stepwell(url, worker=False) as sender:
        sender.start(way, execution_id="r")
        for _ in range(20):
            store_under(sender).write([Claim("r", "a worker that dies", 0.001)])
    with Stepwell(url) as well:
        well.run("r").result(WAIT)
        assert calls == {"first": 1, "second": 1}
        assert well.load("r").metadata == {}, "no mark is left"
        assert well.verify("r").ok


@WAYS
def test_run_whose_step_was_under_way_each_time_fails_and_says_which(url: str, way: Any, caplog: pytest.LogCaptureFixture) -> None:
    with Stepwell(url, worker=False) as sender:
        sender.start(way, execution_id="r")
        with sender.transaction("r") as tx:
            tx.set_metadata({"$crashes": MARKS, "mine": 1})
    with Stepwell(url) as well, caplog.at_level(logging.ERROR):
        with pytest.raises(
            ExecutionFailed, match=r"WorkerCrashed: step 'crashes.second' brought down its worker.*3 times.*host:1:a"
        ):
            well.run("r").result(WAIT)
        assert calls == {}
        assert well.load("r").metadata == {"mine": 1}
        well.run("r").retry()
        well.run("r").result(WAIT)


@WAYS
def test_suspected_run_marks_its_step_before_it_begins_and_clears_the_mark(url: str, way: Any) -> None:
    with Stepwell(url, worker=False) as sender:
        sender.start(way, execution_id="r")
        store_under(sender).write([Claim("r", "a worker that dies", 0.001)] * 2)
    with Stepwell(url) as well:
        well.run("r").result(WAIT)
        marks = [each["value"].get("$crashes", {}).get("counts") for each in changes(well, "r") if each["type"] == "set_metadata"]
        assert {"crashes.first": 1} in marks
        assert marks[-1] is None
        assert {"crashes.second": 1} not in marks, "the suspicion was over"


@workflow(name="crashes.parent")
async def parent() -> str:
    return await code()


@pytest.mark.parametrize("way", [code, plain, declared, parent], ids=["async", "plain", "declared", "parent"])
def test_run_that_is_not_suspected_writes_no_marks(url: str, way: Any) -> None:
    with Stepwell(url) as well:
        run = well.start(way)
        run.result(WAIT)
        for each in well.executions.list():
            assert [change for change in changes(well, each.execution_id) if change["type"] == "set_metadata"] == []


@WAYS
def test_child_that_is_started_here_writes_no_marks(url: str, way: Any) -> None:
    child = way.name
    with Stepwell(url) as well:
        if way is declared:
            well.definitions.put(way)
        run = well.start(define("crashes-parent", subworkflow(child, {})))
        run.result(WAIT)
        [made] = [each for each in well.executions.list() if each.workflow_id == child]
        assert [each for each in changes(well, made.execution_id) if each["type"] == "set_metadata"] == []


def test_store_outages_while_a_step_is_under_way_do_not_count(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output meets no store again and again until the lease is over: the worker knows that it has not crashed."""
    with Stepwell(url, lease_seconds=1) as well:
        outages.extend([2] * 5)  # its output, and the hand-back
        store = store_under(well)
        really = store.write

        def write(units: Any) -> list[Outcome]:
            if left[0] and any(isinstance(unit, Commit) for unit in units):
                left[0] -= 1
                raise StoreUnavailable("away")
            return really(units)

        monkeypatch.setattr(store, "write", write)
        monkeypatch.setattr("stepwell.runtime.shutdown._PAUSES", (10.0,))  # so that no hand-back succeeds in time
        run = well.start(code)
        assert run.result(WAIT) == "first second"
        assert run.status() == Status.COMPLETED
    assert calls["first"] == 6


at_once: Counter[str] = Counter()
"""How many runs are in the step below now, and the most that were."""


@step(name="crashes.beside")
async def beside() -> None:
    at_once["now"] += 1
    at_once["most"] = max(at_once.values())
    await asyncio.sleep(0.1)
    at_once["now"] -= 1


@workflow(name="crashes.company")
async def company() -> None:
    await beside()


def resumed(url: str, metadata: dict[str, Any]) -> int:
    """How many of four runs whose workers died are in their step at once."""
    at_once.clear()
    with Stepwell(url, worker=False) as sender:
        runs = [sender.start(company) for _ in range(4)]
        for run in runs:
            if metadata:
                with sender.transaction(run.execution_id) as tx:
                    tx.set_metadata(metadata)
            store_under(sender).write([Claim(run.execution_id, "a worker that dies", 0.001)] * 2)
    with Stepwell(url) as well:
        for run in runs:
            well.run(run.execution_id).result(WAIT)
    return at_once["most"]


def test_runs_of_a_worker_that_died_once_are_resumed_all_at_once(url: str) -> None:
    """One at a time, a hundred runs would wait for each other after every crash of a machine."""
    assert resumed(url, {}) == 4


def test_runs_whose_steps_were_under_way_at_two_crashes_are_resumed_one_at_a_time(url: str) -> None:
    """So that the one that crashes its worker uses up its own marks only."""
    assert resumed(url, {"$crashes": {**MARKS, "counts": {"crashes.beside": 1}}}) == 1


def test_run_whose_store_was_away_is_not_suspected_when_it_is_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Stepwell(url, lease_seconds=1) as well:
        outages.append(2)  # its output, and the hand-back
        store = store_under(well)
        really = store.write

        def write(units: Any) -> list[Outcome]:
            if left[0] and any(isinstance(unit, Commit) for unit in units):
                left[0] -= 1
                raise StoreUnavailable("away")
            return really(units)

        monkeypatch.setattr(store, "write", write)
        monkeypatch.setattr("stepwell.runtime.shutdown._PAUSES", (10.0,))  # so that no hand-back succeeds in time
        run = well.start(code)
        assert run.result(WAIT) == "first second"
        assert [each for each in changes(well, run.execution_id) if each["type"] == "set_metadata"] == []
    assert calls["first"] == 2


entered, release = threading.Event(), threading.Event()


@step(name="crashes.gate")
def gate() -> None:
    entered.set()
    assert release.wait(WAIT)


@workflow(name="crashes.gated")
async def gated() -> None:
    await gate()


def test_run_that_waits_for_anothers_marked_step_is_not_marked_as_running_its_code(url: str) -> None:
    """Else each crash of the other counts against it, and after three it fails though it did nothing."""
    entered.clear()
    release.clear()
    with Stepwell(url, worker=False) as sender:
        for name in ("a", "b"):
            sender.start(gated, execution_id=name)
            with sender.transaction(name) as tx:
                tx.set_metadata({"$crashes": {**MARKS, "counts": {"crashes.gate": 1, "": 2}}})
            store_under(sender).write([Claim(name, "a worker that dies", 0.001)] * 2)
    with Stepwell(url) as well:
        assert entered.wait(WAIT)
        counts: list[Any] = [{"": 0}]
        while any("" in each for each in counts):
            time.sleep(0.01)
            counts = [well.load(name).metadata["$crashes"]["counts"] for name in ("a", "b")]
        assert sorted(each["crashes.gate"] for each in counts) == [1, 2], "one is under way, and the other waits"
        release.set()
        for name in ("a", "b"):
            well.run(name).result(WAIT)
