"""Turn the trace of a function run into a definition, so that it can be drawn like a declared workflow.

A function's structure is unknown until it runs. A call's key begins with its task (``2/resize``: in the second task that the
function started). Tasks become parallel branches, placed between the calls of the task that started them, in whatever order they
happened to run. The calls of a ``map`` are one node. Each node gets a mark: done, running, waiting, failed or skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Literal, cast

import msgspec

from stepwell.flow.definition.node import Definition, Node, Parallel, Sequence, Signal, StepNode, Subworkflow, Wait
from stepwell.model.fan_out import FAN_OUT, FanOut
from stepwell.model.trace import Trace, TraceEvent

__all__ = ["Mark", "figure_of"]

Mark = Literal["done", "running", "waiting", "failed", "skipped"]
"""The state of a node in a run."""

_TASK = re.compile(r"(?:\d+/)*")
_UNDO = "undo:"
_WAITS = {"sleep": "sleep", "signal": "signal", "child": "child"}


class _Call:
    """A call of the function and what the trace says about it."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.task = cast("re.Match[str]", _TASK.match(key))[0]
        self.name = key[len(self.task) :].partition("#")[0]
        self.kind = "signal" if self.name.startswith("signal:") else "sleep" if self.name == "sleep" else "step"
        self.mark: Mark = "waiting"
        self.attempts = 1
        self.start: datetime | None = None
        self.end: datetime | None = None
        self.child = ""
        self.summary = ""
        self.rank = 0
        """Its rank among the calls that ended."""
        self.is_drawn = False
        """Whether its label shows the number of attempts."""

    def node(self) -> Node:
        match self.kind:
            case "sleep":
                return Wait(name=self.key, time=self.span, description=self.told)
            case "signal":
                return Signal(name=self.key, signal=self.name.removeprefix("signal:"), description=self.told)
            case "child":
                return Subworkflow(name=self.key, workflow=self.name, description=self.told)
            case _:
                tries = f" · {self.attempts} attempts" if self.is_drawn and self.attempts > 1 else ""
                return StepNode(
                    name=self.key,
                    uses=self.name.removeprefix(_UNDO) + tries,
                    description=self.told,
                    summary=self.summary if self.is_drawn else "",
                )

    @property
    def span(self) -> float:
        """The duration in seconds."""
        return round((self.end - self.start).total_seconds(), 2) if self.start and self.end else 0.0

    @property
    def told(self) -> str:
        """The text under its name: mark, attempts and child."""
        tries = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        child = f", child {self.child}" if self.child else ""
        return f"{self.mark}{tries}{child}"


class _Group:
    """The calls of a ``map``, as one node."""

    def __init__(self, event: TraceEvent, rank: int) -> None:
        self.key, self.fan_out, self.rank = event.name, msgspec.convert(event.value, FanOut), rank
        self.task = cast("re.Match[str]", _TASK.match(self.key))[0]
        self.calls: list[_Call] = []

    def takes(self, call: _Call) -> bool:
        """Return whether a call is one of an item."""
        if self.fan_out.first.endswith("/"):
            return self.fan_out.item_of(call.task) is not None
        is_next = (call.task, call.name) == (self.task, self.fan_out.name) and call.rank >= self.rank
        return is_next and len(self.calls) < self.fan_out.size

    @property
    def mark(self) -> Mark:
        """The mark of the whole."""
        marks = {call.mark for call in self.calls}
        if "failed" in marks:
            return "failed"
        is_over = self._ended() >= self.fan_out.size
        return "done" if is_over and marks <= {"done"} else "skipped" if is_over and "skipped" in marks else "running"

    def _ended(self, *marks: Mark) -> int:
        """Return how many items have ended calls, only those with these marks if any are given."""
        calls = [call for call in self.calls if not marks or call.mark in marks]
        is_of_branches = self.fan_out.first.endswith("/")
        return len({self.fan_out.item_of(call.task) for call in calls}) if is_of_branches else len(calls)

    def node(self) -> Node:
        ended = self._ended("done")
        size, name = self.fan_out.size, self.fan_out.name
        done = "" if ended == size else f", {ended} done"
        return StepNode(name=self.key, uses=f"{name}: {size} items{done}", description=self.mark)


