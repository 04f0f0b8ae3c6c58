"""Giving way on the loop: sessions of items that waited in the queue let a request pass that is under way.

A request whose run can start at once waits for its reply, and then for the loop. Where ten items of a busy workspace begin or end
in the same turn of the loop, the request waits for all ten, though none of them is in a hurry: they have waited in the queue, or
are over. So while a request is under way, and for a moment after it, such sessions go on by twos, each pair in a turn of its own,
and none before the request is answered; but none waits for long, however many requests there are. See docs/design/0018-turns.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["LoopWay"]

_AT_ONCE = 2
"""How many go on in one turn: fewer make more turns than they save time."""

_LONGEST_SECONDS = 0.002
"""How long one stands aside for requests: as long as the writer does (stores/way.py)."""

_AFTER_SECONDS = 0.05
"""How long after a request turns are kept short: where there was one, there may be another, and it is not announced."""


class LoopWay:
    """Where sessions of one loop stand aside."""

    def __init__(self, is_taken: Callable[[], bool]) -> None:
        self._is_taken = is_taken
        """Whether a request is under way whose run would start on this loop."""
        self._waiting: deque[tuple[float, asyncio.Future[None]]] = deque()
        """Who stands aside, in order, each with the time that it goes on at in any case."""
        self._next: asyncio.Handle | None = None
        self._short_until: float | None = None
        """Until when turns are kept short, after a request that was answered."""

    def give(self) -> asyncio.Future[None] | None:
        """What to wait for, so that others pass; None if there is no reason to."""
        if not (self._waiting or self._is_taken() or self._is_short()):
            return None
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append((loop.time() + _LONGEST_SECONDS, turn))
        self._next = self._next or loop.call_soon(self._go_on)
        return turn

    def _is_short(self) -> bool:
        if self._short_until is not None and asyncio.get_running_loop().time() >= self._short_until:
            self._short_until = None
        return self._short_until is not None

    def clear(self) -> None:
        """A request was answered, and what it asked for has started."""
        loop = asyncio.get_running_loop()
        self._short_until = loop.time() + _AFTER_SECONDS
        if self._next is not None:  # perhaps in two milliseconds
            self._next.cancel()
            self._next = loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        loop, self._next = asyncio.get_running_loop(), None
        left = _AT_ONCE
        while self._waiting:
            latest, turn = self._waiting[0]
            if turn.done():  # it was cancelled
                self._waiting.popleft()
            elif self._is_taken() and loop.time() < latest:
                self._next = loop.call_at(latest, self._go_on)
                return
            elif not left:
                self._next = loop.call_soon(self._go_on)
                return
            else:
                left -= 1
                self._waiting.popleft()
                turn.set_result(None)
