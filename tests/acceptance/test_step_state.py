"""Scoped state inside steps: read with the step's own writes in it, written with its output, refused as a failed attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.acceptance.faces import step_records
from tests.support import process_steps
from tests.support.module_state import cleared

import stepwell
from stepwell import ExecutionFailed, FakeClock, InvalidInput, Limits, Retry, Scope, StepFailed, StepStatus, step, workflow
from stepwell.flow import call, define, parallel

WAIT = 60
STOCK = Scope.custom("stock")
attempts: list[int] = []
before_attempt: dict[int, Callable[[], object]] = {}


_cleared = cleared(attempts, before_attempt)


@pytest.fixture
def well(open_well: OpenWell, url: str) -> Any:
    """A well that works by the machine's clock, since its worker sleeps by it."""
    return open_well(url)


@step(name="s.look")
def look(key: str) -> dict[str, Any]:
    """All ways to read, in a thread."""
    state = stepwell.current().state(STOCK)
    state.set_many({"own": [1]})
    state.increment("lamps", 2)
    state.delete("gone")
    return {
        "get": state.get(key),
        "own": state.get("own"),
        "default": state.get("nothing", "none"),
        "exists": [state.exists(each) for each in ("lamps", "own", "gone", "nothing")],
        "many": state.get_many(["lamps", "gone", "own"]),
        "keys": state.keys(),
        "with_l": state.all("l"),
        "stored": state.entry("lamps").value,
    }


@step(name="s.look_async")
async def look_async(key: str) -> dict[str, Any]:
    """The same on the loop."""
    state = stepwell.current().state(STOCK)
    state.set("own", [1])
    state.increment("lamps", 2)
    state.delete("gone")
    return {
        "get": await state.get(key),
        "own": await state.get("own"),
        "default": await state.get("nothing", "none"),
        "exists": [await state.exists(each) for each in ("lamps", "own", "gone", "nothing")],
        "many": await state.get_many(["lamps", "gone", "own"]),
        "keys": await state.keys(),
        "with_l": await state.all("l"),
        "stored": (await state.entry("lamps")).value,
    }


@workflow
def looking(key: str) -> dict[str, Any]:
    return look(key)


@workflow
async def looking_async(key: str) -> dict[str, Any]:
    return await look_async(key)


SEEN = {
    "get": 9,
    "own": [1],
    "default": "none",
    "exists": [True, True, False, False],
    "many": {"lamps": 9, "own": [1]},
    "keys": ["lamps", "own", "tables"],
    "with_l": {"lamps": 9},
    "stored": 7,
}


@pytest.mark.parametrize(
    "way",
    [
        looking,
        looking_async,
        define("looking_declared", call("s.look", "{{ trigger.input }}")),
        define("looking_declared_async", call("s.look_async", "{{ trigger.input }}")),
    ],
    ids=["def", "async def", "declared def", "declared async def"],
)
def test_step_reads_what_is_stored_with_its_own_writes_over_it(well: Any, way: Any) -> None:
    well.state.custom("stock").set_many({"lamps": 7, "gone": 1, "tables": 2})
    assert well.start(way, "lamps").result(WAIT) == SEEN
    assert well.state.custom("stock").all() == {"lamps": 9, "own": [1], "tables": 2}


@step(name="s.take", retry=Retry(attempts=3, first_seconds=0))
def take(pieces: int) -> int:
    """Read, decide, and write only if nobody was quicker."""
    attempts.append(stepwell.current().attempt)
    state = stepwell.current().state(STOCK)
    stored = state.entry("lamps")
    before_attempt.get(len(attempts), lambda: None)()
    left: int = stored.value - pieces
    state.compare_and_set("lamps", left, revision=stored.revision)
    return left


@workflow
def taking(pieces: int) -> int:
    return take(pieces)


@workflow
def taking_or_told(pieces: int) -> str:
    try:
        return str(take(pieces))
    except StepFailed as error:
        return f"{error.kind} {error.error_class}"