def figure_of(name: str, trace: Trace, *, is_drawn: bool = True) -> tuple[Definition, dict[str, Mark]]:
    """Return the calls of a run as a definition, and the mark of each.

    - ``trace``: a full trace.
    - ``is_drawn``: whether labels are for a picture and show attempts; without it the definition can be checked.
    """
    calls, groups = _calls(trace.events)
    for call in calls.values():
        call.is_drawn = is_drawn
    undone = [call for call in calls.values() if call.name.startswith(_UNDO)]
    made: list[_Call | _Group] = []
    for call in calls.values():
        group = next((each for each in groups if each.takes(call)), None) if is_drawn else None
        if call.name.startswith(_UNDO):
            continue
        if group is None:
            made.append(call)
        else:
            group.calls.append(call)
    made += [group for group in groups if group.calls]
    made.sort(key=lambda each: each.rank)
    nodes = [*_branch("", made), *(call.node() for call in undone)]
    definition = Definition(name=name, root=Sequence(name=f"({name})", nodes=tuple(nodes)))
    return definition, {each.key: each.mark for each in (*made, *undone)}


def _calls(events: Iterable[TraceEvent]) -> tuple[dict[str, _Call], list[_Group]]:
    """Return the calls by key in the order in which they ended, waiting calls last; and the maps."""
    groups: dict[str, _Group] = {}
    ended: dict[str, _Call] = {}
    waiting: dict[str, _Call] = {}
    for event in events:
        if event.kind == "wait" and event.status in (*_WAITS, "retry"):
            call = waiting.setdefault(event.name, _Call(event.name))
            _note_wait(call, event)
        elif event.kind == "wait" and event.status == FAN_OUT:
            groups.setdefault(event.name, _Group(event, len(ended)))
        elif event.kind == "step":
            call = waiting.pop(event.name, None) or _Call(event.name)
            _note_end(call, event)
            call.rank = len(ended)
            ended[event.name] = call
    for call in waiting.values():
        call.rank = len(ended)
    return ended | waiting, list(groups.values())


def _note_wait(call: _Call, event: TraceEvent) -> None:
    value = cast("dict[str, Any]", event.value) if isinstance(event.value, dict) else {}
    call.kind = _WAITS.get(event.status, call.kind)
    call.start = call.start or event.at
    call.end = event.at
    if event.status == "child":
        call.child = str(value.get("execution_id", ""))
    if event.status == "retry":
        call.attempts += 1
        call.summary = str(value.get("summary") or "")


def _note_end(call: _Call, event: TraceEvent) -> None:
    call.mark = "failed" if event.status == "FAILED" else "skipped" if event.status in ("SKIPPED", "CANCELLED") else "done"
    call.end = event.at
    call.summary = event.summary or call.summary
    if event.at is not None:
        call.start = call.start or event.at - timedelta(milliseconds=event.duration_ms or 0)
    if event.status == "FAILED" and isinstance(event.value, dict):
        call.attempts = int(cast("dict[str, Any]", event.value).get("attempts") or call.attempts)


def _branch(task: str, calls: list[_Call | _Group]) -> Iterator[Node]:
    """Iterate over the nodes of a task: its own calls in order, and between them the tasks that it started."""
    own = [call for call in calls if call.task == task]
    inner: dict[str, list[_Call | _Group]] = {}
    for call in calls:
        if call.task != task:
            number = call.task[len(task) :].partition("/")[0]
            inner.setdefault(f"{task}{number}/", []).append(call)
    pending = sorted(inner.items(), key=lambda item: int(item[0][len(task) : -1]))
    for call in own:
        before = [item for item in pending if min(each.rank for each in item[1]) < call.rank]
        pending = [item for item in pending if item not in before]
        yield from _side_by_side(before)
        yield call.node()
    yield from _side_by_side(pending)


def _side_by_side(tasks: list[tuple[str, list[_Call | _Group]]]) -> Iterator[Node]:
    branches: dict[str, Node] = {}
    for task, calls in tasks:
        nodes = [*_branch(task, calls)]
        branches[task.rstrip("/")] = nodes[0] if len(nodes) == 1 else Sequence(name=f"({task})", nodes=tuple(nodes))
    if branches:
        yield Parallel(name=f"tasks {', '.join(branches)}", branches=branches)
