"""Endings: how executions that end in this process are told to those here who wait for them, without asking the store.

Whoever waits watches an execution; the commit that ends it, once it is stored, tells its watchers. An execution that ends in
another process is not told here: those who wait for it look into the store, soon at first and ever more seldom. To tell every
process of every end would cost more, since nearly all of them are waited for where they run, or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from msgspec import Struct

from stepwell.model.status import Status

__all__ = ["Completion", "CompletionWaiter", "Completions"]

_LATE = 1 / 8
"""By how much of what it took an end elsewhere may be noticed late."""
_LOOK_SECONDS = 0.005
"""How often a process looks, all its watchers together."""


class Completion(Struct, frozen=True):
    """How an execution ended: its status, and its result as it is stored."""

    status: Status
    result: bytes | None


class CompletionWaiter:
    """Somebody who waits for the end of an execution. Use it as a context manager."""

    __slots__ = ("_endings", "_wake", "ending", "execution_id", "item_id")

    def __init__(self, endings: Completions, execution_id: str, wake: Callable[[], None]) -> None:
        self._endings, self.execution_id, self._wake = endings, execution_id, wake
        self.ending: Completion | None = None
        """How it ended, if it has, since the watch began."""
        self.item_id: str | None = None
        """The queue item whose claim it was run by when it ended."""

    def tell(self, ending: Completion | None, item_id: str | None = None) -> None:
        """It has ended; or, with None, it is run here no more, and whoever waits has to look for himself."""
        if ending is not None:
            self.ending, self.item_id = ending, item_id
        self._wake()

    def __enter__(self) -> CompletionWaiter:
        self._endings.join(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._endings.leave(self)


class Completions:
    """Who waits for which execution, and which executions are being run here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[str, list[CompletionWaiter]] = {}
        self._here: dict[str, str | None] = {}

    def watch(self, execution_id: str, wake: Callable[[], None]) -> CompletionWaiter:
        """A watch that calls ``wake``, from any thread, when the execution has ended."""
        return CompletionWaiter(self, execution_id, wake)

    def begin(self, execution_id: str, item_id: str | None = None) -> None:
        """An execution is run here from now on, perhaps by the claim of a queue item, so its end will be told here."""
        self._here[execution_id] = item_id

    def stop(self, execution_id: str) -> None:
        """It is run here no more, whether it has ended or not: those who wait look for themselves."""
        self._here.pop(execution_id, None)
        for watch in self._watching(execution_id):
            watch.tell(None)

    def is_here(self, execution_id: str) -> bool:
        """Whether an execution is being run here."""
        return execution_id in self._here

    def look_again_seconds(self, waited: float) -> float:
        """How long to wait before looking whether an execution has ended elsewhere."""
        return max(waited * _LATE, len(self._watches) * _LOOK_SECONDS)

    def is_watched(self, execution_id: str) -> bool:
        """Whether anybody here waits for an execution."""
        return execution_id in self._watches

    def tell(self, execution_id: str, ending: Completion) -> None:
        """An execution has ended: the commit that says so is stored."""
        for watch in self._watching(execution_id):
            watch.tell(ending, self._here.get(execution_id))

    def _watching(self, execution_id: str) -> list[CompletionWaiter]:
        if execution_id not in self._watches:
            return []
        with self._lock:
            return list(self._watches.get(execution_id, ()))

    def join(self, watch: CompletionWaiter) -> None:
        """Begin to wait."""
        with self._lock:
            self._watches.setdefault(watch.execution_id, []).append(watch)

    def leave(self, watch: CompletionWaiter) -> None:
        """Wait no more."""
        with self._lock:
            those = self._watches.get(watch.execution_id, [])
            if watch in those:
                those.remove(watch)
            if not those:
                self._watches.pop(watch.execution_id, None)
