"""A run that rests with a time is resumed at that time by a worker of its own process, without a look at the store in between."""

from __future__ import annotations

from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell

import stepwell
from stepwell import Status, workflow
from stepwell.flow import define, wait
from stepwell.model.commit import Commit, Unit
from stepwell.pipeline.notifications import DUE, topics_of

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


def test_run_that_rests_wakes_its_worker_though_its_last_commit_told_it_too_early(
    open_well: OpenWell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker may have looked, and gone to sleep, before the session that made the commit gave it the time."""

    def topics(unit: Unit) -> set[str]:
        return topics_of(unit) - ({DUE} if isinstance(unit, Commit) and unit.rest is not None else set())

    monkeypatch.setattr("stepwell.pipeline.notifications.topics_of", topics)
    monkeypatch.setattr("stepwell.runtime.worker._POLL_SECONDS", 3600.0)
    assert open_well("memory://").start(sleeps).result(WAIT) == "awake"
