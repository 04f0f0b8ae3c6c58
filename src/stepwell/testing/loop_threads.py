"""Threads that take turns with an event loop: the loop continues only when each of them waits for a call or has ended.

A plain workflow or step runs in a thread. Were it to run beside the loop, nothing about its order would be the same twice. So the
loop waits until a thread *parks*, by handing the loop a callback, and takes what threads handed over in the order of their numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from typing import Any

__all__ = ["ThreadCall", "ThreadTurn", "ThreadTurns"]


class ThreadTurn:
    """One piece of work in a thread."""

    __slots__ = ("has_ended", "is_running", "is_slow", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_running, self.has_ended = True, False
        self.is_slow = False
        """Whether the loop has waited for it for as long as it does, and goes on without it."""


class ThreadCall:
    """A callback that a thread hands to the loop."""

    __slots__ = ("arguments", "callback", "context", "turn")

    def __init__(self, turn: ThreadTurn, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context) -> None:
        self.turn, self.callback, self.arguments, self.context = turn, callback, arguments, context


class ThreadTurns:
    """The threads of one loop."""

    def __init__(self, patience_seconds: float | None) -> None:
        self._patience = patience_seconds
        self._changed = threading.Condition()
        self._turns: dict[int, ThreadTurn] = {}
        self._calls: list[ThreadCall] = []
        self._count = 0

    def start(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Future[Any]:
        """Run a function in a thread of its own."""
        future: Future[Any] = Future()
        self._count += 1
        turn = ThreadTurn(self._count)
        thread = threading.Thread(target=self._work, args=(turn, future, function, arguments), daemon=True, name="stepwell-turn")
        with self._changed:
            self._turns[-turn.number] = turn  # until the thread says who it is
        thread.start()
        return future

    def _work(self, turn: ThreadTurn, future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        with self._changed:
            del self._turns[-turn.number]
            self._turns[threading.get_ident()] = turn
        future.set_running_or_notify_cancel()
        tell: Callable[[], None]
        try:
            tell = partial(future.set_result, function(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised to the waiting caller
            tell = partial(future.set_exception, error)
        turn.has_ended = True
        tell()
        with self._changed:
            turn.is_running = False
            del self._turns[threading.get_ident()]
            self._changed.notify_all()

    def mine(self) -> ThreadTurn | None:
        """Return the turn of the calling thread, or None if it takes no turns."""
        return self._turns.get(threading.get_ident())

    def hand_over(self, call: ThreadCall) -> None:
        """Have the loop call something; the thread counts as parked."""
        with self._changed:
            self._calls.append(call)
            call.turn.is_running = call.turn.is_slow = False
            self._changed.notify_all()

    def resume(self, turn: ThreadTurn) -> None:
        """Let the thread continue: its call was carried out."""
        with self._changed:
            turn.is_running = not turn.has_ended

    @property
    def are_running(self) -> bool:
        """Return whether a thread runs code of its own now."""
        return any(turn.is_running for turn in list(self._turns.values()))

    def _are_settled(self) -> bool:
        return not any(turn.is_running and not turn.is_slow for turn in self._turns.values())

    def settle(self) -> list[ThreadCall]:
        """Wait until all threads are parked, but not beyond the loop's patience; what they handed over, in order."""
        with self._changed:
            if self._turns and not self._changed.wait_for(self._are_settled, self._patience):
                for turn in self._turns.values():
                    turn.is_slow = turn.is_running
            calls, self._calls = self._calls, []
        return sorted(calls, key=lambda call: call.turn.number)