DECLARED_TAKING = define("taking_declared", call("s.take", {"pieces": "{{ trigger.input }}"}, name="take"))


@pytest.mark.parametrize("way", [taking, DECLARED_TAKING], ids=["function", "declared"])
def test_conflict_of_state_is_retried_by_the_policy_of_the_step(well: Any, way: Any) -> None:
    """Each attempt reads anew, and writes by its own reads."""
    well.state.custom("stock").set("lamps", 10)
    before_attempt[1] = lambda: well.state.custom("stock").set("lamps", 6)
    run = well.start(way, 1)
    assert run.result(WAIT) == 5
    assert attempts == [1, 2]
    assert well.state.custom("stock").get("lamps") == 5
    assert [step.status for step in run.state().get_all_step_outputs().values()] == [StepStatus.COMPLETED]


@pytest.mark.parametrize("way", [taking, DECLARED_TAKING], ids=["function", "declared"])
def test_conflict_at_every_attempt_fails_the_step_and_nothing_of_it_lands(well: Any, way: Any) -> None:
    well.state.custom("stock").set("lamps", 10)
    for number in (1, 2, 3):
        before_attempt[number] = lambda number=number: well.state.custom("stock").set("lamps", 10 * number)
    run = well.start(way, 1)
    with pytest.raises(ExecutionFailed, match="Conflict: key 'lamps' was expected at revision"):
        run.result(WAIT)
    assert attempts == [1, 2, 3]
    assert well.state.custom("stock").get("lamps") == 30
    assert len(step_records(run)["s.take" if way is taking else "take"].attempts) == 3


def test_refused_write_raises_like_a_failed_step_and_the_same_on_replay(well: Any) -> None:
    well.state.custom("stock").set("lamps", 10)
    for number in (1, 2, 3):
        before_attempt[number] = lambda number=number: well.state.custom("stock").set("lamps", 10 * number)
    run = well.start(taking_or_told, 1)
    assert run.result(WAIT) == "Conflict database"
    assert step_records(run)["s.take"].status == StepStatus.FAILED


@step(name="s.hoard", retry=Retry(attempts=5, first_seconds=0))
async def hoard(count: int) -> None:
    attempts.append(1)
    for number in range(count):
        stepwell.current().state(STOCK).set(f"k{number}", number)


@workflow
async def hoarding(count: int) -> None:
    stepwell.current().variables["seen"] = count
    await hoard(count)


@pytest.mark.parametrize(
    "way", [hoarding, define("hoarding_declared", call("s.hoard", "{{ trigger.input }}"))], ids=["function", "declared"]
)
def test_state_over_a_limit_is_final(open_well: OpenWell, url: str, way: Any) -> None:
    well: Any = open_well(url, limits=Limits(scope_keys=3))
    run = well.start(way, 4)
    with pytest.raises(ExecutionFailed, match="scope_keys=3"):
        run.result(WAIT)
    assert attempts == [1]
    assert well.state.custom("stock").keys() == []


def test_variables_that_wait_for_a_commit_are_not_lost_when_it_is_refused(open_well: OpenWell, url: str) -> None:
    well: Any = open_well(url, limits=Limits(scope_keys=3))
    run = well.start(hoarding, 4)
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert run.state().get_variable("seen") == 4


@step(name="s.claim")
async def claim(key: str) -> str:
    stepwell.current().state(STOCK).set_if_absent(key, True)
    return key


@workflow
async def claiming(keys: list[str]) -> list[str]:
    done = await asyncio.gather(*(claim(key) for key in keys), return_exceptions=True)
    return [each if isinstance(each, str) else type(each).__name__ for each in done]


def test_refused_write_of_one_branch_is_not_held_against_the_others(well: Any) -> None:
    """Steps that end together share a commit; only the one at fault fails."""
    well.state.custom("stock").set("b", False)
    assert well.start(claiming, ["a", "b", "c", "d"]).result(WAIT) == ["a", "StepFailed", "c", "d"]
    assert well.state.custom("stock").all() == {"a": True, "b": False, "c": True, "d": True}


