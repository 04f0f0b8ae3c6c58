"""A worker's commits carry the fence of its lease: a late one is refused though the worker has noticed nothing (T05, T32)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.polling import until

from stepwell import FakeClock, Stepwell, step, workflow
from stepwell.flow import call, define
from stepwell.model.commit import Claim, Lease, Written
from stepwell.testing.store_access import write_unit_or_raise

entered, release = threading.Event(), threading.Event()


@step
def fenced_step(number: int) -> int:
    entered.set()
    assert release.wait(60)
    return number


@workflow
async def fenced(number: int) -> int:
    return await fenced_step(number)


@pytest.mark.parametrize("program", [fenced, define("fenced-declared", call("fenced_step", 1, name="fenced_step"))])
def test_late_commit_is_refused_by_the_fence_alone(program: Any, caplog: pytest.LogCaptureFixture) -> None:
    """By the store's clock the lease is over and somebody else has the run; the worker's own clock has hardly moved."""
    clock = FakeClock()
    entered.clear()
    release.clear()
    with Stepwell("memory://", clock=clock, lease_seconds=600) as well:
        run = well.start(program, 1, execution_id="f")
        assert entered.wait(60)
        clock.advance(seconds=601)
        claimed = write_unit_or_raise(well, Claim("f", "somebody else", 600))
        assert isinstance(claimed, Written)
        assert isinstance(claimed.answers[0], Lease)
        revision = well.load("f").revision
        release.set()
        until(lambda: "no longer this worker's" in caplog.text or well.load("f").revision > revision)
        state = well.load("f")
        assert (state.revision, dict(state.steps)) == (revision, {})
        assert run.verify().ok
