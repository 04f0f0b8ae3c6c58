"""An event loop on virtual time: when nothing is left to do, time moves on to the next timer, without real waiting."""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeVar

from stepwell.testing.clock import VirtualClock
from stepwell.testing.loop_threads import ThreadCall, ThreadTurn, ThreadTurns

__all__ = ["Admission", "Belongs", "Pace", "SkippingPace", "Stuck", "VirtualLoop", "owner"]

T = TypeVar("T")

_OWN_SOCKETS = 1  # by which other threads wake it


class Stuck(AssertionError):
    """The loop is idle for ever: no callback, timer or thread is left."""


class Admission:
    """A due callback and its context: all steps of a task must run in the task's own context."""

    __slots__ = ("arguments", "callback", "context", "handle")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context) -> None:
        self.callback, self.arguments, self.context = callback, arguments, context
        self.handle: asyncio.Handle | None = None

    def call(self) -> None:
        """Call it, unless it was cancelled meanwhile. Inside its context."""
        if self.handle is None or not self.handle.cancelled():
            self.callback(*self.arguments)


class Belongs(Protocol):
    """An owner of callbacks, which decides when they run."""

    def admit(self, call: Admission) -> None:
        """Call it now, or keep it for later."""
        ...

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """Remember a task that the owner started."""
        ...


owner: ContextVar[Belongs | None] = ContextVar("stepwell_owner", default=None)
"""Whose the running code is; None for the test itself."""


class Pace(Protocol):
    """Moves time when the loop has nothing to do."""

    def idle(self, clock: VirtualClock, seconds: float | None, are_threads_running: bool) -> float | None:
        """Called with the seconds to the next timer (None: there is none). Moves the clock and gives 0, or gives the real seconds
        to wait for something to come from outside (None: as long as it takes)."""
        ...

    def waited(self, clock: VirtualClock, seconds: float) -> None:
        """Count real seconds that were spent waiting."""
        ...


class SkippingPace:
    """Time goes to the next timer at once; with a horizon, past timers that only poll, to the next time that matters."""

    def __init__(self, horizon: Callable[[], float | None] = lambda: None, stuck: Callable[[], None] = lambda: None) -> None:
        self._horizon, self._stuck = horizon, stuck
        """Seconds to the next time that matters: None while something is under way, infinite if there is none, which is told."""

    def idle(self, clock: VirtualClock, seconds: float | None, are_threads_running: bool) -> float | None:
        """Skip to the next timer, unless a thread works: it takes real time."""
        if are_threads_running:
            return None
        far = self._horizon()
        if far == math.inf:
            self._stuck()
        hop = seconds if far is None or far == math.inf else max(far, seconds or 0.0)
        if hop is None:
            raise Stuck("everything waits, and no timer will ever end it")
        clock.move_to(clock.elapsed + hop)
        return 0

    def waited(self, clock: VirtualClock, seconds: float) -> None:
        """Do nothing: real time does not count."""


class _Selector(selectors.BaseSelector):
    """A real selector that is asked between callbacks, and for longer only when the pace says so."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._real, self._loop = selectors.DefaultSelector(), loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.take_turns()
        events = self._real.select(0)
        if events or timeout == 0 or self._loop.has_calls:
            return events
        return self._loop.wait_idle(timeout, self._real)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs on a virtual clock. Sockets work, too: while any is open, they get ``patience_seconds`` before time is moved."""

    def __init__(self, clock: VirtualClock, pace: Pace, *, patience_seconds: float | None = None) -> None:
        self.clock, self._pace, self._patience = clock, pace, patience_seconds
        self._turns = ThreadTurns(patience_seconds)
        self._asking: ThreadTurn | None = None
        self._handed = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self.clock.elapsed

    def is_mine(self) -> bool:
        """Return whether the calling thread is this loop's, or takes turns with it."""
        try:
            return asyncio.get_running_loop() is self
        except RuntimeError:
            return self._turns.mine() is not None

    def wake(self) -> None:
        """Have an idle loop think again. From any thread."""
        with suppress(RuntimeError):  # closed
            super().call_soon_threadsafe(_nothing)

    # Idling. Called by the selector, once between any two rounds of callbacks.

    @property
    def has_calls(self) -> bool:
        """Return whether threads handed over calls that were not looked at yet."""
        return self._handed > 0

    def take_turns(self) -> None:
        """Let threads come to a rest, and take what they ask for."""
        calls = self._turns.settle()
        self._handed = len(calls)
        for call in calls:
            super().call_soon(self._serve, call)

    def wait_idle(self, seconds: float | None, real: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
        """Poll the sockets, then move time, since nothing is ready."""
        if self._patience and len(real.get_map()) > _OWN_SOCKETS:
            began = time.monotonic()
            events = real.select(self._patience if seconds is None else min(self._patience, seconds))
            if events:
                self.clock.move_to(self.clock.elapsed + time.monotonic() - began)
                return events
        wait = self._pace.idle(self.clock, seconds, self._turns.are_running)
        if wait == 0:
            return []
        began = time.monotonic()
        events = real.select(wait)
        self._pace.waited(self.clock, time.monotonic() - began)
        return events

    # Threads.

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call a function in a thread that takes turns with this loop, whatever executor was meant."""
        return asyncio.wrap_future(self._turns.start(func, args), loop=self)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Schedule a callback. From a thread that takes turns it waits for the next round; from any other it is as usual."""
        turn = self._turns.mine()
        if turn is None:
            return super().call_soon_threadsafe(callback, *args, context=context)
        self._turns.hand_over(ThreadCall(turn, callback, args, _around(context)))
        return super().call_soon_threadsafe(_nothing)  # wakes the loop, should it have lost its patience

    def _serve(self, call: ThreadCall) -> None:
        self._asking = call.turn
        try:
            call.context.run(call.callback, *call.arguments)
        finally:
            if self._take_asking() is not None:  # it started no task that the thread could wait for
                self._turns.resume(call.turn)

    def _take_asking(self) -> ThreadTurn | None:
        turn, self._asking = self._asking, None
        return turn

    # Processes.

    def create_task(self, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start a task; it belongs to whom its context says."""
        task = super().create_task(coro, **options)
        whose = owner.get() if options.get("context") is None else options["context"].get(owner)
        if whose is not None:
            whose.adopt(task)
        turn = self._take_asking()
        if turn is not None:
            task.add_done_callback(lambda _: self._turns.resume(turn))
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Call it in the next round, if its owner admits it then."""
        around = _around(context)
        whose = around.get(owner)
        if whose is None:
            return super().call_soon(callback, *args, context=around)
        call = Admission(callback, args, around)
        call.handle = super().call_soon(whose.admit, call, context=around)
        return call.handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it at a time, if its owner admits it then."""
        around = _around(context)
        whose = around.get(owner)
        if whose is None:
            return super().call_at(when, callback, *args, context=around)
        call = Admission(callback, args, around)
        call.handle = timer = super().call_at(when, whose.admit, call, context=around)
        return timer


def _around(context: Context | None) -> Context:
    return copy_context() if context is None else context  # not by `or`: an empty context is false


def _nothing() -> None:
    """Do nothing: the callback only wakes a waiting loop."""
