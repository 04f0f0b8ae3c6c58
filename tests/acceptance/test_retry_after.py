"""``RetryAfter``: a step says when its next attempt comes."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest
from tests.support.module_state import cleared
from tests.support.polling import until
from tests.support.process_steps import ask_to_wait

import stepwell
from stepwell import ExecutionFailed, FakeClock, InvalidInput, Retry, RetryAfter, Stepwell, step, workflow
from stepwell.flow import call, define

WAIT = 60
tries: list[int] = []


_cleared = cleared(tries)


@step(name="after.busy", retry=Retry(attempts=3, first_seconds="5h"))
async def busy(seconds: float) -> str:
    tries.append(stepwell.current().attempt)
    if len(tries) < 3:
        raise RetryAfter(seconds)
    return "done"


@step(name="after.plain", retry=Retry(attempts=3, first_seconds="5h"))
def plain_busy(seconds: float) -> str:
    tries.append(stepwell.current().attempt)
    if len(tries) < 3:
        raise RetryAfter(seconds, "the bank is busy")
    return "done"


@step(name="after.never", retry=Retry(attempts=2, first_seconds="5h"))
async def never() -> None:
    raise RetryAfter(0.001, "the bank is busy")


@step(name="after.once")
async def once() -> None:
    raise RetryAfter(0.001)


@workflow(name="after.work")
async def work(seconds: float) -> str:
    return await busy(seconds)


@workflow(name="after.plain_work")
def plain_work(seconds: float) -> str:
    return plain_busy(seconds)


@workflow(name="after.process_work")
async def process_work(seconds: float) -> str:
    return await ask_to_wait.aio(seconds)


@workflow(name="after.never_work")
async def never_work() -> None:
    await never()


declared = define("after.declared", call("after.busy", "{{ trigger.input }}"))
declared_with_policy = define(
    "after.declared_policy", call("after.never", retry=Retry(attempts=2, first_seconds="5h"), name="after")
)


@pytest.mark.parametrize("shape", [work, plain_work, process_work, declared], ids=["async", "plain", "process", "declared"])
def test_next_attempt_comes_after_that_time_and_not_by_the_policy(working_well: Any, shape: Any) -> None:
    run = working_well.start(shape, 0.01)
    assert run.result(WAIT) == "done"
    assert [attempt.number for attempt in run.steps()[0].attempts] == [1, 2, 3] or shape is process_work


@pytest.mark.parametrize("shape", [work, declared], ids=["function", "declared"])
def test_time_is_kept_to_the_millisecond_and_has_no_jitter(well: Any, clock: FakeClock, shape: Any) -> None:
    run = well.start(shape, 3601.234)
    until(lambda: run.progress().waiting)
    assert run.progress().waiting[0].until == clock.now() + timedelta(seconds=3601.234)


@pytest.mark.parametrize("shape", [never_work, declared_with_policy], ids=["function", "declared"])
def test_attempts_count_as_those_of_the_policy(working_well: Any, shape: Any) -> None:
    run = working_well.start(shape)
    with pytest.raises(ExecutionFailed, match="the bank is busy"):
        run.result(WAIT)
    [record] = [each for each in run.steps() if each.attempts]
    assert [str(attempt.error) for attempt in record.attempts] == ["RetryAfter: the bank is busy"] * 2


@workflow(name="after.once_work")
async def once_work() -> None:
    await once()


def test_step_without_a_policy_fails_at_once(working_well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="to be tried again after"):
        working_well.start(once_work).result(WAIT)


def test_time_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="RetryAfter"):
        RetryAfter("soon")
    assert RetryAfter("1h30m").seconds == 5400
    for twin in (copy.copy(RetryAfter(3, "why")), pickle.loads(pickle.dumps(RetryAfter(3, "why")))):
        assert (twin.seconds, str(twin)) == (3, "why")


def test_retry_after_is_kept_over_a_restart(file_url: str) -> None:
    with Stepwell(file_url) as first:
        run = first.start(work, 0.5, execution_id="r")
        until(lambda: run.progress().waiting)
    with Stepwell(file_url) as second:
        assert second.run("r").result(WAIT) == "done"
    assert tries == [1, 2, 3]
