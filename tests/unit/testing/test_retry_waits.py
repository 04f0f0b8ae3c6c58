"""A retry waits for its time, even if the run is taken up for another reason meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import stepwell
from stepwell import Retry, step, workflow
from stepwell.flow import call, define
from stepwell.testing import SkippingClock, TestWell

made: list[str] = []


@step(retry=Retry(attempts=3, first_seconds="1h", max_seconds="1h", jitter=0))
async def patient(number: int) -> int:
    made.append(stepwell.current().idempotency_key)
    if stepwell.current().attempt == 1:
        raise ConnectionError("not yet")
    return number


@workflow
async def patient_code(number: int) -> int:
    return await patient(number)


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
def well(clock: SkippingClock) -> Iterator[TestWell]:
    made.clear()
    with TestWell(clock) as opened:
        yield opened


@pytest.mark.parametrize("program", [patient_code, define("patient-declared", call("patient", 7, name="patient"))])
def test_run_that_is_woken_while_a_retry_waits_does_not_retry_early(program: Any, well: TestWell, clock: SkippingClock) -> None:
    """A signal that nobody waits for brings the run to a worker; its attempt is not due."""
    run = well.start(program, 7, execution_id="p")
    clock.advance("30m")
    run.signal("anything")
    clock.advance("29m")
    assert made == ["p:patient"]
    clock.advance("2m")
    assert made == ["p:patient"] * 2
    assert run.result() == 7
