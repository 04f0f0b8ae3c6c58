"""A well for tests: in memory, with a worker, on a clock that stands still, is moved by hand, or skips to the next timer."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from stepwell.app.blocking import Stepwell
from stepwell.app.host import Host
from stepwell.contract.store import Store
from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput
from stepwell.pipeline.operations import Driver, Effect, Operation, WaitEffect
from stepwell.testing.clock import VirtualClock, horizon
from stepwell.testing.event_loop import VirtualLoop

__all__ = ["SkippingClock", "TestWell"]

T = TypeVar("T")

_PATIENCE_SECONDS = 1.0
_GRACE_SECONDS = 0.0005
_LONGEST_ADVANCE_SECONDS = 60


class SkippingClock(VirtualClock):
    """A clock that stands still while every run waits. ``advance`` moves it; a caller that waits for a run's result skips to the
    time for which the run waits.

    While a step runs and no caller waits for a result, time passes as usual.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._target: float | None = None
        self._askers = 0
        self._has_been_graceful = False
        self._is_flowing = False
        self._loop: VirtualLoop | None = None
        self._store: Store | None = None

    # For tests.

    def advance(self, span: Span) -> None:
        """Move the time on: ``clock.advance("2h")``. Whatever comes due on the way happens at its time, before this returns."""
        seconds = seconds_of(span, "the time to advance")
        if self._loop is None:
            self.move_to(self.elapsed + seconds)
            return
        if self._loop.is_mine():
            raise InvalidInput("the clock is moved from a test, not from inside of a workflow or a step")
        with self._changed:
            self._target = self.elapsed + seconds
            self._loop.wake()
            if not self._changed.wait_for(lambda: self._target is None, _LONGEST_ADVANCE_SECONDS):
                self._target = None
                raise TimeoutError(f"the clock could not be moved by {span!r} within {_LONGEST_ADVANCE_SECONDS} real seconds")

    @contextmanager
    def skipping(self) -> Generator[None]:
        """Skip to the next timer of a run while this context is entered."""
        with self._changed:
            self._askers += 1
        if self._loop is not None:
            self._loop.wake()
        try:
            yield
        finally:
            with self._changed:
                self._askers -= 1

    # For the loop of the worker.

    def make_loop(self, store: Store) -> VirtualLoop:
        """Return an event loop on this clock."""
        self._store = store
        self._loop = VirtualLoop(self, self, patience_seconds=_PATIENCE_SECONDS)
        return self._loop

    def leave_loop(self) -> None:
        """Forget the loop of a worker that has ended."""
        self._loop = None

    def idle(self, clock: VirtualClock, seconds: float | None, are_threads_running: bool) -> float | None:
        """Move time when nothing is left to do at this time and a caller waits."""
        far = None if self._store is None else horizon(self._store, self)
        with self._changed:
            self._is_flowing = False
            if self._target is not None:
                return self._idle_on_the_way(self._target, seconds, far)
            if self._askers and not are_threads_running:
                return self._idle_with_askers(seconds, far)
            if far is not None or are_threads_running:
                return None
            self._is_flowing = True
            return seconds

    def _idle_on_the_way(self, target: float, seconds: float | None, far: float | None) -> float:
        if self.has_reached(target):
            self._target = None
            self._changed.notify_all()
        else:
            hop = far if far is not None else seconds
            self.move_to(target if hop is None else min(self.elapsed + hop, target))
        return 0

    def _idle_with_askers(self, seconds: float | None, far: float | None) -> float | None:
        hop = seconds if far is None else far
        if hop is None or hop == float("inf"):
            return None
        # A moment for what comes from other threads, or a step that waits for one would see years go by.
        self._has_been_graceful = not self._has_been_graceful
        if self._has_been_graceful:
            return _GRACE_SECONDS
        self.move_to(self.elapsed + hop)
        return 0

    def waited(self, clock: VirtualClock, seconds: float) -> None:
        """Count real time only while something runs and no caller waits."""
        if self._is_flowing:
            self.move_to(self.elapsed + seconds)


class _SkippingDriver(Driver):
    """Lets time skip while a caller waits for the end of a run."""

    def __init__(self, within: Driver, clock: SkippingClock) -> None:
        self._within, self._clock = within, clock

    def run(self, operation: Operation[T]) -> T:
        return self._within.run(self._watched(operation))

    def _watched(self, operation: Operation[T]) -> Operation[T]:
        try:
            effect = operation.send(None)
            while True:
                try:
                    answer = yield from self._done(effect)
                except BaseException as error:  # noqa: BLE001 - the operation decides what to do about it
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as end:
            return end.value

    def _done(self, effect: Effect) -> Operation[object]:
        if isinstance(effect, WaitEffect) and effect.listening.topic.startswith("end:"):
            with self._clock.skipping():
                return (yield effect)
        return (yield effect)


class TestWell(Stepwell):
    """A well in memory whose worker keeps time with a clock of the test."""

    __test__ = False  # not a class of tests, whatever its name begins with

    def __init__(self, clock: SkippingClock, *, concurrency: int = 100, lease_seconds: float = 30) -> None:
        self.clock = clock
        super().__init__("memory://", clock=clock, concurrency=concurrency, lease_seconds=lease_seconds)

    def _make_host(self) -> Host:
        parts, clock = self._parts, self.clock
        host = Host(
            parts, self.concurrency, self.lease_seconds, self.queues, lambda: self.worker, lambda: clock.make_loop(parts.store)
        )
        host.driver = _SkippingDriver(host.driver, clock)
        return host

    def close(self) -> None:
        """Close it, and leave the clock without a loop."""
        super().close()
        self.clock.leave_loop()
