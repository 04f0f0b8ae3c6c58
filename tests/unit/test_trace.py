"""Traces tell what a run did, at the level that is asked for, and where two runs part."""

from __future__ import annotations

import pytest

import stepwell
from stepwell import InvalidInput, Stepwell, step, workflow
from stepwell.model.trace import Trace, TraceEvent, trace_of


@step
async def double(number: int) -> int:
    return number * 2


@workflow(name="traced")
async def traced(number: int) -> int:
    doubled = await double(number)
    stepwell.current().variables["doubled"] = doubled
    await stepwell.sleep(0.01)
    return doubled


def run_once(number: int) -> tuple[Trace, Trace, Trace]:
    with Stepwell("memory://") as well:
        run = well.start(traced, number)
        run.result(timeout=60)
        return run.trace("none"), run.trace("min"), run.trace()


def test_full_trace_has_times_and_values():
    _, _, full = run_once(4)
    done = next(event for event in full.events if event.kind == "step" and event.name == "double")
    assert (done.status, done.value, done.revision) == ("COMPLETED", 8, 1)
    assert done.at is not None
    assert done.duration_ms is not None


def test_short_trace_of_two_runs_is_the_same_though_their_values_are_not():
    (_, one, full), (_, another, other_full) = run_once(4), run_once(5)
    assert one == another
    assert one.difference(another) is None
    assert full != other_full
    assert [(event.kind, event.name) for event in one.events if event.kind in ("step", "wait", "variable")] == [
        ("step", "double"),
        ("variable", "doubled"),
        ("wait", "sleep"),
        ("step", "sleep"),
    ]


def test_no_trace_is_asked_for():
    assert run_once(4)[0] == Trace("none", [])


def test_full_trace_can_be_reduced_but_not_the_other_way():
    _, short, full = run_once(4)
    assert full.reduced("min") == short
    with pytest.raises(InvalidInput, match="has not what level 'full' needs"):
        short.reduced("full")


def test_difference_names_the_first_event():
    one = Trace("min", [TraceEvent("start"), TraceEvent("step", "pay", "COMPLETED")])
    another = Trace("min", [TraceEvent("start"), TraceEvent("step", "pay", "FAILED")])
    shorter = Trace("min", [TraceEvent("start")])
    assert one.difference(another) == "event 2 is step 'pay' COMPLETED, and step 'pay' FAILED in the other"
    assert one.difference(shorter) == "event 2 is step 'pay' COMPLETED, and nothing in the other"


def test_traces_of_different_levels_are_not_compared():
    with pytest.raises(InvalidInput, match="cannot be compared"):
        Trace("min").difference(Trace("full"))


def test_unknown_level_is_refused():
    with pytest.raises(InvalidInput, match="one of none, min, full"):
        trace_of([], "all")  # pyright: ignore[reportArgumentType]
