"""A step that blocks the event loop for longer than its lease: no run is taken over, and the log names the step."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from stepwell import AsyncStepwell, Status, Stepwell, step, workflow

WAIT = 30
LEASE = 1
calls: Counter[str] = Counter()
entered = threading.Event()


def compute() -> None:
    """Hold the loop for several leases, and long enough for the watchdog."""
    time.sleep(3 * LEASE)


@step(name="blocked.blocking")
async def blocking() -> str:
    calls["blocking"] += 1
    entered.set()
    compute()
    return "blocked"


@step(name="blocked.beside")
async def beside() -> str:
    calls["beside"] += 1
    await asyncio.sleep(0.1)
    return "beside"


@workflow(name="blocked.blocks")
async def blocks() -> str:
    return await blocking()


@workflow(name="blocked.goes_beside")
async def goes_beside() -> str:
    return await beside()


@workflow(name="blocked.itself")
async def itself() -> str:
    compute()
    return "blocked"


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()
    entered.clear()


def test_runs_on_a_blocked_loop_keep_their_leases(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path}/well.db?synchronous=NORMAL"
    with Stepwell(url, lease_seconds=LEASE) as first, caplog.at_level(logging.WARNING):
        runs = [first.start(goes_beside), first.start(blocks)]
        assert entered.wait(WAIT)
        with Stepwell(url, lease_seconds=LEASE):  # takes over whatever comes due
            assert [run.result(WAIT) for run in runs] == ["beside", "blocked"]
    assert calls == {"blocking": 1, "beside": 1}
    [told] = [each.getMessage() for each in caplog.records if "blocked the event loop" in each.getMessage()]
    assert f"step 'blocked.blocking' of execution {runs[1].execution_id!r}" in told
    assert "time.sleep(3 * LEASE)" in told, "the stack of the step"
    assert "stepwell/runtime" not in told


def test_workflow_code_that_blocks_the_loop_is_logged_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    with Stepwell("memory://") as well, caplog.at_level(logging.WARNING):
        well.start(itself).result(WAIT)
    [told] = [each.getMessage() for each in caplog.records if "blocked the event loop" in each.getMessage()]
    assert "in itself" in told


def test_quiet_loop_is_left_alone_and_its_watchdog_ends_with_the_well() -> None:
    async def use() -> Status:
        async with AsyncStepwell("memory://") as well:
            run = await well.start(goes_beside)
            await run.result(WAIT)
            return await run.status()

    assert asyncio.run(use()) == Status.COMPLETED
    for thread in threading.enumerate():
        if thread.name == "stepwell-watchdog":
            thread.join(WAIT)
            assert not thread.is_alive()
