"""A tier's child_concurrency: how many children of one execution run at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Raw
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.polling import until
from tests.support.queue_urls import queue_url

import stepwell
from stepwell import ExecutionCancelled, ExecutionEnded, ExecutionFailed, LimitExceeded, Retry, Status, Stepwell, step, workflow
from stepwell.flow import define, each, parallel, subworkflow
from stepwell.model.commit import StateBatch
from stepwell.model.scope import internal_path
from stepwell.model.scoped_operations import Put
from stepwell.model.value import decode, recode
from stepwell.runtime.services import Services
from stepwell.runtime.sessions import declared_session, function_session
from stepwell.runtime.steps import kernel_effects
from stepwell.testing import crash_everywhere
from stepwell.testing.store_access import store_under, write_unit

__all__ = ["queue_url"]

WAIT = 60
running: set[str] = set()
most: list[int] = []
mended: set[str] = set()


_cleared = cleared(running, most, mended)


@step
async def stay(name: str) -> str:
    running.add(name)
    most.append(len(running))
    await asyncio.sleep(0.02)
    running.discard(name)
    return name


@workflow(name="children.leaf")
async def leaf(name: str) -> str:
    return await stay(name)


@workflow(name="children.frail")
async def frail(name: str) -> str:
    await stay(name)
    return await check(name)


@step(name="children.check", retry=Retry(attempts=1))
async def check(name: str) -> str:
    running.add(name)
    most.append(len(running))
    await asyncio.sleep(0.02)
    running.discard(name)
    if not mended:
        raise ValueError("broken")
    return name


@workflow(name="children.patient")
async def patient(name: str) -> str:
    return await stepwell.wait_signal("go")


@workflow(name="children.family")
async def family(size: int) -> list[str]:
    return await stepwell.map(leaf, [str(number) for number in range(size)])


@workflow(name="children.plain_family")
def plain_family(size: int) -> list[str]:
    return stepwell.map(leaf, [str(number) for number in range(size)])  # pyright: ignore[reportReturnType]


@workflow(name="children.house")
async def house(names: list[str]) -> list[str]:
    return await stepwell.map(patient, names)


@workflow(name="children.plain_house")
def plain_house(names: list[str]) -> list[str]:
    return stepwell.map(patient, names)  # pyright: ignore[reportReturnType]


@workflow(name="children.tower")
async def tower(height: int) -> int:
    return 0 if height == 0 else 1 + await tower(height - 1)


@workflow(name="children.queue")
async def queue_of_children(size: int) -> int:
    return len([await leaf(str(number)) for number in range(size)])


@workflow(name="children.impatient")
async def impatient(names: list[str]) -> str:
    first, second = (asyncio.create_task(patient(name)) for name in names)
    await stepwell.wait_signal("enough")
    first.cancel()
    return await second


@workflow(name="children.grove")
async def grove(sizes: list[int]) -> list[list[str]]:
    return await stepwell.map(family, sizes)


@workflow(name="children.plain_grove")
def plain_grove(sizes: list[int]) -> list[list[str]]:
    return stepwell.map(plain_family, sizes)


@workflow(name="children.fork")
async def fork(height: int) -> int:
    if height == 0:
        await stay(str(len(most)))
        return 1
    return sum(await stepwell.map(fork, [height - 1, height - 1]))


@workflow(name="children.village")
async def village(houses: list[list[str]]) -> list[list[str]]:
    return await stepwell.map(house, houses)


@workflow(name="children.plain_village")
def plain_village(houses: list[list[str]]) -> list[list[str]]:
    return stepwell.map(plain_house, houses)


each_house = define("children.each_house", each(subworkflow("children.patient", "{{ item }}"), items="{{ trigger.input }}"))
each_village = define("children.each_village", each(subworkflow("children.each_house", "{{ item }}"), items="{{ trigger.input }}"))
each_family = define("children.each", each(subworkflow("children.leaf", "{{ item }}"), items="{{ trigger.input }}"))
each_grove = define("children.each_grove", each(subworkflow("children.each", "{{ item }}"), items="{{ trigger.input }}"))
mixed_grove = define("children.mixed_grove", each(subworkflow("children.family", "{{ item }}"), items="{{ trigger.input }}"))
both = define(
    "children.both",
    parallel(branches={name: subworkflow("children.patient", name) for name in ("a", "b", "c")}),
)


detaching = define(
    "children.detaching", each(subworkflow("children.patient", "{{ item }}", detached=True), items="{{ trigger.input }}")
)


def places(well: Any, root_id: str) -> dict[str, Any]:
    """The extra places that are held or waited for below a root."""
    path = internal_path("child_places", "acme", root_id)
    return {key: decode(row.data or b"") for key, row in store_under(well).entries(path, ["places"]).items()}


def limited(well: Any, most: int | None) -> None:
    well.workspaces.put_tier("few", child_concurrency=most)
    well.workspaces.put("acme", tier="few")


@pytest.fixture
def well(open_well: OpenWell, queue_url: str) -> Any:
    """A well that works, by the machine's clock."""
    return open_well(queue_url)


