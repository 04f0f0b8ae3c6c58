"""Governance (D17), time limits of whole runs, and retry policies that stay what they were (D8)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from tests.acceptance.conftest import working_well
from tests.acceptance.faces import step_records
from tests.support.module_state import cleared

import stepwell
from stepwell import (
    ExecutionFailed,
    ExecutionTimedOut,
    FakeClock,
    Governance,
    GovernanceViolated,
    InvalidDefinition,
    InvalidInput,
    Retry,
    Status,
    StepFailed,
    Stepwell,
    step,
    workflow,
)
from stepwell.flow import define
from stepwell.testing import SkippingClock, TestWell

well = working_well

WAIT = 60
calls: Counter[str] = Counter()


_cleared = cleared(calls)


@step
async def work(number: int) -> int:
    calls["work"] += 1
    return number


@step(retry=Retry(attempts=2, first_seconds=0))
async def ask(cents: float) -> float:
    calls["ask"] += 1
    stepwell.current().spend(cents)
    if calls["ask"] == 1:
        raise ConnectionError("the answer was lost, but not the bill")
    return cents


@step(effect="http")
async def fetch(page: str) -> str:
    calls["fetch"] += 1
    return page


@workflow
async def busy(times: int) -> int:
    for number in range(times):
        await work(number)
    return times


@workflow
async def expensive(times: int) -> int:
    for _ in range(times):
        await ask(0.5)
    return times


@workflow
async def surfing(page: str) -> str:
    return await fetch(page)


@workflow
async def careful(page: str) -> str:
    try:
        return await fetch(page)
    except GovernanceViolated as error:
        return error.message


@workflow
async def surfing_parent(page: str) -> str:
    return await surfing(page)


def test_step_over_the_budget_is_refused_and_the_refusal_is_on_record(well: Any) -> None:
    run = well.start(busy, 3, governance=Governance(steps=2))
    with pytest.raises(ExecutionFailed, match=r"GovernanceViolated.*2 steps and may run 2"):
        run.result(WAIT)
    assert calls["work"] == 2
    assert "SW-404" in str(run.receipts()[-2].mutations)
    assert step_records(run)["work#3"].status == "FAILED"
    assert run.verify().ok


def test_run_within_its_budget_ends_well(well: Any) -> None:
    assert well.start(busy, 2, governance=Governance(steps=2, cost=0, effects=())).result(WAIT) == 2


def test_what_steps_spend_counts_whether_they_fail_or_not(well: Any) -> None:
    run = well.start(expensive, 5, governance=Governance(cost=1.5))
    with pytest.raises(ExecutionFailed, match=r"has spent 1\.5 and may spend 1\.5"):
        run.result(WAIT)
    assert calls["ask"] == 3


@workflow(name="gov.cheating")
async def cheating() -> None:
    await ask(0.5)
    stepwell.current().variables["$spent"] = 0


def test_code_cannot_change_what_its_steps_have_spent(well: Any) -> None:
    run = well.start(cheating)
    with pytest.raises(ExecutionFailed, match=r"InvalidInput: variable '\$spent' is Stepwell's own"):
        run.result(WAIT)
    assert run.state().get_variable("$spent") == 1.0
    with pytest.raises(InvalidDefinition, match=r"'\$spent' is Stepwell's own"):
        define("gov-credit", "ask", variables={"$spent": -100})


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "much"])
def test_what_is_spent_is_a_number(wrong: Any) -> None:
    @step
    async def spends() -> None:
        stepwell.current().spend(wrong)

    @workflow
    async def spending() -> str:
        try:
            await spends()
        except StepFailed as error:
            return error.kind
        return "spent"

    with Stepwell("memory://") as well:
        assert well.start(spending).result(WAIT) == "InvalidInput"


def test_effects_of_other_kinds_are_refused(well: Any) -> None:
    allowed = Governance(effects=("database",))
    with pytest.raises(ExecutionFailed, match="kind 'http', and this execution may have only database"):
        well.start(surfing, "x", governance=allowed).result(WAIT)
    assert "may have only database" in well.start(careful, "x", governance=allowed).result(WAIT)
    assert calls["fetch"] == 0
    assert well.start(surfing, "x", governance=Governance(effects=["http"])).result(WAIT) == "x"


def test_child_may_have_no_effects_that_its_parent_may_not(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="kind 'http'"):
        well.start(surfing_parent, "x", governance=Governance(effects=())).result(WAIT)
    assert calls["fetch"] == 0


@workflow(governance=Governance(steps=1))
async def modest(times: int) -> int:
    return await busy.function(times)


def test_workflow_has_a_governance_that_a_start_can_replace(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match="may run 1"):
        well.start(modest, 2).result(WAIT)
    assert well.start(modest, 2, governance=Governance(steps=2)).result(WAIT) == 2


def test_governance_that_makes_no_sense_names_every_fault() -> None:
    with pytest.raises(InvalidInput) as caught:
        Governance(steps=-1, seconds=0, cost=float("nan"), effects="http")  # pyright: ignore[reportArgumentType]
    assert [fault.message.partition("=")[0] for fault in caught.value.errors] == [
        "Governance(steps",
        "Governance(seconds",
        "Governance(cost",
        "Governance(effects",
    ]


@workflow(timeout=0.3)
async def hasty(how: str) -> str:
    try:
        if how == "waits":
            await stepwell.wait_signal("never")
        elif how == "sleeps":
            await stepwell.sleep("1h")
        elif how == "works":
            await dawdle()
        else:
            await dawdle_once()
    except ExecutionTimedOut:
        await work(1)
        raise
    return "in time"


@step(retry=Retry(attempts=9, first_seconds=0.001))
async def dawdle() -> None:
    calls["dawdle"] += 1
    await asyncio.Event().wait()


@step
async def dawdle_once() -> None:
    calls["dawdle"] += 1
    await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["waits", "sleeps"])
def test_run_that_takes_too_long_is_told_and_fails(well: Any, how: str) -> None:
    """D8: timeouts of an execution; its code can clean up."""
    run = well.start(hasty, how)
    with pytest.raises(ExecutionFailed, match="ExecutionTimedOut"):
        run.result(WAIT)
    assert calls == {"work": 1}


@pytest.mark.parametrize("how", ["works", "works once"])
def test_run_that_is_too_long_in_a_step_is_told_and_fails(how: str) -> None:
    """D8: by a clock that goes on only when all wait: on a busy machine, the time could be over before the step has begun."""
    with TestWell(SkippingClock()) as well, pytest.raises(ExecutionFailed, match="ExecutionTimedOut"):
        well.start(hasty, how).result(WAIT)
    assert calls == {"work": 1, "dawdle": 1}


def test_time_of_a_governance_is_a_limit_too(well: Any) -> None:
    @workflow
    async def waits() -> None:
        await stepwell.wait_signal("never")

    with pytest.raises(ExecutionFailed, match="ExecutionTimedOut"):
        well.start(waits, governance=Governance(seconds=0.01)).result(WAIT)


@step(retry=Retry(attempts=3, first_seconds=30))
async def stubborn() -> None:
    calls["stubborn"] += 1
    raise ConnectionError("no")


@workflow
async def patient() -> None:
    await stubborn()


def test_call_keeps_the_policy_that_it_failed_under_and_history_shows_its_attempts(file_url: str) -> None:
    """D8: policies are frozen per call; a deployment with another one is for later calls."""
    clock = FakeClock()
    with Stepwell(file_url, clock=clock) as well:
        run = well.start(patient, execution_id="p")
        _wait_until(lambda: run.status() == Status.WAITING)
    before, stubborn.retry = stubborn.retry, Retry(attempts=1)
    try:
        with Stepwell(file_url, clock=clock) as well:
            run = well.run("p")
            clock.advance(60)
            _wait_until(lambda: calls["stubborn"] == 2 and run.status() == Status.WAITING)
            clock.advance(120)
            with pytest.raises(ExecutionFailed):
                run.result(WAIT)
            assert calls["stubborn"] == 3
            told = [str(each["mutations"]) for each in run.history()]
    finally:
        stubborn.retry = before
    attempts = [text for text in told if "'attempt': 1" in text or "'attempt': 2" in text or "'attempts': 3" in text]
    assert len(attempts) == 3
    assert all("ConnectionError" in text for text in attempts)


class Rejected(Exception):
    status_code = 422


@step(retry=Retry(attempts=5, first_seconds=0))
async def posts(status: int) -> None:
    calls[str(status)] += 1
    error = Rejected(f"status {status}")
    error.status_code = status
    raise error


@workflow
async def posting(status: int) -> str:
    try:
        await posts(status)
    except StepFailed as error:
        return error.error_class
    return "posted"


@pytest.mark.parametrize(
    ("status", "name", "attempts"), [(422, "http_client", 1), (429, "http_client", 5), (503, "http_server", 5)]
)
def test_error_that_another_attempt_cannot_mend_is_not_tried_again(well: Any, status: int, name: str, attempts: int) -> None:
    """D9: classes of errors, and whether they are retryable."""
    run = well.start(posting, status)
    assert run.result(WAIT) == name
    assert calls[str(status)] == attempts
    error = step_records(run)["posts"].error
    assert error.is_retryable == (attempts > 1)
    assert error.suggestion


@workflow
async def posting_on(status: int) -> None:
    try:
        await posts(status)
    except StepFailed:
        await stepwell.sleep(0.001)  # so that the failure is also raised from its record
        raise


@pytest.mark.parametrize(("status", "is_retryable"), [(422, False), (429, True), (503, True)])
def test_failed_run_is_retryable_as_the_last_attempt_of_its_step_was(well: Any, status: int, is_retryable: bool) -> None:
    run = well.start(posting_on, status)
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    error = well.load(run.execution_id).result["error"]
    assert error["is_retryable"] == is_retryable
    assert ("will not help" in error["suggestion"]) != is_retryable


def _wait_until(is_so: Any) -> None:
    """Look again and again until something is so; the test's own time limit ends it."""
    while not is_so():
        threading.Event().wait(0.005)
