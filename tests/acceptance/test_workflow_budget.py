"""A budget counts every attempt, and holds between them; what is undone waits for what is under way (D6, D17)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import stepwell
from stepwell import ExecutionFailed, Governance, Retry, Status, StepFailed, step, workflow
from stepwell.flow import call, define
from stepwell.testing import SkippingClock, TestWell, rehearse

made: list[int] = []


def dear() -> int:
    made.append(stepwell.current().attempt)
    stepwell.current().spend(1)
    raise ConnectionError("the answer was lost, but not the bill")


dear_at_once = step(retry=Retry(attempts=10, first_seconds=0), name="dear_at_once")(dear)
dear_and_slow = step(retry=Retry(attempts=10, first_seconds="1d", max_seconds="1d"), name="dear_and_slow")(dear)


@workflow
async def dear_code(is_slow: bool) -> Any:
    return await (dear_and_slow() if is_slow else dear_at_once())


@pytest.mark.parametrize(
    ("program", "is_slow"),
    [
        (dear_code, False),
        (dear_code, True),
        (define("dear-at-once", call("dear_at_once")), False),
        (define("dear-and-slow", call("dear_and_slow")), True),
    ],
)
def test_no_attempt_follows_when_those_before_it_have_spent_all_there_was(program: Any, is_slow: bool) -> None:
    """In one session, and over many: between slow attempts the run rests in the store, and the bill with it."""
    made.clear()
    with TestWell(SkippingClock()) as well:
        run = well.start(program, is_slow, governance=Governance(cost=3))
        with pytest.raises(ExecutionFailed, match="has spent 3 and may spend 3"):
            run.result()
        assert made == [1, 2, 3]
        assert run.status() is Status.FAILED
        (record,) = well.load(run.execution_id).steps.values()
        assert record.output["error"]["kind"] == "GovernanceViolated"
        assert run.verify().ok


@step
async def fails_soon() -> None:
    raise ValueError("no")


@step
async def takes_long() -> str:
    await asyncio.sleep(60)
    return "done"


@step
async def puts_back() -> None:
    pass


@workflow
async def torn(_: None) -> None:
    stepwell.compensate(puts_back)
    await asyncio.gather(fails_soon(), takes_long())


def test_steps_under_way_in_other_branches_are_recorded_before_compensation() -> None:
    events = rehearse(torn).trace.events
    assert [event.name for event in events if event.kind == "step"] == ["fails_soon", "takes_long", "undo:puts_back"]


@step
async def counted(number: int) -> int:
    made.append(number)
    await asyncio.sleep(1)
    return number


@workflow
async def all_at_once(_: None) -> list[Any]:
    return await asyncio.gather(*(counted(number) for number in range(5)), return_exceptions=True)


def test_steps_that_are_under_way_together_count_before_they_are_done() -> None:
    made.clear()
    with TestWell(SkippingClock()) as well:
        run = well.start(all_at_once, governance=Governance(steps=3))
        with pytest.raises(ExecutionFailed):
            run.result()
        assert made == [0, 1, 2]


dear_once = step(retry=Retry(attempts=1), name="dear_once")(dear)


@workflow
async def stubborn(_: None) -> None:
    for _ in range(10):
        with contextlib.suppress(StepFailed):
            await dear_once()
        await stepwell.sleep("1d")


def test_what_a_step_spent_that_failed_for_good_is_not_forgotten_while_the_run_rests() -> None:
    made.clear()
    with TestWell(SkippingClock()) as well:
        run = well.start(stubborn, governance=Governance(cost=3))
        with pytest.raises(ExecutionFailed, match="has spent 3 and may spend 3"):
            run.result()
        assert made == [1, 1, 1]


@workflow
async def regretful(_: None) -> None:
    stepwell.compensate(puts_back)
    await fails_soon()


def test_budget_that_is_used_up_does_not_keep_anything_from_being_undone() -> None:
    with TestWell(SkippingClock()) as well:
        run = well.start(regretful, governance=Governance(steps=0))
        with pytest.raises(ExecutionFailed):
            run.result()
        assert well.load(run.execution_id).steps["undo:puts_back"].status == "COMPLETED"
