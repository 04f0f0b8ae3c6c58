"""Exploring a definition finds what no run could want and how it comes to that; near ones without the fault have no finding."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.flow import (
    call,
    cancel_scope,
    choice,
    deferred,
    each,
    graph,
    loop,
    map_data,
    otherwise,
    parallel,
    scope,
    sequence,
    signal,
    subworkflow,
    throw,
    validate,
    wait,
    when,
)
from stepwell.flow.definition.node import Definition, Edge, Graph, Loop, Node, Parallel, StepNode
from stepwell.kernel.soundness.explorer import Exploration, check, explore


def explored(*nodes: Any, **bounds: int) -> Exploration:
    """Explore a definition that was not checked."""
    return explore(Definition(name="w", root=sequence(*nodes)), **bounds)


def faults(*nodes: Any) -> list[tuple[str, str]]:
    found = explored(*nodes)
    assert found.is_complete
    return [(fault.kind, fault.node) for fault in found.faults]


SOUND: list[list[Any]] = [
    ["a", "b"],
    ["a", choice(when("trigger.input.x", throw("no")), otherwise("b")), "c"],
    [choice(when("trigger.input.x", "a")), "b"],
    [parallel("a", throw("no"), join="any"), "b"],
    [parallel("a", "b", "c", join=2, cancel_losers=False), "d"],
    [parallel("a", "b", join="discriminator"), "c"],
    [parallel("a", sequence("b", "c"), join="first"), "d"],
    [parallel(scope(wait("1h"), timeout="1s", on_cancel="fail"), "a", join="any", max_concurrency=1), "b"],
    [parallel(scope(signal("go"), cancel_on="stop", on_cancel="fail"), "a", join="any", max_concurrency=1), "b"],
    [loop("a", until="steps.a.output.done", max_iterations=50), "b"],
    [loop("a", while_="trigger.input.more", max_iterations=50, delay=3), "b"],
    [loop("a", count=10_000), "b"],
    [loop(sequence("a", "b"), items="{{ trigger.input }}", break_when="index > 3"), "c"],
    [loop("a", until="false", max_iterations=3, break_when="steps.a.output"), "b"],
    [each("a", items="{{ trigger.input }}", join=3), "b"],
    [each("a", count=1000, concurrency=5, join=999), "b"],
    [each("a", count=3, join="none"), "b"],
    [signal("go"), "a"],
    [deferred({"yes": "a", "no": "b"}, timeout="1h", on_timeout="c"), "d"],
    [wait("{{ trigger.input.when }}"), "a"],
    [scope(sequence("a", throw("no")), timeout="5s"), "b"],
    [scope(sequence("a", cancel_scope("s")), name="s"), "b"],
    [scope(signal("never"), cancel_on="stop"), "b"],
    [graph({"a": "a", "b": "b", "c": "c"}, [("a", "b", "steps.a.output.x"), ("a", "c")])],
    [subworkflow("other"), subworkflow("third", detached=True), "a"],
    [validate("{{ trigger.input }}", {"type": "object"}), "a"],
    [call("a", compensate=call("undo"))],
]


@pytest.mark.parametrize("nodes", SOUND)
def test_a_sound_definition_has_no_findings(nodes: list[Any]) -> None:
    assert faults(*nodes) == []


DEAD: dict[str, tuple[list[Any], list[str]]] = {
    "after what always fails": (["a", scope(throw("no")), "b", "c"], ["b"]),
    "an empty loop": ([loop("a", count=0), "b"], ["a"]),
    "an empty range": ([loop("a", range=(5, 5)), "b"], ["a"]),
    "a loop while false": ([loop("a", while_="1 > 2", max_iterations=3), "b"], ["a"]),
    "no instances": ([each(sequence("a", "b"), items=[]), "c"], ["sequence-2"]),
    "a case that cannot hold": ([choice(when("false and trigger.input", "a"), otherwise("b"))], ["a"]),
    "an otherwise behind what always holds": ([choice(when("trigger.input or true", "a"), otherwise("b"))], ["b"]),
    "a node behind an arrow that is never taken": ([graph({"a": "a", "b": "b"}, [("a", "b", "false")])], ["b"]),
    "what a branch would do after its scope is cancelled": ([scope(sequence("a", cancel_scope("s"), "b"), name="s"), "c"], ["b"]),
}


@pytest.mark.parametrize(("nodes", "dead"), DEAD.values(), ids=DEAD)
def test_a_step_that_is_never_begun_is_found(nodes: list[Any], dead: list[str]) -> None:
    assert faults(*nodes) == [("dead", name) for name in dead]


def test_what_is_dead_is_told_with_the_way_to_the_place_before_it() -> None:
    (fault,) = explored("a", scope(throw("no")), "b").faults
    assert fault.message == "'b' is never begun: 'scope' before it never ends well"
    assert (fault.where, fault.path) == ("do.sequence[2]", ("a completes",))
    assert str(fault) == f"do.sequence[2]: {fault.message}; after: a completes"


def test_a_join_that_can_never_pass_is_a_deadlock() -> None:
    short: Node = Parallel(branches={"a": StepNode(uses="a"), "b": StepNode(uses="b")}, join=3)
    assert faults(short) == [("deadlock", "parallel")]
    assert faults(parallel("a", sequence("b", throw("no")))) == [("deadlock", "parallel")]
    assert faults(parallel("a", choice(when("trigger.input", "b"), otherwise(throw("no"))))) == []
    assert faults(each("a", count=2, join=2)) == []
    assert faults(each("a", count=0, join="any")) == [("deadlock", "each"), ("dead", "a")]


def test_a_node_that_waits_for_an_arrow_from_nowhere_is_a_deadlock() -> None:
    nodes: dict[str, Node] = {name: StepNode(uses=name) for name in "abc"}
    edges = (Edge(source="a", target="c"), Edge(source="b", target="c"))
    found = explored(Graph(nodes=nodes, edges=edges, start=("a",)))
    deadlock = next(fault for fault in found.faults if fault.kind == "deadlock")
    assert (deadlock.node, deadlock.path) == ("c", ("a completes",))
    assert faults(Graph(nodes=nodes, edges=edges)) == []


def test_waiting_for_a_signal_is_no_deadlock() -> None:
    assert faults(parallel(signal("a"), signal("b")), signal("a")) == []


def test_a_signal_may_have_come_before_anybody_listens() -> None:
    at_once = sequence(signal("go"), map_data(1))
    assert faults(parallel(branches={"a": at_once, "b": throw("no")}, join="any")) == []
    late = sequence(signal("go", transient=True), map_data(1))
    assert ("dead", "map_data") in faults(parallel(branches={"a": late, "b": throw("no")}))


def test_what_is_begun_beside_what_stops_it_is_not_called_dead() -> None:
    assert faults(scope(parallel(cancel_scope("s"), "a"), name="s"), "c") == []
    assert faults(scope(parallel(call("a", 1, on_error="continue"), cancel_scope("s")), name="s")) == []


def endless(**how: Any) -> Loop:
    return Loop(do=StepNode(uses="poll"), **how)


def test_a_loop_without_a_way_out_is_a_livelock() -> None:
    found = explored("a", endless(until="false"))
    assert [(fault.kind, fault.node, fault.path) for fault in found.faults] == [("livelock", "loop", ("a completes",))]
    assert faults(endless(until="steps.poll.output")) == []
    assert faults(endless(until="false", break_when="steps.poll.output")) == []
    assert faults(scope(endless(while_="true"), timeout="1h")) == []
    assert faults(scope(endless(while_="true"), cancel_on="stop")) == []


def test_a_livelock_in_one_branch_does_not_hide_the_other() -> None:
    nodes = [parallel(branches={"poll": endless(until="false"), "work": sequence("a", "b", "c")}), "d"]
    assert faults(*nodes) == [("livelock", "loop"), ("dead", "d")]
    deeper = parallel(branches={"poll": endless(until="false"), "work": scope(scope(sequence("a", "b", "c")))})
    assert faults(deeper, "d") == [("livelock", "loop"), ("dead", "d")]


def test_the_other_branch_may_be_the_way_out_of_a_loop() -> None:
    work = sequence("a", cancel_scope("s"))
    assert faults(scope(parallel(branches={"poll": endless(until="false"), "work": work}), name="s"), "d") == []
    calm = call("a", on_error="continue")
    assert faults(parallel(branches={"poll": endless(until="false"), "work": calm}, join="any"), "d") == []
    rough = explored(parallel(branches={"poll": endless(until="false"), "work": call("a")}, join="any"), "d")
    assert [(fault.kind, fault.path[-1]) for fault in rough.faults] == [("livelock", "a fails")]


@pytest.mark.parametrize(
    "again",
    [
        subworkflow("w"),
        choice(when("trigger.input > 1", subworkflow("w", name="again")), otherwise(subworkflow("w", name="more"))),
        each(subworkflow("w"), count=2),
    ],
)
def test_recursion_without_a_way_out_is_a_livelock(again: Any) -> None:
    (fault,) = explored("a", again, "b").faults
    assert fault.kind == "livelock"
    assert fault.path[0].startswith("a completes")
    assert "the recursion has no end" in fault.message


@pytest.mark.parametrize(
    "again",
    [
        choice(when("trigger.input > 1", subworkflow("w")), otherwise(map_data(1))),
        choice(when("trigger.input > 1", subworkflow("w")), otherwise(throw("enough"))),
        each(subworkflow("w"), items="{{ trigger.input }}"),
        subworkflow("w", detached=True),
        subworkflow("w", version=7),
        subworkflow("another"),
    ],
)
def test_recursion_with_a_way_out_is_no_fault(again: Any) -> None:
    assert explored("a", again, "b").faults == ()


def test_a_loop_that_only_its_bound_stops_is_a_livelock() -> None:
    found = explored(loop("a", until="false", max_iterations=100))
    assert [(fault.kind, fault.node) for fault in found.faults] == [("livelock", "loop")]
    assert found.faults[0].path == ("a[0] completes", "a[1] completes", "a[2] completes")
    assert faults(loop("a", count=5, max_iterations=4)) == [("livelock", "loop")]
    assert faults(loop("a", count=5, max_iterations=5)) == []


def test_ending_while_something_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.kernel.nodes import scopes

    monkeypatch.setattr("stepwell.kernel.nodes.joins.cancel_inside", lambda *_, **__: None)
    assert scopes.cancel_inside
    found = explored(parallel("a", "b", join="any"))
    assert ("improper", "sequence") in [(fault.kind, fault.node) for fault in found.faults]


def test_when_a_bound_is_met_it_is_said_and_nothing_is_called_dead() -> None:
    nodes = ["a", "b", "c", scope(throw("no")), "d"]
    assert explored(*nodes, max_states=2).bound == "2 states"
    assert explored(*nodes, max_depth=2).bound == "2 moves one after another"
    cut = explored(*nodes, max_states=2)
    assert (cut.is_complete, cut.faults) == (False, ())


def test_states_do_not_multiply_with_branches_that_are_joined_by_all() -> None:
    wide = parallel(*(sequence(f"a{n}", f"b{n}", f"c{n}") for n in range(10)))
    assert explored(wide, "z").states <= 40


def test_iterations_are_few_whatever_their_number() -> None:
    nested = loop(loop(each("a", count=500), count=1000), count=1000)
    found = explored(nested, "b")
    assert found.is_complete
    assert found.states < 50


def test_check_gives_what_can_be_seen_first_and_else_what_exploring_finds() -> None:
    unsound = Definition(name="w", root=sequence("a", scope(throw("no")), "b"))
    assert [str(problem) for problem in check(unsound)] == [
        "do.sequence[2]: dead: 'b' is never begun: 'scope' before it never ends well\nafter: a completes"
    ]
    unknown = Definition(name="w", root=sequence(call("a", "{{ steps.x.output }}"), scope(throw("no")), "b"))
    assert ["steps.x" in problem.message or "'x'" in problem.message for problem in check(unknown)] == [True]
    assert check(Definition(name="w", root=sequence("a", "b")), steps=["a"])[0].where == "do.sequence[1].step"
    assert check(Definition(name="w", root=sequence("a", "b")), steps=["a", "b"]) == ()
