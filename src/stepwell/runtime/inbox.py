"""The inbox of an execution: signals, cancel requests and children's results, stored until they are taken.

It is a scope of state of its own, so that senders never conflict with the execution's commits. The commit that records the use of
a message deletes it. A message comes with a nudge, so that a resting execution becomes due, and a running one reads its inbox
again before it rests: no message is missed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from stepwell.kernel.protocol import CancelRequested, ChildEnded, SignalArrived
from stepwell.model.commit import StateBatch
from stepwell.model.draft import Planned
from stepwell.model.mutation import WriteState
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import internal_path
from stepwell.model.scoped_operations import Delete, Put, StoredEntry
from stepwell.model.value import Value, decode, recode

__all__ = [
    "CANCEL",
    "CANCEL_SCOPE",
    "CANCEL_STEP",
    "CHILD",
    "FROM_PARENT",
    "PAUSE",
    "SIGNAL",
    "Inbox",
    "Message",
    "Pause",
    "delivery",
    "event_of",
    "fresh_key",
    "messages",
    "path_of",
    "pause_in",
    "put",
    "sent_ms",
    "take",
]

SIGNAL, CANCEL, CHILD = "signal", "cancel", "child"
CANCEL_SCOPE, CANCEL_STEP = "cancel_scope", "cancel_step"
"""Requests to cancel a part of an execution; the message's name is the scope's or the step's."""

PAUSE = "pause"
"""A pause: the message's kind and its key, since a run has at most one. It is not taken, and lasts until ``resume`` removes it."""

FROM_PARENT = "parent"
"""The key of a parent's cancel request: there is at most one, even if a crash repeats it."""


class Message(msgspec.Struct, frozen=True):
    """One message: its kind, its name (of the signal or the child), and its value."""

    key: str
    kind: str
    name: str
    value: Value


class Pause(PlainRecord, frozen=True):
    """A pause of a run, which lasts until the run is resumed or cancelled."""

    at: datetime
    by: str = ""
    """Who paused it; empty if nobody was named."""
    reason: str = ""

    @property
    def message(self) -> str:
        """The same as a sentence."""
        by = f" by {self.by}" if self.by else ""
        why = f": {self.reason}" if self.reason else ""
        return f"it was paused{by} at {self.at:%Y-%m-%d %H:%M:%S} UTC{why}"


def pause_in(waiting: Iterable[Message]) -> Pause | None:
    """Return the pause among the messages of an inbox; None if there is none, or a request to cancel ends it."""
    pause: Pause | None = None
    for message in waiting:
        if message.kind == CANCEL:
            return None
        if message.kind == PAUSE:
            pause = msgspec.convert(message.value, Pause)
    return pause


def fresh_key(fresh: str) -> str:
    """Return a key for a new message: ordered by sending time within a process, to the nanosecond."""
    return f"{time.time_ns():020d}.{fresh}"


def sent_ms(key: str) -> int | None:
    """Return when a message was sent, in milliseconds since 1970; None if its key does not say."""
    sent = key.partition(".")[0]
    return int(sent) // 1_000_000 if sent.isascii() and sent.isdecimal() else None


def path_of(execution_id: str, workspace_id: str) -> str:
    """Return the scope of an execution's inbox."""
    return internal_path("inbox", workspace_id, execution_id)


def put(execution_id: str, workspace_id: str, kind: str, name: str, value: Value, fresh: str) -> Put:
    """Return the operation that stores a message with a checked value. ``fresh`` keeps messages in order and apart."""
    return Put(path_of(execution_id, workspace_id), fresh, msgspec.Raw(recode([kind, name, value])))


def delivery(execution_id: str, workspace_id: str, kind: str, name: str, value: Value, fresh: str) -> StateBatch:
    """Return the write of a message, with its nudge."""
    return StateBatch((put(execution_id, workspace_id, kind, name, value, fresh),), (), (execution_id,))


def messages(rows: Sequence[tuple[str, StoredEntry]]) -> list[Message]:
    """Return the messages in the order in which they were sent."""
    return [Message(key, *decode(row.data)) for key, row in rows if row.data is not None]


def take(execution_id: str, workspace_id: str, message: Message) -> WriteState:
    """Return the mutation that takes a message."""
    return WriteState(Delete(path_of(execution_id, workspace_id), message.key))


class Inbox:
    """The messages of one execution, as its session knows them."""

    def __init__(self, execution_id: str, workspace_id: str) -> None:
        self._execution_id, self._workspace_id = execution_id, workspace_id
        self.waiting: dict[str, Message] = {}
        """Received messages that were not taken, by key, in the order in which they were sent."""
        self._taken: set[str] = set()

    def receive(self, found: Sequence[Message]) -> list[Message]:
        """Note what was read from the store; return the messages that are new.

        A message that was taken does not count again, though a read that began before may still bring it.
        """
        new = [message for message in found if message.key not in self.waiting and message.key not in self._taken]
        if new:
            self.waiting = {message.key: message for message in sorted((*self.waiting.values(), *new), key=lambda each: each.key)}
        return new

    def forget(self, key: str) -> None:
        """Note that a message was taken."""
        self._taken.add(key)
        self.waiting.pop(key, None)

    def taking(self, message: Message | None) -> list[Planned]:
        """Return the mutations that take a message, if there is one; a request to cancel takes the pause, which it ends."""
        if message is None:
            return []
        pause = self.waiting.get(PAUSE) if message.kind == CANCEL else None
        return [take(self._execution_id, self._workspace_id, each) for each in (message, pause) if each is not None]


def event_of(message: Message) -> SignalArrived | ChildEnded | CancelRequested:
    """Return the kernel's event for a message."""
    match message.kind:
        case "signal":
            return SignalArrived(message.key, message.name, message.value)
        case "child":
            return ChildEnded(message.key, message.name, message.value)
        case "cancel_scope":
            return CancelRequested(message.key, scope=message.name)
        case "cancel_step":
            return CancelRequested(message.key, step=message.name)
        case _:
            return CancelRequested(message.key)
