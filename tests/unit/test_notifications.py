"""Notifications: a waiter is woken by what happens after it began to wait, and not by other topics."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from stepwell.errors import Conflict
from stepwell.model.commit import Deletion, StateBatch, Sweep, Unlock, Written
from stepwell.pipeline import notifications as module
from stepwell.pipeline.notifications import LOCK, STATE, Notifications, Subscription


class Wire:
    """The part of a store that tells of other processes."""

    def __init__(self) -> None:
        self.wake: Callable[[str], None] | None = None
        self.begun = 0

    def listen(self, wake: Callable[[str], None]) -> Callable[[], None]:
        self.wake, self.begun = wake, self.begun + 1
        return self._end

    def _end(self) -> None:
        self.wake = None


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def notifications(wire: Wire) -> Notifications:
    return Notifications(wire)


def is_woken(listening: Subscription) -> bool:
    """Whether it was told, so that its wait is none."""
    is_told = not is_quiet(listening)
    listening.wait(60)
    return is_told


def is_quiet(listening: Subscription) -> bool:
    return not listening._has_heard


def test_store_is_listened_to_only_while_somebody_waits(notifications: Notifications, wire: Wire) -> None:
    assert wire.wake is None
    with notifications.listen(STATE):
        with notifications.listen(LOCK):
            assert wire.begun == 1
        assert wire.wake is not None
    assert wire.wake is None
    with notifications.listen(STATE):
        assert wire.begun == 2


def test_what_happened_before_the_wait_is_not_missed(notifications: Notifications) -> None:
    with notifications.listen(STATE) as listening:
        notifications.notify(STATE)
        assert is_woken(listening)
        assert is_quiet(listening)


def test_other_topics_wake_nobody_and_an_empty_one_wakes_all(notifications: Notifications, wire: Wire) -> None:
    with notifications.listen(STATE) as state, notifications.listen(LOCK) as lock:
        notifications.notify(LOCK)
        assert is_quiet(state)
        assert is_woken(lock)
        wire.wake("")
        assert is_woken(state)
        assert is_woken(lock)


@pytest.mark.parametrize(
    ("unit", "topic"),
    [(StateBatch(()), STATE), (Sweep(0), STATE), (Unlock("l", "h", 1), LOCK)],
)
def test_writes_of_this_process_are_passed_on(notifications: Notifications, unit: object, topic: str) -> None:
    with notifications.listen(STATE) as state, notifications.listen(LOCK) as lock:
        notifications.written([unit], [Conflict()])
        assert is_quiet(state)
        assert is_quiet(lock)
        notifications.written([Deletion("x"), unit], [Written(), Written()])
        assert is_woken(state if topic == STATE else lock)
        assert is_quiet(lock if topic == STATE else state)


class Ear:
    """A gate to wait at that notes how long one would sleep, and says when one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.spans: list[float] = []
        self.begun = threading.Event()
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self, *, timeout: float) -> bool:
        self.spans.append(timeout)
        self.begun.set()
        return self._lock.acquire(timeout=timeout)


def test_a_wait_ends_in_time_without_news(notifications: Notifications) -> None:
    with notifications.listen(STATE) as listening:
        ear = listening._gate = Ear()
        listening.wait(0.01)
        listening.wait(-5)
        listening.wait(60)
        assert ear.spans == [0.01, 0, 1]


@pytest.fixture
def _endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter that is not woken sleeps until the time limit of the test."""
    monkeypatch.setattr(module, "_LONGEST_SLEEP_SECONDS", 600)


@pytest.mark.usefixtures("_endless")
def test_a_thread_that_waits_is_woken(notifications: Notifications) -> None:
    with notifications.listen(STATE) as listening:
        ear = listening._gate = Ear()
        threading.Thread(target=lambda: ear.begun.wait() and notifications.notify(STATE)).start()
        listening.wait(600)
        assert ear.spans == [600]


@pytest.mark.usefixtures("_endless")
def test_a_coroutine_that_waits_is_woken_from_another_thread(notifications: Notifications) -> None:
    async def main() -> None:
        with notifications.listen(STATE) as listening:
            await listening.wait_async(0.001)
            for _ in range(20):
                threading.Thread(target=notifications.notify, args=(STATE,)).start()
                await listening.wait_async(600)
            notifications.notify(STATE)
            await listening.wait_async(600)

    asyncio.run(main())


def test_a_loop_that_is_gone_troubles_nobody(notifications: Notifications) -> None:
    listening = notifications.listen(STATE)

    async def main() -> None:
        await listening.wait_async(0.001)

    with listening:
        asyncio.run(main())
        notifications.notify(STATE)


def test_nobody_waits_nothing_is_done(notifications: Notifications, wire: Wire) -> None:
    notifications.written([StateBatch(())], [Written()])
    assert wire.begun == 0


def is_interrupted_after(opcodes: int, function: Callable[[], None]) -> bool:
    """Whether a function takes so many of Python's instructions: then it is interrupted there."""
    left, before = opcodes, sys.gettrace()

    def count(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            raise KeyboardInterrupt
        return count

    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for it when tracing begins
    sys.settrace(count)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_interrupt_at_any_point_of_a_wait_is_told_as_one_and_leaves_it_sound(notifications: Notifications) -> None:
    """A wait on an Event tells a few of them as RuntimeError: release unlocked lock."""
    opcodes = 1
    with notifications.listen(STATE) as listening:
        while is_interrupted_after(opcodes, lambda: listening.wait(0)):
            opcodes += 1
            notifications.notify(STATE)
            assert is_woken(listening)
            assert is_quiet(listening)
    assert opcodes > 30