@step(name="s.ask")
async def ask(workspace: str) -> str:
    stepwell.enqueue(looking_once, "lamps", workspace=workspace)
    return workspace


@workflow
async def asking(workspaces: list[str]) -> list[str]:
    done = await asyncio.gather(*(ask(each) for each in workspaces), return_exceptions=True)
    return [each if isinstance(each, str) else type(each).__name__ for each in done]


def test_refused_request_of_one_branch_is_not_held_against_the_others(well: Any) -> None:
    asked = ["default", "nowhere", "default", "default"]
    assert well.start(asking, asked).result(WAIT) == ["default", "StepFailed", "default", "default"]


def test_refused_write_of_one_declared_branch_is_not_held_against_the_others(well: Any) -> None:
    well.state.custom("stock").set("b", False)
    names = ("a", "b", "c")
    branches = [call("s.claim", name, name=name, on_error="continue") for name in names]
    run = well.start(define("claiming_declared", parallel(*branches)))
    run.result(WAIT)
    statuses = [step_records(run)[name].status for name in names]
    assert statuses == [StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.COMPLETED]


def test_read_in_a_step_starts_a_sliding_ttl_anew(open_well: OpenWell, url: str) -> None:
    clock = FakeClock()
    well: Any = open_well(url, clock=clock)
    well.state.custom("stock").set("lamps", 7, ttl=100, sliding=True)
    clock.advance(60)
    well.start(looking_once, "lamps").result(WAIT)
    clock.advance(60)
    assert well.state.custom("stock").exists("lamps")


@step(name="s.once")
async def once(key: str) -> Any:
    return await stepwell.current().state(STOCK).get(key)


@workflow
async def looking_once(key: str) -> Any:
    return await once(key)


def test_write_that_the_commit_would_refuse_is_refused_by_the_read_after_it(well: Any) -> None:
    well.state.custom("stock").set("lamps", "many")

    @step
    def confused() -> None:
        state = stepwell.current().state(STOCK)
        state.increment("lamps")
        state.get("lamps")

    @workflow(name="confusing")
    def confusing() -> None:
        confused()

    with pytest.raises(ExecutionFailed, match="holds no number"):
        well.start(confusing).result(WAIT)


@workflow
async def reading_in_a_process() -> Any:
    return await process_steps.read_state()


@workflow
async def reading_in_the_code() -> Any:
    return stepwell.current().state(STOCK).get("lamps")


@pytest.mark.parametrize(
    ("way", "said"),
    [(reading_in_a_process, "process of its own cannot read scoped state"), (reading_in_the_code, "for the code of a step")],
    ids=["process", "workflow"],
)
def test_where_state_cannot_be_read_the_error_says_so(open_well: OpenWell, way: Any, said: str) -> None:
    well: Any = open_well("memory://")
    with pytest.raises(ExecutionFailed, match=said):
        well.start(way).result(60)


def test_variables_are_for_the_workflow_and_not_for_its_steps(open_well: OpenWell) -> None:
    well: Any = open_well("memory://")

    @step
    def wrong() -> Any:
        return stepwell.current().variables["x"]

    @workflow(name="wrongly")
    def wrongly() -> Any:
        return wrong()

    with pytest.raises(ExecutionFailed, match=r"current\(\)\.variables is for the workflow's own code"):
        well.start(wrongly).result(WAIT)
    with pytest.raises(InvalidInput, match="inside of a workflow or a step"):
        stepwell.current()


@step
def writes_badly() -> int:
    stepwell.current().state(STOCK).set("", 1)
    return 1


@workflow
def bad_writer() -> int:
    stepwell.current().variables["n"] = 1
    return writes_badly()


def test_refused_write_of_a_step_counts_no_changes_that_its_author_did_not_write(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="a state key is empty") as caught:
        well.start(bad_writer).result(timeout=60)
    assert "change" not in str(caught.value)
    assert "mutation" not in str(caught.value)