@pytest.mark.parametrize("shape", [family, plain_family, each_family], ids=["async", "plain", "declared"])
def test_no_more_children_run_at_once_than_the_tier_allows(well: Stepwell, shape: Any) -> None:
    limited(well, 2)
    given: Any = [str(number) for number in range(5)] if shape is each_family else 5
    assert well.start(shape, given, workspace="acme").result(WAIT) == [str(number) for number in range(5)]
    assert max(most) <= 2
    assert sorted(most)[-1] >= 1


def test_no_more_children_are_retried_at_once_than_the_tier_allows(well: Stepwell) -> None:
    limited(well, 2)
    kids = each(subworkflow("children.frail", "{{ item }}"), items="{{ trigger.input }}", fail_fast=False)
    names = [str(number) for number in range(5)]
    run = well.start(define("children.each_frail", kids), names, workspace="acme", execution_id="f")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    mended.add("leaf")
    run.retry()
    assert run.result(WAIT) == names
    assert max(most) <= 2
    assert len(well.executions.list(workflow="children.frail")) == 5


def test_children_of_the_default_workspace_are_not_limited(well: Stepwell) -> None:
    well.workspaces.put_tier("unlimited", child_concurrency=1)
    run = well.start(house, ["a", "b"], execution_id="h")
    until(lambda: len(well.executions.list(workflow="children.patient")) == 2)
    run.cancel()


def test_nested_children_do_not_take_the_slot_of_those_above(well: Stepwell) -> None:
    limited(well, 1)
    assert well.start(tower, 4, workspace="acme").result(WAIT) == 4


@pytest.mark.parametrize("limit", [2, 3])
@pytest.mark.parametrize("shape", [grove, plain_grove, each_grove], ids=["async", "plain", "declared"])
def test_limit_counts_all_leaves_below_one_root(well: Stepwell, shape: Any, limit: int) -> None:
    limited(well, limit)
    well.definitions.put(each_family)
    names = ["0", "1", "2"]
    given: Any = [names] * 3 if shape is each_grove else [3] * 3
    assert well.start(shape, given, workspace="acme", execution_id="g").result(WAIT) == [names] * 3
    assert max(most) <= limit
    until(lambda: not places(well, "g"))


def test_tree_of_fan_outs_cannot_wait_for_itself(well: Stepwell) -> None:
    limited(well, 2)
    assert well.start(fork, 3, workspace="acme").result(WAIT) == 8
    assert max(most) <= 2


@pytest.mark.parametrize("shape", [house, plain_house, both], ids=["async", "plain", "declared"])
def test_places_of_an_execution_that_died_at_its_end_are_found(well: Stepwell, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_session, "CHILD_SLOT_POLL_MS", 100)
    monkeypatch.setattr(declared_session, "CHILD_SLOT_POLL_MS", 100)
    limited(well, 3)
    well.start(leaf, "x", workspace="acme", execution_id="ended").result(WAIT)
    holdings = {"ended": [1, 1, 1], "deleted": [1, 1, 1]}
    record = Put(internal_path("child_places", "acme", "h"), "places", Raw(recode({"holdings": holdings, "waiting": []})))
    write_unit(well, StateBatch((record,)))
    run = well.start(shape, ["a", "b", "c"], workspace="acme", execution_id="h")
    until(lambda: len(well.executions.list(workspace="acme", workflow="children.patient")) == 3)
    run.cancel()


@pytest.mark.parametrize("workspace", ["default", "acme"])
def test_children_one_after_another_cost_no_count(well: Stepwell, workspace: str) -> None:
    limited(well, 2)
    assert well.start(tower, 3, workspace=workspace, execution_id="t").result(WAIT) == 3
    assert well.start(queue_of_children, 5, workspace=workspace, execution_id="q").result(WAIT) == 5
    for root_id in ("t", "q"):
        assert store_under(well).totals(internal_path("child_places", workspace, root_id)).revision == 0


