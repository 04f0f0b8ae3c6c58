"""Starting runs: who takes them on and when, what is refused and how that is said, and what stands in a worker's way."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell, working_well

import stepwell
from stepwell import Conflict, ExecutionEnded, InvalidInput, Status, Stepwell, fault_points, step, workflow
from stepwell.flow import function
from stepwell.testing import crash_everywhere, rehearse
from stepwell.testing.store_access import store_under

well = working_well

WAIT = 60


@step
async def double(number: int) -> int:
    return 2 * number


@workflow
async def doubling(number: int) -> int:
    return await double(number)


@workflow
async def adding(first: int, second: list[int]) -> int:
    return first + sum(second)


@workflow
async def taking_none(number: int | None = 5) -> int | None:
    return number


@workflow
async def taking_anything(number=5):
    return number


@workflow
async def taking_a_number(number: int = 5) -> int:
    return number


@workflow
async def taking_two(first: int | None = 1, second: int = 2) -> list[int | None]:
    return [first, second]


@workflow
async def waiting() -> Any:
    return await stepwell.wait_signal("go")


def test_start_whose_reply_was_lost_is_taken_on_at_once(open_well: OpenWell, url: str) -> None:
    """P9: what is in the store says whether it landed; the worker does not wait for its own lease to end."""
    well = open_well(url, lease_seconds=600)
    has_failed = threading.Event()

    def lose_reply(point: str) -> None:
        if point == "store.committed" and not has_failed.is_set() and is_there(well):
            has_failed.set()
            raise ConnectionError("the reply is lost")

    with fault_points.armed(lose_reply):
        run = well.start(doubling, 4, execution_id="d")
        assert run.result(WAIT) == 8
    assert has_failed.is_set()


def is_there(well: Any) -> bool:
    """Whether the run is in the store: the reply that is lost is that of its creation."""
    return store_under(getattr(well, "_thing", well)).head("d") is not None


def test_none_that_is_given_is_not_the_default_of_a_parameter_that_takes_it(well: Any) -> None:
    for flow, other in ((taking_none, 5), (taking_anything, 5)):
        assert well.start(flow, None).result(WAIT) is None
        assert well.start(flow).result(WAIT) == other
        assert well.start(flow, 7).result(WAIT) == 7


def test_none_for_parameters_that_do_not_take_it_is_no_input(well: Any) -> None:
    assert well.start(taking_a_number, None).result(WAIT) == 5
    assert well.start(taking_two, None).result(WAIT) == [1, 2]
    assert well.start(taking_two, {"first": None}).result(WAIT) == [None, 2]


def test_none_that_is_given_survives_a_crash_at_every_commit() -> None:
    assert crash_everywhere(taking_none, None).result is None
    assert crash_everywhere(taking_none).result == 5
    assert (rehearse(taking_none, None).result, rehearse(taking_none).result) == (None, 5)


@pytest.mark.parametrize(
    ("flow", "value", "words"),
    [
        (doubling, "many", ["'doubling'", "'number'", "int", "str"]),
        (adding, {"first": 1, "second": ["x"]}, ["'adding'", "'second'", "list[int]"]),
        (adding, {"first": 1}, ["'adding'", "missing ['second']"]),
        (adding, [1], ["'adding'", "a dict with first, second", "list"]),
    ],
)
def test_input_that_does_not_fit_is_named_with_its_parameter_and_type(well: Any, flow: Any, value: Any, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        well.start(flow, value)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "stored value" not in message


def test_well_opened_before_its_workflows_are_imported_runs_them(file_url: str) -> None:
    function.unregister(*function.registered_functions())
    with Stepwell(file_url, worker=False) as sender, Stepwell(file_url):
        run = sender.start(doubling, 4)
        assert run.status() == Status.PENDING
        workflow(name="doubling")(doubling.function)
        assert run.result(WAIT) == 8


@pytest.mark.parametrize("act", [lambda run: run.cancel(), lambda run: run.signal("go")], ids=["cancel", "signal"])
def test_run_that_has_ended_takes_no_message(well: Any, act: Any) -> None:
    run = well.start(doubling, 4)
    run.result(WAIT)
    with pytest.raises(ExecutionEnded, match="has ended as COMPLETED"):
        act(run)
    assert issubclass(ExecutionEnded, Conflict)


def test_execution_of_newer_code_stays_due_and_says_why_while_others_are_served(file_url: str) -> None:
    """T48: a worker never touches what newer code started; one that has the code takes it at once."""
    old = doubling

    @workflow(name="doubling", version=2)
    async def newer(number: int) -> int:
        return 2 * await double(number)

    with Stepwell(file_url, worker=False) as sender:
        run = sender.start(newer, 4)
    with function.registered_alone(old, double), Stepwell(file_url) as worker:
        assert worker.start(doubling, 1).result(WAIT) == 2
        run = worker.run(run.execution_id)
        assert "version 2 of workflow 'doubling', and this process has version 1" in (run.obstacle() or "")
        with pytest.raises(TimeoutError, match=r"still PENDING after timeout=0\.05 s; it was started by version 2"):
            run.result(0.05)
        assert (worker.load(run.execution_id).revision, store_under(worker).head(run.execution_id).claims) == (0, 0)
    with function.registered_alone(newer, double), Stepwell(file_url) as worker:
        run = worker.run(run.execution_id)
        assert run.obstacle() is None
        assert run.result(WAIT) == 16


def test_execution_of_a_workflow_that_this_process_has_not_says_so(well: Any) -> None:
    other = function.Workflow(doubling.function, "elsewhere", 1)
    run = well.start(other, 4)
    assert "no workflow 'elsewhere'" in run.obstacle()
    with pytest.raises(TimeoutError, match="no workflow 'elsewhere'"):
        run.result(0.05)
    assert well.start(doubling, 1).result(WAIT) == 2


def test_known_id_with_another_input_is_a_conflict(well: Any) -> None:
    run = well.start(doubling, 4, execution_id="four")
    assert well.start(doubling, 4, execution_id="four").result(WAIT) == 8
    with pytest.raises(Conflict, match="execution 'four' of workflow 'doubling' was started with another input") as caught:
        well.start(doubling, 5, execution_id="four")
    assert type(caught.value) is Conflict
    assert run.result(WAIT) == 8


def test_input_that_python_takes_for_the_same_is_another_input(well: Any) -> None:
    run = well.start(taking_anything, {"n": 1}, execution_id="one")
    for other in ({"n": 1.0}, {"n": True}):
        with pytest.raises(Conflict, match="was started with another input"):
            well.start(taking_anything, other, execution_id="one")
    assert well.start(taking_anything, {"n": 1}, execution_id="one").result(WAIT) == run.result(WAIT) == {"n": 1}


def test_key_of_another_request_is_a_conflict(well: Any) -> None:
    first = well.enqueue(doubling, 4, key="four")
    assert well.enqueue(doubling, 4, key="four").item_id == first.item_id
    with pytest.raises(Conflict):
        well.enqueue(doubling, 5, key="four")
    assert first.result(WAIT) == 8
