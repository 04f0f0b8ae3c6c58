"""Waits of one session: for a time, a message, or whichever comes first. A session with nothing but waits rests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from stepwell.clock import Clock
from stepwell.errors import ExecutionCancelled
from stepwell.runtime.inbox import CANCEL, Inbox, Message
from stepwell.runtime.unwinding import Suspended, Undoing, Unwinding

__all__ = ["LINGER_SECONDS", "Waits"]

LINGER_SECONDS = 0.2
"""How long a session with nothing but waits stays in memory before it rests: long enough for an answer that is on its way."""

_TIMED_OUT = object()


class _Wait:
    """A waiting call."""

    __slots__ = ("due_ms", "future", "kind", "name", "path", "timer")

    def __init__(self, kind: str, name: str, due_ms: int | None, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self.kind, self.name, self.due_ms, self.path = kind, name, due_ms, path
        self.future: asyncio.Future[Any] = loop.create_future()
        self.timer: asyncio.TimerHandle | None = None


class Waits:
    """The waits of a session, the messages that may end them, and a cancel request that ends them all.

    Args:
        linger_seconds: how long a session with nothing but waits stays in memory before it rests.
    """

    def __init__(
        self,
        clock: Clock,
        inbox: Inbox,
        *,
        may_linger: bool,
        is_busy: Callable[[], bool],
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._clock, self._inbox, self._is_busy = clock, inbox, is_busy
        self.may_linger = may_linger
        """Whether a call may wait in memory for a while. Else the first wait unwinds the code, since it would hold a thread."""
        self._linger_seconds = linger_seconds
        self._loop = asyncio.get_running_loop()
        self._waits: dict[str, _Wait] = {}
        self._warned: set[str] = set()
        self._linger: asyncio.TimerHandle | None = None
        self._staying: list[asyncio.Future[Any]] = []
        self._away: dict[str, asyncio.Future[Any] | None] = {}
        """By position: the calls whose steps are made elsewhere. Messages do not end them: as here, a step ends first."""
        self.is_holding = False
        """Whether calls without a record wait for the code to be unwound, until steps of other branches have ended."""
        self.making: set[str] = set()
        """Positions of calls that do something other than wait: meanwhile, the session does not rest."""
        self.beside: set[asyncio.Task[None]] = set()
        """Tasks that are no calls, for whose end the session waits before it rests."""
        self.is_suspended = False
        """Whether the code is being unwound: calls on the way out are not executed."""
        self.cancel: Message | None = None
        """The cancel request, once it has come."""
        self.interruption: Exception | None = None
        """The error that each branch gets once, at its wait or next call: a cancellation or a timeout of the execution."""
        self.is_undoing = False
        """Whether calls without a record are executed no more."""
        self.is_shielded = False
        """Whether the calls are compensations, which nothing interrupts."""

    @property
    def count(self) -> int:
        """The number of calls that wait."""
        futures = (*(wait.future for wait in self._waits.values()), *self._staying)
        return len(self._away) + sum(not future.done() for future in futures)

    @property
    def soonest_ms(self) -> int | None:
        """Return when the first of the waits ends by itself."""
        return min((wait.due_ms for wait in self._waits.values() if wait.due_ms is not None), default=None)

    async def wait(self, key: str, position: str, kind: str, name: str, due_ms: int | None) -> Message | None:
        """Wait for a message or a time. Return None if the time came first."""
        self.deliver_cancel(position)
        wait = _Wait(kind, name, due_ms, _path(position), self._loop)
        left = None if due_ms is None else (due_ms - self._clock.now_ms()) / 1000
        if self._try_message(wait):
            return wait.future.result()
        if left is not None and left <= 0:
            return None
        self._waits[key] = wait
        if not self.may_linger and (left is None or left > LINGER_SECONDS):
            self.is_suspended = True
            raise Suspended
        if left is not None:
            wait.timer = self._loop.call_later(left, _resolve, wait.future, _TIMED_OUT)
        self._consider_rest()
        try:
            outcome = await wait.future
        except Suspended:
            raise  # still waiting: the entries in the table tell until when
        except BaseException:
            self._waits.pop(key, None)
            raise
        self._waits.pop(key, None)
        return None if outcome is _TIMED_OUT else outcome

    async def stay(self) -> Any:
        """Wait to be unwound or cancelled: the code cancelled this call in an earlier session, and will again."""
        if self.is_undoing:
            raise Undoing
        future: asyncio.Future[Any] = self._loop.create_future()
        self._staying.append(future)
        return await future

    async def hold(self) -> Any:
        """Wait to be unwound once the calls of other branches have ended, since the session hands its execution back."""
        self._consider_rest()
        return await self.stay()

    async def away(self, position: str) -> NoReturn:
        """Wait until the session rests, since a step is made elsewhere: its outcome is there for a later session."""
        self.making.discard(position)
        self._away[position] = None
        if not self.may_linger:
            self.is_suspended = True
            raise Suspended
        future = self._away[position] = self._loop.create_future()
        self._consider_rest()
        try:
            await future
        except asyncio.CancelledError:
            del self._away[position]
            raise
        raise AssertionError  # nothing gives it a result

    @property
    def is_away(self) -> bool:
        """True if steps of this session are made elsewhere."""
        return bool(self._away)

    def waiting(self, kind: str) -> list[str]:
        """Return the keys of the calls that wait for something of a kind, the oldest first; all once the code is unwound."""
        return [key for key, wait in self._waits.items() if wait.kind == kind and (self.is_suspended or not wait.future.done())]

    def wake(self, key: str) -> None:
        """End a wait as if its time had come."""
        _resolve(self._waits[key].future, _TIMED_OUT)

    def deliver_messages(self) -> None:
        """Deliver the messages of the inbox to their waits; a cancel request ends every wait."""
        cancel = next((message for message in self._inbox.waiting.values() if message.kind == CANCEL), None)
        if cancel is not None and self.cancel is None:
            self.cancel = cancel
            self.interrupt(ExecutionCancelled())
        for wait in list(self._waits.values()):
            self._try_message(wait)

    def interrupt(self, error: Exception) -> None:
        """End every wait with an error. Branches that do not wait get it at their next call. Only the first error counts."""
        if self.interruption is not None or self.is_shielded:
            return
        self.interruption = error
        for wait in self._waits.values():
            if not wait.future.done():
                self._warn(wait.path)
        self.fail(error)

    def _warn(self, path: str) -> None:
        """Deliver the interruption to a branch; its ancestors count as told, but not while they run a step."""
        making = {_path(position) for position in (*self.making, *self._away)}
        self._warned |= {each for each in _lineage(path) if each == path or each not in making}

    def branch_began(self, parent: str, child: str) -> None:
        """Note a new branch; after an interruption it is part of the clean-up."""
        if _path(parent) in self._warned:
            self._warned.add(_path(child))

    @property
    def has_told(self) -> bool:
        """True if the interruption was raised in the code."""
        return bool(self._warned)

    def deliver_cancel(self, position: str) -> None:
        """Raise the interruption at a branch's next call. Later calls are its clean-up, and are executed."""
        if self.is_shielded:
            return
        if self.interruption is not None and (path := _path(position)) not in self._warned:
            self._warn(path)
            raise type(self.interruption)(str(self.interruption.args[0]))
        if self.is_undoing:
            raise Undoing

    def was_told(self, path: str) -> bool:
        """Return whether the interruption was raised in a branch, so that its further calls are clean-up."""
        return _path(path) in self._warned

    def deliver_to_item(self, position: str) -> None:
        """Raise the interruption at the call of a ``map`` for one of its items, although the branch was told by another item."""
        self.deliver_cancel(position)
        if self.interruption is not None and not self.is_shielded:
            raise type(self.interruption)(str(self.interruption.args[0]))

    def suspend(self) -> None:
        """Unwind the code, so that the execution rests; the next session resumes from the record."""
        self.is_suspended = True
        self.fail(Suspended())

    def fail(self, error: BaseException) -> None:
        """End every wait with an error."""
        away = self._away.values() if isinstance(error, Unwinding) else ()
        for future in (*(wait.future for wait in self._waits.values()), *self._staying, *away):
            if future is not None and not future.done():
                future.set_exception(error)

    def stop(self) -> None:
        """Stop all timers at the end of the session."""
        self._is_busy = bool  # returns False and drops the session, which would otherwise be a reference cycle
        for future in (*self._staying, *self._away.values()):
            if future is not None:
                future.cancel()
        if self._linger is not None:
            self._linger.cancel()
        for wait in self._waits.values():
            if wait.timer is not None:
                wait.timer.cancel()

    def _try_message(self, wait: _Wait) -> bool:
        if wait.future.done():
            return False
        for message in self._inbox.waiting.values():
            if (message.kind, message.name) == (wait.kind, wait.name):
                self._inbox.forget(message.key)
                wait.future.set_result(message)
                return True
        return False

    def _consider_rest(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        self._linger = self._loop.call_later(self._linger_seconds, self._rest_if_idle)

    def _rest_if_idle(self) -> None:
        if self._is_busy():
            self._consider_rest()
        elif self.is_holding and not self.is_shielded:
            self.suspend()
        elif self._away or any(not wait.future.done() for wait in self._waits.values()):
            soon = self._clock.now_ms() + round(LINGER_SECONDS * 1000)
            if self.soonest_ms is not None and self.soonest_ms <= soon:
                self._consider_rest()
            else:
                self.suspend()


def _lineage(path: str) -> set[str]:
    """Return a branch and its ancestors: an error in it reaches them, too."""
    parts = path.split("/")
    return {"", *("/".join(parts[:length]) for length in range(1, len(parts) + 1))}


def _path(position: str) -> str:
    return position.rpartition("/")[0]


def _resolve(future: asyncio.Future[Any], outcome: object) -> None:
    if not future.done():
        future.set_result(outcome)
