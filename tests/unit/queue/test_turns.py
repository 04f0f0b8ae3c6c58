"""While a dispatcher is busy, threads get the interpreter from each other sooner; afterwards all is as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from stepwell import QueueRequest, Stepwell, workflow
from stepwell.runtime.host_tuning import TURN_SECONDS, SwitchIntervalTuning

WAIT = 60
USUAL = 0.005
intervals: list[float] = []


@workflow(name="turns.tell")
async def tell() -> None:
    intervals.append(sys.getswitchinterval())


@pytest.fixture(autouse=True)
def _as_python_has_it() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def test_turns_are_quick_while_anybody_wants_it_and_not_after():
    one, other = SwitchIntervalTuning(), SwitchIntervalTuning()
    for who, wants, interval in [
        (one, True, TURN_SECONDS),
        (one, True, TURN_SECONDS),
        (other, True, TURN_SECONDS),
        (one, False, TURN_SECONDS),
        (one, False, TURN_SECONDS),
        (other, False, USUAL),
        (other, False, USUAL),
    ]:
        who.want(wants)
        assert sys.getswitchinterval() == pytest.approx(interval)


def test_what_is_quicker_already_stays():
    sys.setswitchinterval(0.0005)
    turns = SwitchIntervalTuning()
    for wants in (True, False):
        turns.want(wants)
        assert sys.getswitchinterval() == pytest.approx(0.0005)


def test_what_somebody_sets_meanwhile_stays():
    with SwitchIntervalTuning() as turns:
        turns.want(True)
        sys.setswitchinterval(0.01)
    assert sys.getswitchinterval() == pytest.approx(0.01)


def test_worker_that_is_full_of_other_runs_has_turns_as_usual():
    """Their commits had better gather."""
    intervals.clear()
    with Stepwell("memory://", concurrency=1) as well:
        for run in [well.start(tell) for _ in range(5)]:
            run.result(WAIT)
    assert intervals == [pytest.approx(USUAL)] * 5


def test_dispatcher_has_quick_turns_while_the_queue_is_full_and_puts_them_back():
    intervals.clear()
    with Stepwell("memory://", concurrency=4) as well:
        well.enqueue(tell).result(WAIT)
        assert intervals == [pytest.approx(USUAL)]  # one item is no crowd
        items = well.enqueue_many([QueueRequest(workflow=tell, value={}) for _ in range(200)])
        for item in items:
            well.queue.item(item.item_id).result(WAIT)  # type: ignore[union-attr]
        assert min(intervals) == pytest.approx(TURN_SECONDS)
        while sys.getswitchinterval() != pytest.approx(USUAL):  # until the dispatcher has found nothing more
            threading.Event().wait(0.005)
    assert sys.getswitchinterval() == pytest.approx(USUAL)
