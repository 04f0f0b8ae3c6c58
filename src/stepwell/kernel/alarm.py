"""Times that threads wait for, the soonest first. One that its thread no longer waits for is passed over when its turn comes.

Times that come in the same millisecond are served in the order of the document, what is around before what is inside: the order in
which they were set is not known any more when an execution was taken up again.
"""

from __future__ import annotations

from heapq import heappop, heappush

from stepwell.kernel.plan import At
from stepwell.kernel.thread import LiveToken

__all__ = ["BEGINS", "DUE", "RETRIES", "TIMES", "TokenTimers"]

DUE, RETRIES, BEGINS = "due_ms", "retries_ms", "begins_ms"
TIMES = (DUE, RETRIES, BEGINS)
"""Where a token says what it waits for: its end, its next attempt, the begin of its iteration."""

Order = tuple[int, At]
"""Where a thread stands in the document, and in which iteration."""


class TokenTimers:
    """The times of one execution."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, Order, int, LiveToken, str]] = []
        self._count = 0

    def set(self, thread: LiveToken, due_ms: int, field: str, order: Order) -> None:
        """Have a thread woken at a time."""
        thread.value[field] = due_ms
        self._count += 1
        heappush(self._entries, (due_ms, order, self._count, thread, field))

    @property
    def soonest_ms(self) -> int | None:
        """The first of the times."""
        while self._entries and not _is_live(*self._entries[0]):
            heappop(self._entries)
        return self._entries[0][0] if self._entries else None

    def take(self, now_ms: int) -> tuple[LiveToken, str] | None:
        """The next thread whose time has come, and where it said so; it waits for it no more."""
        while self._entries and self._entries[0][0] <= now_ms:
            entry = heappop(self._entries)
            if _is_live(*entry):
                *_, thread, field = entry
                del thread.value[field]
                return thread, field
        return None


def _is_live(due_ms: int, _order: Order, _number: int, thread: LiveToken, field: str) -> bool:
    return not thread.is_gone and thread.value.get(field) == due_ms
