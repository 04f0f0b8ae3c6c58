"""Declared workflows killed at each of their commits, before it lands and after: the same result by the same steps. T30."""

from __future__ import annotations

from stepwell import Retry, current, step, workflow
from stepwell.flow import (
    Node,
    approval,
    call,
    choice,
    deferred,
    define,
    each,
    edge,
    graph,
    loop,
    otherwise,
    parallel,
    scope,
    sequence,
    set_variables,
    signal,
    subworkflow,
    throw,
    wait,
    when,
)
from stepwell.runtime.steps.context import StepContext
from stepwell.testing.crash_testing import crash_everywhere


@step(name="crash.add")
def add(number: int) -> int:
    return number + 1


@step(name="crash.undo")
async def undo(number: int) -> None:
    """Nothing to see."""


@step(name="crash.second_time")
def second_time() -> int:
    here = current()
    assert isinstance(here, StepContext)
    if here.attempt == 1:
        raise ConnectionError("not yet")
    return here.attempt


def undoable(number: int) -> Node:
    return call("crash.add", number, compensate=call("crash.undo", number))


def test_branches_loops_instances_graphs_and_waits_survive() -> None:
    definition = define(
        "crash-wide",
        undoable(1),
        parallel(
            a=sequence(call("crash.add", 1), wait("5s"), call("crash.add", 2)),
            b=loop(call("crash.add", "{{ item }}"), items=[1, 2], delay="1s"),
            c=each(call("crash.add", "{{ item }}"), items=[4, 5, 6], concurrency=2),
            d=scope(signal("never"), timeout="10s"),
            e=graph(
                {"x": call("crash.add", 1), "y": call("crash.add", 2), "z": call("crash.add", 3)},
                [("x", "y", "steps.x.output == 2"), edge("x", "z", otherwise=True)],
            ),
        ),
        parallel(call("crash.add", 7), sequence(wait("3s"), call("crash.add", 8)), join="discriminator"),
        output="{{ steps.parallel.output }}",
    )
    report = crash_everywhere(definition)
    assert report.result == {"a": 3, "b": [2, 3], "c": [5, 6, 7], "d": None, "e": {"y": 3}}
    assert report.crashes == 2 * len(report.commits)


def test_signals_approvals_and_retries_survive() -> None:
    definition = define(
        "crash-asked",
        deferred({"yes": call("crash.add", "{{ item }}"), "no": throw("no")}),
        approval("Go on?", needed=2, name="board"),
        call("crash.second_time", retry=Retry(attempts=2, first_seconds=5)),
        choice(when("steps.board.output.is_approved", set_variables(n="{{ steps.deferred.output }}")), otherwise(throw("never"))),
        output="{{ variables.n }}",
    )
    ann, bob = ({"by": name, "is_approved": True} for name in ("ann", "bob"))
    assert crash_everywhere(definition, signals=[("yes", 4), ("board", ann), ("board", bob)]).result == 5


def test_compensation_survives() -> None:
    definition = define("crash-undone", undoable(1), scope(undoable(2), undoable(3), wait("1s"), throw("no")))
    report = crash_everywhere(definition)
    assert "Thrown: no" in str(report.result)


@workflow(name="crash-function")
async def a_function(number: int) -> int:
    return await add(number)


def test_children_survive() -> None:
    parent = define("crash-parent", parallel(a=subworkflow("crash-function", 1), b=call("crash.add", 1)))
    assert crash_everywhere(parent).result == {"a": 2, "b": 2}
