"""Time limits: a step's own, and those that its code sets for what it waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.acceptance.conftest import working_well

from stepwell import ExecutionFailed, Retry, step, workflow

well = working_well

WAIT = 60
ONCE = Retry(attempts=1)


async def wait_for_nothing() -> None:
    async with asyncio.timeout(0.001):
        await asyncio.Event().wait()


@step(retry=ONCE)
async def impatient() -> None:
    await wait_for_nothing()


@step(retry=ONCE, timeout_seconds=3600)
async def impatient_with_a_limit() -> None:
    await wait_for_nothing()


@step(retry=ONCE, timeout_seconds=0.001)
async def slow() -> None:
    await asyncio.Event().wait()


@workflow
async def call(name: str) -> None:
    await {"impatient": impatient, "impatient_with_a_limit": impatient_with_a_limit, "slow": slow}[name]()


@pytest.mark.parametrize("name", ["impatient", "impatient_with_a_limit"])
def test_time_that_is_over_inside_a_step_is_told_as_it_is(well: Any, name: str) -> None:
    with pytest.raises(ExecutionFailed) as told:
        well.start(call, name).result(WAIT)
    assert "TimeoutError" in str(told.value)
    assert "took longer" not in str(told.value)


def test_step_that_takes_longer_than_it_may_says_so(well: Any) -> None:
    with pytest.raises(ExecutionFailed, match=r"TimeoutError.*step 'slow' took longer than 0\.001 s"):
        well.start(call, "slow").result(WAIT)
