"""Notifications: wake callers and tasks that wait for a topic when it may have changed, here or in another process.

``pipeline.store_writer`` reports the writes of this process, and ``Store.listen`` those of other processes. A notification says
only that something may have changed: the woken task looks into the store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType

from stepwell.contract.store import Store
from stepwell.errors import CommitUnknown
from stepwell.model.commit import Commit, CommitKind, Deletion, Outcome, StateBatch, Sweep, Unit, Unlock, Written
from stepwell.model.queue_item import (
    CancelItem,
    Enqueue,
    ItemMark,
    ItemStatus,
    PutQueue,
    PutTier,
    PutWorkspace,
    RecoverItems,
    Redrive,
    ReturnItem,
)

__all__ = [
    "DUE",
    "LOCK",
    "QUEUE",
    "SCHEDULE",
    "STATE",
    "Notifications",
    "Subscription",
    "end_of",
    "is_running",
    "open_gate",
    "shut_gate",
    "topics_of",
]


def shut_gate() -> threading.Lock:
    """Return a lock that is held, to wait on."""
    gate = threading.Lock()
    gate.acquire()
    return gate


def open_gate(gate: threading.Lock) -> None:
    """Release a gate, from any thread; releasing it again does nothing."""
    if gate.locked():
        with suppress(RuntimeError):  # another thread has released it meanwhile
            gate.release()


LOCK, STATE, DUE, QUEUE = "lock", "state", "due", "queue"
SCHEDULE = "schedule"
"""A schedule was put or resumed in this process; other processes find it by their poll."""


def end_of(execution_id: str) -> str:
    """Return the topic of an execution's end, so that waiters of other executions are not woken."""
    return f"end:{execution_id}"


# Units that may make an item ready or a slot free.
_QUEUEING = (Enqueue, ItemMark, ReturnItem, CancelItem, Redrive, RecoverItems, PutTier, PutWorkspace, PutQueue, Deletion)
_TOPICS: dict[type, str] = {Unlock: LOCK, StateBatch: STATE, Sweep: STATE, **dict.fromkeys(_QUEUEING, QUEUE)}

# The longest sleep without a look: notifications of other processes can get lost with a connection.
_LONGEST_SLEEP_SECONDS = 1.0
_SHORTEST_SLEEP_SECONDS = 0.00001


def is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this code runs on the loop, so that the loop need not be woken."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Subscription:
    """Waits for a topic, blocking or awaited. A notification that came after it was entered is never missed."""

    def __init__(self, notifications: Notifications, topic: str) -> None:
        self._notifications, self.topic = notifications, topic
        self._has_heard = False
        # The waiter makes its gate or future before it reads the flag, and wake() sets the flag before it looks for one: no
        # wake-up is lost.
        self._gate: threading.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wake the waiter. From any thread."""
        self._has_heard = True
        gate, loop, future = self._gate, self._loop, self._future
        if gate is not None:
            open_gate(gate)
        if loop is None or future is None:
            return
        if is_running(loop):
            _end(future)
        else:
            with suppress(RuntimeError):  # the loop was closed, and its waiter with it
                loop.call_soon_threadsafe(_end, future)

    def wait(self, seconds: float) -> None:
        """Sleep until a notification, at most for ``seconds`` and for the longest sleep without a look. Then look again."""
        gate = self._gate = self._gate or shut_gate()
        gate.acquire(timeout=0 if self._has_heard else min(max(seconds, 0), _LONGEST_SLEEP_SECONDS))
        self._has_heard = False

    async def wait_async(self, seconds: float) -> None:
        """Do the same for a caller that awaits."""
        loop = self._loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        if not self._has_heard:
            # Never shorter than this: a timer may fire slightly early, and sleeping for the rest of that time would spin.
            seconds = min(max(seconds, _SHORTEST_SLEEP_SECONDS), _LONGEST_SLEEP_SECONDS)
            timer = loop.call_later(seconds, _end, future)
            try:
                await future
            finally:
                timer.cancel()
        self._future, self._has_heard = None, False

    def __enter__(self) -> Subscription:
        self._notifications.join(self.topic, self.wake)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._notifications.leave(self.topic, self.wake)


def topics_of(unit: Unit) -> set[str]:
    """Return the topics that a unit which landed may have changed."""
    topics = {_TOPICS[type(unit)]} if type(unit) in _TOPICS else set[str]()
    if isinstance(unit, Commit | StateBatch):
        if unit.ops:
            topics.add(STATE)
        if unit.nudges:
            topics.add(DUE)
    if isinstance(unit, Commit):
        if unit.creation is not None and unit.creation.is_runnable and unit.creation.holder is None:
            topics.add(DUE)
        if unit.rest is not None:
            topics |= set() if unit.rest.is_final else {DUE}
        if unit.items or (unit.mark is not None and unit.mark.status != ItemStatus.DISPATCHED):
            topics.add(QUEUE)
    return topics


class Notifications:
    """Passes notifications to waiters. It listens to the store only while there are waiters."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[str, set[Callable[[], None]]] = {}
        self._stop: Callable[[], None] | None = None

    @property
    def topics(self) -> frozenset[str]:
        """The topics that have waiters."""
        with self._lock:
            return frozenset(self._waiting)

    @property
    def is_listening(self) -> bool:
        """True while it listens to the store."""
        return self._stop is not None

    def listen(self, topic: str) -> Subscription:
        """Return a subscription to a topic. Enter it, look, and wait: a change after the look ends the wait."""
        return Subscription(self, topic)

    @contextmanager
    def subscribed(self, topic: str, wake: Callable[[], None]) -> Generator[None]:
        """Call ``wake``, from any thread, whenever a topic may have changed."""
        self.join(topic, wake)
        try:
            yield
        finally:
            self.leave(topic, wake)

    def written(self, units: Sequence[Unit], outcomes: Sequence[Outcome]) -> None:
        """Notify of units that this process wrote, or may have written. Costs almost nothing without waiters."""
        if not self._waiting:
            return
        topics: set[str] = set()
        for unit, outcome in zip(units, outcomes, strict=True):
            # A step's commit has no topic, and most commits are steps.
            if isinstance(outcome, Written | CommitUnknown) and not (type(unit) is Commit and unit.kind is CommitKind.STEP):
                topics |= topics_of(unit)
        for topic in topics:
            self.notify(topic)

    def notify(self, topic: str) -> None:
        """Wake the waiters of a topic; the empty topic means all topics."""
        with self._lock:
            topics = [topic] if topic else list(self._waiting)
            waiting = [wake for name in topics for wake in self._waiting.get(name, ())]
        for wake in waiting:
            wake()

    def join(self, topic: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` for a topic from now on."""
        with self._lock:
            if self._stop is None:
                self._stop = self._store.listen(self.notify)
            self._waiting.setdefault(topic, set()).add(wake)

    def leave(self, topic: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` for a topic no more."""
        with self._lock:
            those = self._waiting.get(topic, set())
            those.discard(wake)
            if not those:
                self._waiting.pop(topic, None)
            stop, self._stop = (None, self._stop) if self._waiting else (self._stop, None)
        if stop is not None:
            stop()

    def close(self) -> None:
        """Stop listening to the store. Those who wait are woken for the last time, so that caches keep nothing."""
        self.notify("")
        with self._lock:
            self._waiting.clear()
            stop, self._stop = self._stop, None
        if stop is not None:
            stop()
