"""Traces: the events of a run in order, read from its receipts, and the first difference of two runs.

A ``min`` trace has the events without times and values, so that runs of the same program compare equal; ``full`` has both;
``none`` is empty, for callers whose level is a setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec

from stepwell.errors import InvalidInput
from stepwell.model.plain_data import PlainRecord
from stepwell.model.receipt import Receipt
from stepwell.model.value import Value

__all__ = ["Trace", "TraceEvent", "TraceLevel", "trace_of"]

TraceLevel = Literal["none", "min", "full"]


class TraceEvent(PlainRecord, frozen=True, omit_defaults=True):
    """One event of a run."""

    kind: str
    """``start``, ``step``, ``wait``, ``wake``, ``variable``, ``loop``, ``enqueue``, ``restore`` or ``status``."""
    name: str = ""
    """The name of the step, variable, loop, wait or status."""
    status: str = ""
    """The status of a step."""
    revision: int | None = None
    """The commit of the event; this and the following fields only in a full trace."""
    at: datetime | None = None
    duration_ms: int | None = None
    value: Value = None
    summary: str | None = None
    """One line about the call of a step."""


class Trace(PlainRecord, frozen=True):
    """The events of a run. Traces of the same level can be compared with ``==``, or with ``difference``."""

    level: TraceLevel
    events: list[TraceEvent] = msgspec.field(default_factory=list[TraceEvent])

    def difference(self, other: Trace) -> str | None:
        """Return the first difference to another trace, in words; None if there is none."""
        if self.level != other.level:
            raise InvalidInput(f"a trace of level {self.level!r} cannot be compared with one of level {other.level!r}")
        for number in range(max(len(self.events), len(other.events))):
            one, another = _told(self.events, number), _told(other.events, number)
            if self.events[number : number + 1] != other.events[number : number + 1]:
                return f"event {number + 1} is {one}, and {another} in the other"
        return None

    def reduced(self, level: TraceLevel) -> Trace:
        """Return the trace at a lower level."""
        if _rank(level) > _rank(self.level):
            raise InvalidInput(f"a trace of level {self.level!r} has not what level {level!r} needs")
        if level == "full":
            return self
        events = [] if level == "none" else [TraceEvent(each.kind, each.name, each.status) for each in self.events]
        return Trace(level, events)


def trace_of(receipts: Iterable[Receipt], level: TraceLevel = "full") -> Trace:
    """Return the trace of a run from its receipts."""
    if _rank(level) < 0:
        raise InvalidInput(f"a trace's level is one of {', '.join(get_args(TraceLevel))}, not {level!r}")
    events = [] if level == "none" else [event for receipt in receipts for event in _events(receipt)]
    return Trace("full", events).reduced(level)


def _rank(level: str) -> int:
    levels = get_args(TraceLevel)
    return levels.index(level) if level in levels else -1


def _told(events: list[TraceEvent], number: int) -> str:
    if number >= len(events):
        return "nothing"
    event = events[number]
    return " ".join(part for part in (event.kind, repr(event.name) if event.name else "", event.status) if part)


def _events(receipt: Receipt) -> Iterator[TraceEvent]:
    for mutation in receipt.mutations:
        event = _event(mutation)
        if event is not None:
            yield msgspec.structs.replace(event, revision=receipt.revision, at=receipt.committed_at)


def _event(mutation: dict[str, Any]) -> TraceEvent | None:
    """Return the event of a mutation; None for bookkeeping."""
    match mutation:
        case {"type": "set_trigger", "trigger": trigger}:
            return TraceEvent("start", value=trigger)
        case {"type": "record_step", "name": name, "step": step}:
            return TraceEvent(
                "step", name, step["status"], duration_ms=step["duration_ms"], value=step["output"], summary=step.get("summary")
            )
        case {"type": "add_token" | "update_token", "token_id": name, "token": token}:
            return TraceEvent("wait", name, token["node"], value=token["value"])
        case {"type": "remove_token", "token_id": name}:
            return TraceEvent("wake", name)
        case {"type": "set_variable", "name": name, "value": value}:
            return TraceEvent("variable", name, value=value)
        case {"type": "set_loop", "loop_id": name, "loop": loop}:
            return TraceEvent("loop", name, value=loop)
        case {"type": "enqueue_item", "input": value}:
            return TraceEvent("enqueue", value=value)
        case {"type": "restore", "source": source}:
            return TraceEvent("restore", source)
        case {"type": "set_status", "status": status}:
            return TraceEvent("status", status)
        case _:
            return None
