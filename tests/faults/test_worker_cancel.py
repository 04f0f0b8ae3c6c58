"""A request to cancel that comes at any moment of a run: it ends once, in one way, and its receipts say which (T40)."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from tests.support.store_urls import url_of

import stepwell
from stepwell import ExecutionEnded, NotFound, Status, Stepwell, fault_points, step, workflow
from stepwell.testing.store_access import worker_of

WAIT = 60
calls: Counter[str] = Counter()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param, request)


@step
async def one(name: str) -> str:
    calls[name] += 1
    return name


@step
def two(name: str) -> str:
    calls[name] += 1
    return name


@workflow
async def child_of(name: str) -> str:
    return await one(f"child of {name}")


@workflow
async def story(name: str) -> list[str]:
    return [await one(name), await child_of(name), await two(name)]


class CancelAt:
    """Has a run cancelled, from another thread, when the process comes to its nth point."""

    def __init__(self, run: Any, hit: int) -> None:
        self._run, self._left, self._lock = run, hit, threading.Lock()
        self.outcome = "never asked"
        self._thread: threading.Thread | None = None

    def __call__(self, point: str) -> None:
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return
            self._thread = threading.Thread(target=self._cancel)
            self._thread.start()

    def _cancel(self) -> None:
        try:
            self._run.cancel()
            self.outcome = "asked"
        except ExecutionEnded:
            self.outcome = "too late"
        except NotFound:
            self.outcome = "too early"

    def wait(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()


def test_cancel_at_any_moment_leaves_one_end_and_no_step_twice(url: str) -> None:
    """T40: against claim, start, completion, and the end of a child."""
    outcomes: Counter[tuple[str, str]] = Counter()
    calls.clear()
    with Stepwell(url) as well, Stepwell(url, worker=False) as other:
        for hit in range(1, 260, 13):
            name = f"run-{hit}"
            cancel = CancelAt(other.run(name), hit)
            with fault_points.armed(cancel):
                run = well.start(story, name, execution_id=name)
                status = _end_of(run)
                cancel.wait()
            outcomes[cancel.outcome, status] += 1
            assert status == Status.COMPLETED or cancel.outcome == "asked"
            ends = [
                each["status"]
                for receipt in run.receipts()
                for each in receipt.mutations
                if each["type"] == "set_status" and each["status"] in ("COMPLETED", "CANCELLED", "FAILED")
            ]
            assert ends == [status]
            assert run.verify().ok
            assert well.load(name).tokens == {}
    assert {status for _, status in outcomes} == {Status.COMPLETED, Status.CANCELLED}
    assert set(calls.values()) <= {1, 2}
    assert all(count == 1 for name, count in calls.items() if name.startswith("child"))


def _end_of(run: Any) -> Status:
    with suppress(stepwell.ExecutionCancelled, stepwell.ExecutionFailed):
        run.result(WAIT)
    return run.status()


def _wait_until(is_so: Any) -> None:
    """Look again and again until something is so; the test's own time limit ends it."""
    while not is_so():
        threading.Event().wait(0.005)


entered, release = threading.Event(), threading.Event()


@step
def holds() -> str:
    entered.set()
    assert release.wait(WAIT)
    return "late"


@workflow
async def holding() -> str:
    return await holds()


def test_late_completion_of_a_step_of_a_cancelled_run_is_recorded_and_changes_nothing(url: str) -> None:
    """T40: the step that is being made finishes; the run is cancelled all the same, and cannot be cancelled again."""
    entered.clear()
    release.clear()
    with Stepwell(url) as well:
        run = well.start(holding)
        assert entered.wait(WAIT)
        run.cancel()
        _wait_until(lambda: worker_of(well).sessions[run.execution_id]._waits.cancel is not None)
        release.set()
        with pytest.raises(stepwell.ExecutionCancelled):
            run.result(WAIT)
        assert run.state().get_step_output("holds").output == "late"
        with pytest.raises(ExecutionEnded):
            run.cancel()
        assert run.status() == Status.CANCELLED
