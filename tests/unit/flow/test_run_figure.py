"""The structure of a function's run, told from its trace: order, tasks side by side, waits, children, attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from stepwell.flow.definition.node import Node, Parallel, Sequence, Signal, StepNode, Subworkflow, Wait
from stepwell.flow.drawing.run_diagram import figure_of
from stepwell.model.trace import Trace, TraceEvent

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(ms: int) -> datetime:
    return T0 + timedelta(milliseconds=ms)


def made(key: str, ms: int, took: int = 0, status: str = "COMPLETED", value: Any = None) -> TraceEvent:
    return TraceEvent("step", key, status, at=at(ms), duration_ms=took, value=value)


def waits(key: str, kind: str, ms: int, **value: Any) -> TraceEvent:
    return TraceEvent("wait", key, kind, at=at(ms), value=value)


def shape(node: Node) -> Any:
    """A tree of keys: a list is in order, a mapping side by side."""
    match node:
        case Sequence():
            return [shape(each) for each in node.nodes]
        case Parallel():
            return {name: shape(each) for name, each in node.branches.items()}
        case _:
            return node.name


def drawn(*events: TraceEvent) -> Any:
    return shape(figure_of("w", Trace("full", list(events)))[0].root)


def test_calls_come_one_after_another() -> None:
    assert drawn(made("a", 1), made("b", 2), made("a#2", 3)) == ["a", "b", "a#2"]


def test_tasks_stand_side_by_side_between_the_calls_around_them() -> None:
    events = [made("a", 10), made("2/c", 20, 5), made("1/b", 30, 18), made("1/b#2", 40, 5), made("z", 50, 2)]
    assert drawn(*events) == ["a", {"1": ["1/b", "1/b#2"], "2": "2/c"}, "z"]


def test_tasks_look_alike_in_whatever_order_they_ran() -> None:
    first = [made("1/a", 10), made("2/a", 20), made("1/b", 30), made("2/b", 40)]
    second = [made("2/a", 10), made("2/b", 20), made("1/a", 30), made("1/b", 40)]
    assert drawn(*first) == drawn(*second) == [{"1": ["1/a", "1/b"], "2": ["2/a", "2/b"]}]


def test_tasks_inside_of_tasks_stand_inside() -> None:
    events = [made("1/a", 10), made("1/1/b", 20, 5), made("1/2/b", 20, 5), made("1/c", 30)]
    assert drawn(*events) == [{"1": ["1/a", {"1/1": "1/1/b", "1/2": "1/2/b"}, "1/c"]}]


def test_waits_children_and_attempts_are_what_they_were() -> None:
    events = [
        waits("sleep", "sleep", 0, due_ms=1),
        made("sleep", 2000),
        waits("signal:go", "signal", 2000, name="go"),
        made("signal:go", 2500),
        waits("kid", "child", 2500, execution_id="run:3"),
        made("kid", 2600),
        waits("flaky", "retry", 2700, error={}),
        made("flaky", 2800),
        made("bad", 2900, status="FAILED", value={"attempts": 3, "error": {}}),
        made("undo:kid", 3000),
        waits("signal:more", "signal", 3000, name="more"),
    ]
    definition, marks = figure_of("w", Trace("full", events))
    assert isinstance(definition.root, Sequence)
    sleep, go, kid, flaky, bad, more, undo = definition.root.nodes
    assert isinstance(sleep, Wait)
    assert sleep.time == 2.0
    assert isinstance(go, Signal)
    assert isinstance(kid, Subworkflow)
    assert kid.description == "done, child run:3"
    assert isinstance(flaky, StepNode)
    assert flaky.uses == "flaky · 2 attempts"
    assert bad.description == "failed after 3 attempts"
    assert isinstance(undo, StepNode)
    assert (undo.name, undo.uses) == ("undo:kid", "kid")
    assert {key: mark for key, mark in marks.items() if mark != "done"} == {"bad": "failed", "signal:more": "waiting"}
    assert more.name == "signal:more"
