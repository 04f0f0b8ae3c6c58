"""Workflows written as functions, started and run through the public face."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from tests.acceptance.conftest import working_well
from tests.support.module_state import cleared

import stepwell
from stepwell import (
    AsyncStepwell,
    Conflict,
    ExecutionCancelled,
    ExecutionFailed,
    InvalidInput,
    Retry,
    Status,
    StepFailed,
    Stepwell,
    step,
    workflow,
)

well = working_well

WAIT = 60
calls: Counter[str] = Counter()
entered = threading.Event()
release = threading.Event()


@dataclass
class Order:
    item: str
    pieces: int


@dataclass
class Payment:
    order: Order
    cents: int


_cleared = cleared(calls, entered, release)


@step
async def charge(order: Order) -> Payment:
    calls["charge"] += 1
    return Payment(order, 100 * order.pieces)


@step
def pack(item: str) -> str:
    calls["pack"] += 1
    return f"packed {item}"


@workflow
async def checkout(order: Order) -> str:
    payment = await charge(order)
    stepwell.current().variables["cents"] = payment.cents
    return f"{await pack(payment.order.item)} for {payment.cents}"


def test_run_gives_its_result_and_its_record(well: Any) -> None:
    run = well.start(checkout, {"item": "lamp", "pieces": 2}, execution_id="order-7")
    assert run.result(WAIT) == "packed lamp for 200"
    state = run.state()
    assert state.get_step_output("charge").output == {"order": {"item": "lamp", "pieces": 2}, "cents": 200}
    assert state.get_variable("cents") == 200
    assert run.status() == Status.COMPLETED
    assert run.verify().ok


def test_same_execution_id_is_the_same_run(well: Any) -> None:
    first = well.start(checkout, Order("lamp", 1), execution_id="order-7")
    assert first.result(WAIT) == well.start(checkout, Order("lamp", 1), execution_id="order-7").result(WAIT)
    with pytest.raises(Conflict, match="was started with another input"):
        well.start(checkout, Order("chair", 9), execution_id="order-7")
    assert calls == {"charge": 1, "pack": 1}


def test_input_that_does_not_fit_is_refused_before_anything_is_stored(well: Any) -> None:
    with pytest.raises(InvalidInput, match="pieces"):
        well.start(checkout, {"item": "lamp", "pieces": "many"}, execution_id="order-7")
    assert well.executions.list() == []


@workflow
def plain(number: int) -> list[int]:
    first = double(number)
    return [first, double(first), *stepwell.map(double, [1, 2])]


@step
def double(number: int) -> int:
    return 2 * number


def test_plain_functions_are_workflows_too(well: Any) -> None:
    assert well.start(plain, 4).result(WAIT) == [8, 16, 2, 4]


@workflow
async def fan_out(numbers: list[int]) -> list[int]:
    async def branch(number: int) -> int:
        return await async_double(await async_double(number))

    return [
        *await asyncio.gather(*(branch(number) for number in numbers)),
        *await stepwell.map(async_double, numbers, concurrency=2),
    ]


@step
async def async_double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_tasks_of_a_workflow_have_keys_of_their_own(well: Any) -> None:
    run = well.start(fan_out, [1, 2, 3])
    assert run.result(WAIT) == [4, 8, 12, 2, 4, 6]
    outputs = run.state().get_all_step_outputs()
    assert [outputs[f"{branch}/async_double"].output for branch in (1, 2, 3)] == [2, 4, 6]
    assert [outputs[f"{branch}/async_double#2"].output for branch in (1, 2, 3)] == [4, 8, 12]


@step(retry=Retry(attempts=3, first_seconds=0.001))
async def flaky(fails: int) -> int:
    calls["flaky"] += 1
    if calls["flaky"] <= fails:
        raise ConnectionError(f"attempt {stepwell.current().attempt}")
    return calls["flaky"]


@workflow
async def patient(fails: int) -> int:
    return await flaky(fails)


def test_failed_attempts_are_tried_again(well: Any) -> None:
    assert well.start(patient, 2).result(WAIT) == 3


def test_step_that_fails_for_good_fails_the_run_and_a_retry_goes_on_from_it(well: Any) -> None:
    run = well.start(patient, 3)
    with pytest.raises(ExecutionFailed, match=r"flaky.*ConnectionError: attempt 3"):
        run.result(WAIT)
    run.retry()
    assert run.result(WAIT) == 4
    assert run.verify().ok


@workflow
async def careful(fails: int) -> str:
    try:
        return str(await flaky(fails))
    except StepFailed as error:
        return f"{error.step} gave up: {error.kind}"


def test_workflow_can_handle_a_step_that_failed(well: Any) -> None:
    assert well.start(careful, 9).result(WAIT) == "flaky gave up: ConnectionError"


@workflow
async def wrong() -> Any:
    return await gives_a_tuple()


@step
async def gives_a_tuple():
    return 1, 2


def test_output_that_cannot_be_recorded_is_a_clear_failure(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="tuple would come back as a list"):
        well.start(wrong).result(WAIT)


@workflow
async def approval(who: str) -> Any:
    try:
        return await stepwell.wait_signal("approve", timeout="1h")
    except ExecutionCancelled:
        await note("cancelled")
        raise


@step
async def note(text: str) -> str:
    calls[text] += 1
    return text


def test_signal_sent_before_and_after_the_wait_arrives(well: Any) -> None:
    runs = [well.start(approval, "bob") for _ in range(5)]
    for number, run in enumerate(runs):
        run.signal("approve", {"number": number})
    assert [run.result(WAIT) for run in runs] == [{"number": number} for number in range(5)]


def test_resting_execution_is_woken_by_its_signal(well: Any) -> None:
    run = well.start(approval, "bob")
    _wait_until(lambda: run.status() == Status.WAITING)
    run.signal("approve", "yes")
    assert run.result(WAIT) == "yes"


def test_signal_to_a_finished_run_is_refused(well: Any) -> None:
    run = well.start(checkout, Order("lamp", 1))
    run.result(WAIT)
    with pytest.raises(Conflict, match="COMPLETED"):
        run.signal("approve")


def test_cancelled_run_cleans_up_and_ends_as_cancelled(well: Any) -> None:
    run = well.start(approval, "bob")
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    assert calls["cancelled"] == 1
    assert run.status() == Status.CANCELLED


@workflow
async def impatient() -> str:
    try:
        await stepwell.wait_signal("never", timeout=0.01)
    except TimeoutError as error:
        return str(error)
    return "came"


def test_signal_that_does_not_come_times_out(well: Any) -> None:
    assert well.start(impatient).result(WAIT) == "signal 'never' did not come within 0.01 s, the timeout of wait_signal"


@workflow
async def nap(seconds: float) -> str:
    await stepwell.sleep(seconds)
    return "rested"


@pytest.mark.parametrize("seconds", [0.01, 0.6])
def test_sleep_ends_whether_it_is_held_or_rests(well: Any, seconds: float) -> None:
    assert well.start(nap, seconds).result(WAIT) == "rested"


@workflow
async def parent(order: Order) -> str:
    return "child said: " + await checkout(order)


@workflow
async def hopeless_parent(fails: int) -> Any:
    return await patient(fails)


def test_child_workflow_runs_as_an_execution_of_its_own(well: Any) -> None:
    run = well.start(parent, Order("lamp", 1), execution_id="p")
    assert run.result(WAIT) == "child said: packed lamp for 100"
    children = [summary for summary in well.executions.list() if summary.parent_id == "p"]
    assert [child.workflow_id for child in children] == ["checkout"]


def test_failure_of_a_child_fails_its_parent(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match=r"child execution.*ConnectionError"):
        well.start(hopeless_parent, 99).result(WAIT)


@step
async def counts_in_state(key: str) -> None:
    stepwell.current().state(stepwell.Scope.custom("orders")).increment(key)


@workflow
async def counting(key: str) -> None:
    await counts_in_state(key)


def test_state_written_in_a_step_lands_with_it(well: Any) -> None:
    well.start(counting, "n").result(WAIT)
    assert well.state.custom("orders").get("n") == 1


def test_program_that_no_longer_matches_its_record_is_told_which_step(file_url: str) -> None:
    @workflow(name="changing")
    async def before() -> None:
        await note("first")
        await stepwell.wait_signal("go")

    with Stepwell(file_url) as well:
        run = well.start(before, execution_id="c")
        _wait_until(lambda: run.status() == Status.WAITING)

    @workflow(name="changing")
    async def after() -> None:
        await pack("something else")
        await stepwell.wait_signal("go")

    with Stepwell(file_url) as well:
        run = well.run("c")
        run.signal("go")
        with pytest.raises(ExecutionFailed, match="no longer matches its record: call 1 is 'pack' now, and was 'note'"):
            run.result(WAIT)
    assert after is not before


def test_patched_lets_old_executions_go_their_old_way(file_url: str) -> None:
    @workflow(name="patching")
    async def before() -> str:
        await note("old")
        await stepwell.wait_signal("go")
        return "old"

    with Stepwell(file_url) as well:
        old = well.start(before, execution_id="old")
        _wait_until(lambda: old.status() == Status.WAITING)

    @workflow(name="patching")
    async def after() -> str:
        way = "new" if stepwell.patched("use new") else "old"
        await note(way)
        await stepwell.wait_signal("go")
        return way

    with Stepwell(file_url) as well:
        runs = [well.run("old"), well.start(after, execution_id="new")]
        for run in runs:
            run.signal("go")
        assert [run.result(WAIT) for run in runs] == ["old", "new"]


@step
def blocks() -> str:
    entered.set()
    assert release.wait(WAIT)
    return "done"


@workflow
async def slow() -> str:
    return await blocks()


def test_result_times_out_and_the_run_goes_on(file_url: str) -> None:
    with Stepwell(file_url) as well:
        run = well.start(slow)
        assert entered.wait(WAIT)
        with pytest.raises(TimeoutError, match="still RUNNING"):
            run.result(0.01)
        release.set()
        assert run.result(WAIT) == "done"


def test_execution_started_without_a_worker_is_run_by_one_elsewhere(file_url: str) -> None:
    with Stepwell(file_url, worker=False) as sender, Stepwell(file_url) as _worker:
        assert sender.start(checkout, Order("lamp", 3)).result(WAIT) == "packed lamp for 300"


def test_step_outside_of_a_workflow_is_just_its_function() -> None:
    assert double(4) == 8
    assert asyncio.run(charge(Order("lamp", 1))).cents == 100


def test_many_runs_at_once_all_end(url: str) -> None:
    async def scenario() -> list[Any]:
        async with AsyncStepwell(url, concurrency=50) as well:
            runs = [await well.start(fan_out, [number]) for number in range(60)]
            return [await run.result(WAIT) for run in runs]

    assert asyncio.run(scenario()) == [[4 * number, 2 * number] for number in range(60)]


def _wait_until(is_so: Any) -> None:
    """Look again and again until something is so; the test's own time limit ends it."""
    while not is_so():
        threading.Event().wait(0.005)
