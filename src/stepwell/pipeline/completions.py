"""Completions: wake callers that wait for the end of an execution, without asking the store.

A waiter registers for an execution; the commit that ends it, once stored, wakes the waiters of this process. They look into the
store for an end in another process, soon at first and then at growing intervals. Notifying every process of every end would cost
more, since nearly all callers wait where the execution runs, or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from msgspec import Struct

from stepwell.model.status import Status

__all__ = ["Completion", "CompletionWaiter", "Completions"]

_LATE = 1 / 8
"""The share of an execution's duration by which an end in another process may be noticed late."""
_LOOK_SECONDS = 0.005
"""The number of looks per second of all waiters of a process together."""


class Completion(Struct, frozen=True):
    """The status of an execution that ended, and its result as it is stored."""

    status: Status
    result: bytes | None


class CompletionWaiter:
    """A caller that waits for the end of an execution. Use it as a context manager."""

    __slots__ = ("_endings", "_wake", "ending", "execution_id", "item_id")

    def __init__(self, endings: Completions, execution_id: str, wake: Callable[[], None]) -> None:
        self._endings, self.execution_id, self._wake = endings, execution_id, wake
        self.ending: Completion | None = None
        """The completion, if the execution has ended since the waiter was entered."""
        self.item_id: str | None = None
        """The queue item that the execution ran for when it ended."""

    def tell(self, ending: Completion | None, item_id: str | None = None) -> None:
        """Wake the caller with a completion; with None if the execution no longer runs in this process, so that the caller has
        to look."""
        if ending is not None:
            self.ending, self.item_id = ending, item_id
        self._wake()

    def __enter__(self) -> CompletionWaiter:
        self._endings.join(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._endings.leave(self)


class Completions:
    """The waiters of this process by execution, and the executions that run in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[str, list[CompletionWaiter]] = {}
        self._here: dict[str, str | None] = {}

    def watch(self, execution_id: str, wake: Callable[[], None]) -> CompletionWaiter:
        """Return a waiter that calls ``wake``, from any thread, when the execution has ended."""
        return CompletionWaiter(self, execution_id, wake)

    def begin(self, execution_id: str, item_id: str | None = None) -> None:
        """Note that an execution runs in this process, perhaps for a queue item, so that its end is notified here."""
        self._here[execution_id] = item_id

    def stop(self, execution_id: str) -> None:
        """Note that an execution runs here no more, so that its waiters look for themselves."""
        self._here.pop(execution_id, None)
        for watch in self._watching(execution_id):
            watch.tell(None)

    def is_here(self, execution_id: str) -> bool:
        """Return whether an execution runs in this process."""
        return execution_id in self._here

    def look_again_seconds(self, waited: float) -> float:
        """Return how long to wait before looking for an end in another process."""
        return max(waited * _LATE, len(self._watches) * _LOOK_SECONDS)

    def is_watched(self, execution_id: str) -> bool:
        """Return whether a caller of this process waits for an execution."""
        return execution_id in self._watches

    def tell(self, execution_id: str, ending: Completion) -> None:
        """Wake the waiters of an execution whose last commit is stored."""
        for watch in self._watching(execution_id):
            watch.tell(ending, self._here.get(execution_id))

    def _watching(self, execution_id: str) -> list[CompletionWaiter]:
        if execution_id not in self._watches:
            return []
        with self._lock:
            return list(self._watches.get(execution_id, ()))

    def join(self, watch: CompletionWaiter) -> None:
        """Register a waiter."""
        with self._lock:
            self._watches.setdefault(watch.execution_id, []).append(watch)

    def leave(self, watch: CompletionWaiter) -> None:
        """Remove a waiter."""
        with self._lock:
            those = self._watches.get(watch.execution_id, [])
            if watch in those:
                those.remove(watch)
            if not those:
                self._watches.pop(watch.execution_id, None)