@pytest.mark.parametrize("shape", [village, plain_village, each_village], ids=["async", "plain", "declared"])
def test_place_that_is_freed_in_one_branch_starts_a_child_in_another(
    well: Stepwell, shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent that waits is woken: it does not find out by looking again after a while."""
    monkeypatch.setattr(function_session, "CHILD_SLOT_POLL_MS", 10**7)
    monkeypatch.setattr(declared_session, "CHILD_SLOT_POLL_MS", 10**7)
    limited(well, 3)
    well.definitions.put(each_house)
    run = well.start(shape, [["a", "b"], ["a", "b"]], workspace="acme", execution_id="v")

    def children(of: str = "") -> list[str]:
        found = [each for each in well.executions.list(workspace="acme", workflow="children.patient") if each.status != "COMPLETED"]
        return [each.execution_id for each in found if each.parent_id == of or not of]

    houses: list[str] = []

    def have_all_places() -> bool:
        houses[:] = [each.execution_id for each in well.executions.list(workspace="acme") if each.parent_id == "v"]
        return (
            len(houses) == 2 and len(children()) == 3 and all(well.run(each).status() == Status.WAITING for each in (*houses, "v"))
        )

    until(have_all_places)
    [full] = [each for each in houses if len(children(each)) == 2]
    [short] = set(houses) - {full}
    well.run(children(full)[0]).signal("go", "x")
    until(lambda: (len(children(full)), len(children(short))) == (1, 2))
    for child in children():
        well.run(child).signal("go", "x")
    assert run.result(WAIT) == [["x", "x"], ["x", "x"]]
    until(lambda: not places(well, "v"))


@pytest.mark.parametrize("shape", [village, plain_village, each_village], ids=["async", "plain", "declared"])
def test_paused_parent_does_not_wait_for_places(well: Stepwell, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be given each place that gets free, and keep it unused until it is resumed."""
    monkeypatch.setattr(function_session, "CHILD_SLOT_POLL_MS", 10**7)
    monkeypatch.setattr(declared_session, "CHILD_SLOT_POLL_MS", 10**7)
    limited(well, 3)
    well.definitions.put(each_house)
    run = well.start(shape, [["a", "b"], ["a", "b"]], workspace="acme", execution_id="v")

    def children(of: str) -> list[str]:
        found = well.executions.list(workspace="acme", workflow="children.patient")
        return [each.execution_id for each in found if each.parent_id == of and each.status != "COMPLETED"]

    def record() -> dict[str, Any]:
        return places(well, "v").get("places", {"holdings": {}, "waiting": []})

    def houses() -> list[str]:
        return [each.execution_id for each in well.executions.list(workspace="acme") if each.parent_id == "v"]

    until(lambda: len(houses()) == 2 and sum(len(children(house_id)) for house_id in houses()) == 3 and record()["waiting"])
    for house_id in houses():
        well.run(house_id).pause()
    until(lambda: not record()["waiting"])
    [full] = [house_id for house_id in houses() if len(children(house_id)) == 2]
    [short] = set(houses()) - {full}
    well.run(children(full)[0]).signal("go", "x")
    until(lambda: len(children(full)) == 1 and set(record()["holdings"]) == {"v"})  # given back although it is paused, too
    for house_id in houses():
        well.run(house_id).resume()
    until(lambda: len(children(short)) == 2)

    def all_end() -> bool:
        for child in (*children(full), *children(short)):
            with suppress(ExecutionEnded):
                well.run(child).signal("go", "x")
        return run.status() == Status.COMPLETED

    until(all_end)
    assert run.result(WAIT) == [["x", "x"], ["x", "x"]]
    until(lambda: not places(well, "v"))


@pytest.mark.parametrize("shape", [house, both], ids=["function", "declared"])
def test_a_child_begins_when_another_ends_though_the_parent_rests(well: Stepwell, shape: Any) -> None:
    limited(well, 1)
    run = well.start(shape, ["a", "b", "c"], workspace="acme", execution_id="h")

    def children() -> list[str]:
        return [found.execution_id for found in well.executions.list(workspace="acme", workflow="children.patient")]

    seen: set[str] = set()
    for number in range(3):
        until(lambda count=number + 1: len(children()) == count and run.status() == Status.WAITING)
        [new] = set(children()) - seen
        seen.add(new)
        well.run(new).signal("go", "done")
    run.result(WAIT)


def test_detached_children_wait_for_slots_of_their_own(well: Stepwell) -> None:
    """Their root may end first, so that they would run in nobody's slot."""
    well.workspaces.put_tier("one", concurrency=1)
    well.workspaces.put("acme", tier="one")
    ids = well.start(detaching, ["a", "b", "c", "d"], workspace="acme").result(WAIT)

    def children() -> list[str]:
        """Those that have begun."""
        found = [well.run(each) for each in ids]
        return [each.execution_id for each in found if each.status() not in (Status.PENDING, Status.COMPLETED, Status.CANCELLED)]

    until(lambda: len(children()) == 1)
    with pytest.raises(LimitExceeded, match="acme"):
        well.start(leaf, "a", workspace="acme")
    [waiting, *_] = [each for each in ids if well.run(each).status() == Status.PENDING]
    on = well.run(waiting).waiting_on()
    assert on is not None
    assert on.kind == "capacity"
    well.run(waiting).cancel()
    until(lambda: well.run(waiting).status() == Status.CANCELLED)
    seen: set[str] = set()
    for _ in range(3):
        until(lambda: len(set(children()) - seen) == 1)
        [new] = set(children()) - seen
        seen.add(new)
        well.run(new).signal("go", "done")
    until(lambda: all(well.run(each).status() in (Status.COMPLETED, Status.CANCELLED) for each in ids))
    assert well.start(leaf, "last", workspace="acme").result(WAIT) == "last"


@pytest.mark.parametrize("shape", [house, plain_house, both], ids=["async", "plain", "declared"])
def test_cancelled_parent_starts_no_child_that_waits(well: Stepwell, shape: Any) -> None:
    limited(well, 1)
    run = well.start(shape, ["a", "b", "c"], workspace="acme", execution_id="h")
    until(lambda: run.status() == Status.WAITING)
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    assert len(well.executions.list(workspace="acme", workflow="children.patient")) == 1


def test_given_up_child_holds_its_slot_until_it_ends(well: Stepwell) -> None:
    limited(well, 1)
    run = well.start(impatient, ["a", "b"], workspace="acme", execution_id="h")
    until(lambda: run.status() == Status.WAITING)
    [first] = well.executions.list(workspace="acme", workflow="children.patient")
    run.signal("enough", None)
    well.run(first.execution_id).signal("go", "first")
    until(lambda: len(well.executions.list(workspace="acme", workflow="children.patient")) == 2)
    [second] = {found.execution_id for found in well.executions.list(workflow="children.patient")} - {first.execution_id}
    well.run(second).signal("go", "last")
    assert run.result(WAIT) == "last"


def test_limit_holds_at_once_in_a_new_workspace(well: Stepwell) -> None:
    """The worker caches the limits of workspaces for a second; that must not let all children of a new one run."""
    limited(well, 1)
    well.start(family, 1, workspace="acme").result(WAIT)
    well.workspaces.put("new", tier="few")
    run = well.start(house, ["a", "b"], workspace="new")
    until(lambda: run.status() == Status.WAITING)
    assert len(well.executions.list(workspace="new", workflow="children.patient")) == 1
    run.cancel()


def test_limit_is_the_override_of_the_workspace(well: Stepwell) -> None:
    limited(well, 2)
    well.workspaces.override("acme", "child_concurrency", 1, span="1h")
    well.start(family, 3, workspace="acme").result(WAIT)
    assert max(most) == 1


@pytest.mark.parametrize("shape", [family, each_family], ids=["function", "declared"])
def test_limited_children_survive_a_crash_at_every_commit(shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def one(*_: Any) -> int:
        return 1

    # Crashes are tried in the default workspace, which no tier limits.
    monkeypatch.setattr(Services, "child_concurrency", one)
    monkeypatch.setattr(kernel_effects, "DEFAULT_WORKSPACE", "another")
    given: Any = ["a", "b"] if shape is each_family else 2
    assert crash_everywhere(shape, given).crashes > 0
    assert max(most) == 1


@pytest.mark.parametrize("shape", [grove, mixed_grove], ids=["function", "declared"])
def test_tree_within_a_limit_survives_a_crash_at_every_commit(shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def two(*_: Any) -> int:
        return 2

    monkeypatch.setattr(Services, "child_concurrency", two)
    monkeypatch.setattr(kernel_effects, "DEFAULT_WORKSPACE", "another")
    assert crash_everywhere(shape, [2, 2]).crashes > 0
    assert max(most) <= 2
