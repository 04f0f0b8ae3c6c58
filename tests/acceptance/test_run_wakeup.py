"""A run that rests with a time is resumed at that time by a worker of its own process, without a look at the store in between."""

from __future__ import annotations

from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell

import stepwell
from stepwell import Status, workflow
from stepwell.flow import define, wait

WAIT = 20


@workflow(name="wakeup.sleeps")
async def sleeps() -> str:
    await stepwell.sleep(0.5)
    return "awake"


@workflow(name="wakeup.sleeps_plainly")
def sleeps_plainly() -> str:
    stepwell.sleep(0.5)
    return "awake"


declared = define("wakeup-declared", wait(0.5))


@pytest.mark.parametrize("way", [sleeps, sleeps_plainly, declared], ids=["async", "plain", "declared"])
def test_run_that_rests_wakes_the_worker_of_its_process_in_time(
    open_well: OpenWell, url: str, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.runtime.worker._POLL_SECONDS", 3600.0)
    run: Any = open_well(url).start(way)
    run.result(WAIT)
    assert run.status() == Status.COMPLETED
    rests = [change for receipt in run.receipts() for change in receipt.mutations if change.get("status") == "WAITING"]
    assert rests, "it slept without a worker"
