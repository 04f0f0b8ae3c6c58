"""The checker: every fault that can be seen without running, with its path, and nothing that is sound."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stepwell.errors import InvalidDefinition
from stepwell.flow import (
    Definition,
    Keep,
    Node,
    Range,
    Retry,
    approval,
    call,
    cancel_scope,
    check,
    choice,
    deferred,
    define,
    each,
    edge,
    graph,
    http_request,
    log,
    loop,
    map_data,
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
from stepwell.flow.definition.node import Choice, Each, Graph, Loop, Parallel, Sequence, StepNode
from stepwell.kernel.token import LOOSE, ROOT, UNDO

ONE_BOSS = "do.escalate_to: 2 of 1 approvers can never agree"


def faults(node: Node, **known: object) -> list[str]:
    return [str(problem) for problem in check(Definition(name="flow", root=node), **known)]


def asks(text: str) -> StepNode:
    return call("ask", {"v": f"{{{{ {text} }}}}"}, name="asking")


def test_a_sound_definition_has_no_faults() -> None:
    node = sequence(
        call("reserve", {"o": "{{ trigger.input }}"}, compensate=call("release", {"r": "{{ steps.reserve.output }}"})),
        parallel(call("charge"), "pack", join=1),
        choice(when("steps.parallel.output.charge.total > 100", approval("Large")), otherwise("ship")),
        loop("poll", until="steps.poll.output.done and index < 3", max_iterations=9),
        each(sequence("resize", call("store", "{{ steps.resize.output }}")), items="{{ trigger.input.photos }}", name="photos"),
        graph({"a": "x", "b": "y"}, [edge("a", "b", when="steps.a.output.ok")]),
        deferred({"yes": call("go", "{{ item }}")}, timeout="1h", on_timeout=log("late")),
        scope(sequence(signal("go"), cancel_scope("region")), name="region"),
        set_variables(total="{{ steps.photos.output | len }}"),
        map_data("{{ loops.photos.total_items }}"),
        wait("{{ steps.map_data.output }}"),
    )
    assert faults(node) == []


# Shapes of nodes.


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        (Sequence(nodes=()), "do: the sequence is empty"),
        (Parallel(branches={}), "do: there are no branches"),
        (parallel("a", "b", join=3), "do.join: it waits for 3 of 2 branches, which can never happen"),
        (parallel("a", optional=["c"]), "do.optional[0]: there is no branch 'c'"),
        (Choice(cases=()), "do: the choice has no cases"),
        (choice(when("1 > 2", "a")), "do.choice[0].when: this case can never be chosen: its condition is always false"),
        (choice(when("index > 1 ", "a")), "do.choice[0].when: there is no index here: it is known only inside a loop or each"),
        (
            choice(when("true", "a"), when("trigger.input", "b")),
            "do.choice[1].when: this case can never be chosen: one before it always is",
        ),
        (choice(when("true", "a"), otherwise("b")), "do.otherwise: this can never be chosen: a case before it always is"),
        (
            choice(when("trigger.input.x  > 1", "a"), when("trigger.input.x > 1", "b")),
            "do.choice[1].when: this case can never be chosen: case 1 has the same condition",
        ),
        (loop("a"), "do: a loop has exactly one of count, range, items, while, until, and none is there"),
        (loop("a", count=1, items=[1]), "do: a loop has exactly one of count, range, items, while, until, not count and items"),
        (loop("a", while_="trigger.input.x"), "do.while: the loop has no bound: give it max_iterations"),
        (loop("a", until="trigger.input.x"), "do.until: the loop has no bound: give it max_iterations"),
        (loop("a", range=(0, 9, 0)), "do.range.step: the loop has no bound: a step of 0 goes nowhere"),
        (
            loop("a", range=Range(start=-(2**63), stop=2**63 - 1)),
            "do.range: the range has more numbers than can be counted in 64 bits",
        ),
        (loop("a", count="three"), "do.count: expected a whole number or a template, not the text 'three'"),
        (loop("a", items="abc"), "do.items: items must be a list or a template that gives one"),
        (loop("a", count=1, collect=Keep()), "do.collect: give either 'first' or 'last'"),
        (each("a"), "do: each needs either items or a count"),
        (each("a", count=1001), "do: 1,001 instances are more than the limit of 1,000"),
        (each("a", items=[1, 2], join=3), "do.join: it waits for 3 of 2 instances, which can never happen"),
        (each("a", count=0, join="any"), "do.join: it waits for 1 of 0 instances, which can never happen"),
        (each("a", items=[], join="any"), "do.join: it waits for 1 of 0 instances, which can never happen"),
        (deferred({}), "do: there are no branches"),
        (deferred({"a": "x"}, on_timeout="y"), "do.on_timeout: this can never run: there is no timeout_seconds"),
        (deferred({"on_timeout": "x"}), "do.deferred.on_timeout: a signal cannot have the name 'on_timeout' here"),
        (approval("ok?", timeout=1, on_timeout="default"), "do.on_timeout: on_timeout 'default' needs the key 'default'"),
        (approval("ok?", timeout=1, on_timeout="escalate"), "do.on_timeout: on_timeout 'escalate' needs the key 'escalate_to'"),
        (approval("ok?", default=1), "do: the settings for a timeout need timeout_seconds"),
        (approval("ok?", approvers=["a"], needed=2), "do.needed: 2 of 1 approvers can never agree"),
        (
            approval("ok?", approvers=["a", "b"], needed=2, timeout=1, on_timeout="escalate", escalate_to=["c"]),
            ONE_BOSS,
        ),
        (approval("ok?", needed=2, timeout=1, on_timeout="escalate", escalate_to=["{{ variables.boss }}"]), ONE_BOSS),
        (signal(""), "do.signal: a signal needs a name"),
        (call("a", compensate=call("b", compensate="c")), "do.compensate.compensate: a compensation cannot have a compensation"),
        (sequence(throw("no"), "after"), "do.sequence[1]: this can never run: the node before it always fails"),
        (call("stepwell.lgo"), "do.step: there is no built-in step 'lgo'; did you mean 'log'?"),
        (call("stepwell.log"), "do.with: log needs 'message'"),
        (call("stepwell.log", {"message": "a", "levl": 1}), "do.with.levl: log takes no 'levl'; did you mean 'level'?"),
        (http_request("https://a", max_bytes=0), "do.with.max_bytes: max_bytes is a whole number from 1 to 100,000,000, not 0"),
        (call("stepwell.set_variables", [1]), "do.with: set_variables takes a mapping"),
        (call("stepwell.log", 5), "do.with: log takes a mapping or a text"),
        (cancel_scope("regoin"), "do.with: there is no scope 'regoin'"),
    ],
)
def test_a_fault_of_a_node_is_found_with_its_path(node: Node, fault: str) -> None:
    assert faults(node) == [fault]


def test_what_only_looks_odd_is_no_fault() -> None:
    assert faults(call("stepwell.http_request", {"url": "https://a", "max_bytes": "{{ variables.most }}"})) == []
    assert faults(sequence(call("stepwell.throw", "no", on_error="continue"), "after")) == []
    assert faults(choice(when("trigger.input.a", "x"), when("trigger.input.a", "y"), mode="all")) == []
    assert faults(loop("a", range=Range(start=9, stop=0, step=-3))) == []
    assert faults(loop("a", range=Range(start=0, stop=2**63 - 1))) == []
    assert faults(approval("ok?", approvers=["a"], timeout=1, on_timeout="escalate", escalate_to=["c"])) == []
    assert faults(cancel_scope("root")) == []


# Graphs.


def test_every_fault_of_a_graph_is_in_one_report() -> None:
    node = Graph(
        nodes={name: StepNode(uses=name) for name in ("a", "b", "c", "d", "alone")},
        edges=(
            edge("a", "b"),
            edge("b", "c"),
            edge("c", "b"),
            edge("a", "x"),
            edge("y", "d"),
            edge("a", "b", "trigger.input"),
            edge("d", "d"),
        ),
        start=("a", "q"),
    )
    assert faults(node) == [
        "do.edges[3].to: there is no node 'x' in the graph",
        "do.edges[4].from: there is no node 'y' in the graph",
        "do.edges[5]: there is a second edge from 'a' to 'b'; join their conditions with 'or'",
        "do.start[1]: there is no node 'q' in the graph",
        "do.edges: the graph has a cycle: b -> c -> b",
        "do.edges: the graph has a cycle: d -> d",
        "do.graph.alone: no edge leads to 'alone' or away from it: add one, or name it in 'start'",
    ]


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        (Graph(nodes={}), "do: the graph has no nodes"),
        (
            graph({"a": "a", "b": "b", "c": "c"}, [("a", "b"), ("c", "b")], start=["a"]),
            "do.graph.c: 'c' can never be reached from the start: lead an edge to it, or name it in 'start'",
        ),
        (graph({"a": "a", "b": "b"}, [("a", "b")], start=["a", "b"]), "do.start: 'b' is a start, so no edge may lead to it"),
        (
            graph({"a": "a", "b": "b"}, [edge("a", "b", "trigger.input", otherwise=True)]),
            "do.edges[0]: an edge has a condition or is 'otherwise', not both",
        ),
        (
            graph({"a": "a", "b": "b"}, [edge("a", "b", otherwise=True)]),
            "do.edges[0].otherwise: 'otherwise' needs another edge from 'a' with a condition",
        ),
    ],
)
def test_a_graph_must_hold_together(node: Node, fault: str) -> None:
    assert faults(node) == [fault]


@pytest.mark.parametrize(
    ("node", "where"),
    [
        (signal("a\0b"), "do.signal"),
        (signal("x" * 600), "do.signal"),
        (scope("a", cancel_on="a\0b"), "do.cancel_on"),
        (deferred({"a\0b": "a"}), "do.deferred.a\0b"),
        (graph({"a": "a", "b": "b"}, [edge("a", "b", id="a\0b")]), "do.edges[0].id"),
    ],
)
def test_names_that_nobody_could_write_are_refused(node: Node, where: str) -> None:
    [fault] = faults(node)
    assert fault.startswith(f"{where}: ")
    assert "NUL character" in fault or "over the limit" in fault


def test_long_graphs_are_checked_without_recursion() -> None:
    names = [f"n{number}" for number in range(3000)]
    nodes = {name: StepNode(uses="x") for name in names}
    chain = [edge(a, b) for a, b in pairwise(names)]
    assert faults(Graph(nodes=nodes, edges=tuple(chain))) == []
    closed = Graph(nodes=nodes, edges=(*chain, edge(names[-1], names[0])))
    assert [fault[:35] for fault in faults(closed)] == ["do.edges: the graph has a cycle: n0"]


# References.


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        (sequence("a", asks("steps.b.output")), "there is no node 'b'; there are a, asking, sequence"),
        (sequence("charge", asks("steps.chrage.output")), "there is no node 'chrage'; did you mean 'charge'?"),
        (sequence("a", asks("steps.a.outptu")), "steps.a has no 'outptu'; did you mean 'output'?"),
        (sequence(asks("steps.a.output"), "a"), "'a' runs only after this"),
        (sequence("a", asks("steps.asking.output")), "'asking' is not done yet when this is asked"),
        (sequence("a", asks("steps.sequence.output")), "'sequence' is not done yet when this is asked"),
        (
            parallel("a", asks("steps.a.output")),
            "'a' is in another branch of 'parallel' and may not be done; guard it with ?? or exists",
        ),
        (
            choice(when("trigger.input", "a"), otherwise(asks("steps.a.output"))),
            "'a' is in another case of 'choice': it does not run when this does",
        ),
        (
            graph({"a": "x", "b": asks("steps.a.output")}, start=["a", "b"]),
            "no edges lead from 'a' to 'asking': it may not be done",
        ),
        (
            sequence(each("a", items=[1]), asks("steps.a.output")),
            "'a' runs once for each instance of 'each'; ask for steps.each.output",
        ),
        (
            sequence(call("a", compensate="undo"), asks("steps.undo.output")),
            "'undo' runs only to undo 'a'; guard it with ?? or exists",
        ),
        (sequence("a", asks("loops.a.current_index")), "there is no loop 'a'"),
        (sequence(loop("a", count=2), asks("loops.loop.index")), "loops.loop has no 'index'"),
        (asks("item.x"), "there is no item here: it is known only inside a loop or each"),
        (deferred({"go": asks("index")}), "there is no index here: it is known only inside a loop or each"),
        (
            deferred({"go": "a"}, timeout=1, on_timeout=asks("item")),
            "there is no item here: it is known only inside a loop or each",
        ),
        (asks("state.workfow.x"), "state is read as state.SCOPE.KEY with a scope of"),
        (asks("state.workflow[trigger.input]"), "state.workflow[...] must be written state.workflow.KEY, with a fixed key"),
        (asks("state.custom.x"), "state.custom.x must be written state.custom.NAME.KEY"),
    ],
)
def test_a_reference_that_cannot_lead_anywhere_is_found(node: Node, fault: str) -> None:
    found = faults(node)
    assert len(found) == 1
    assert found[0].partition(": ")[2].startswith(fault)
    assert found[0].partition(": ")[0].endswith("with.v")


@pytest.mark.parametrize(
    "node",
    [
        sequence(asks("steps.a.output ?? 1"), "a"),
        parallel("a", asks("exists(steps.a) and steps.a.output")),
        sequence(choice(when("trigger.input", "a")), asks("steps.a.output")),
        sequence(loop("a", count=2), asks("steps.a.output")),
        sequence(loop("a", count=2), asks("loops.loop.current_index")),
        loop(asks("item"), items=[1]),
        each(asks("index"), count=2),
        deferred({"go": asks("item")}),
        deferred({"go": deferred({"on": "a"}, timeout=1, on_timeout=asks("item"))}),
        each(deferred({"go": "a"}, timeout=1, on_timeout=asks("item + index")), items=[1]),
        graph({"a": "x", "b": "y", "c": asks("steps.a.output")}, [("a", "b"), ("b", "c")]),
        sequence("a", loop("b", while_="steps.a.output", max_iterations=2)),
        loop("b", while_="steps.b.output ?? true", max_iterations=2),
        call("a", compensate=call("b", "{{ steps.a.output }}")),
        asks("state.workflow.x"),
        asks("state.custom.ns.key[0]"),
        asks("steps[trigger.input.which].output"),
        asks("variables.anything"),
    ],
)
def test_a_reference_that_can_lead_somewhere_is_fine(node: Node) -> None:
    assert faults(node) == []


def test_a_condition_that_is_asked_before_its_loop_has_run_is_found() -> None:
    assert faults(loop("a", while_="steps.a.output", max_iterations=3)) == [
        "do.while: 'a' has not run yet when this is first asked; guard it with ?? or exists"
    ]


def test_an_arrow_may_ask_for_its_source_and_what_leads_to_it_only() -> None:
    nodes = {"a": "x", "b": "y", "c": "z", "d": "w"}
    fine = graph(nodes, [("a", "b"), ("b", "c", "steps.a.output and steps.b.output"), ("a", "d")])
    assert faults(fine) == []
    early = graph(nodes, [("a", "b"), ("b", "c", "steps.d.output"), ("a", "d")])
    assert faults(early) == ["do.edges[1].when: no edges lead from 'd' to 'b': it may not be done"]


def test_the_output_of_the_definition_is_checked_too() -> None:
    definition = Definition(name="a", root=StepNode(uses="x"), output={"v": "{{ steps.y.output }}", "w": "{{ steps.x.output }}"})
    assert [str(problem) for problem in check(definition)] == ["output.v: there is no node 'y'; there are x"]


# Names and types.


def test_names_are_unique() -> None:
    node = sequence(call("a", name="x"), call("b", name="x"), graph({"y": "c", "x": "d"}, [("y", "x")]))
    assert faults(node) == [
        "do.sequence[1].name: the name 'x' is taken by another node, at do.sequence[0]",
        "do.sequence[2].graph.x: the name 'x' is taken by another node, at do.sequence[0]",
    ]


BRACKETS = "ends in a number in brackets, as only iterations do; choose another"
OWN = "is one that a run uses itself; choose another"
ATTEMPT = "ends in # and a number, as only further attempts of a subworkflow do; choose another"


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        (call("a", name="a[0]"), f"do.name: the name 'a[0]' {BRACKETS}"),
        (loop("a", count=1, name="x\ny[1][23]"), f"do.name: the name 'x\\ny[1][23]' {BRACKETS}"),
        (call("a[0]"), f"do.step: the name 'a[0]' {BRACKETS}"),
        (graph({"a[0]": "a"}), f"do.graph.a[0]: the name 'a[0]' {BRACKETS}"),
        (call("a", name=ROOT), f"do.name: the name '(root)' {OWN}"),
        (call("a", name="(after) b"), f"do.name: the name '(after) b' {OWN}"),
        (call("a", name=f"{UNDO} b"), f"do.name: the name '(undo) b' {OWN}"),
        (parallel(**{LOOSE: "a"}), f"do.parallel.(loose): the name '(loose)' {OWN}"),
        (deferred({UNDO: "a"}), f"do.deferred.(undo): the name '(undo)' {OWN}"),
        (graph({LOOSE: "a"}), f"do.graph.(loose): the name '(loose)' {OWN}"),
        (subworkflow("a", name="a#2"), f"do.name: the name 'a#2' {ATTEMPT}"),
        (subworkflow("a#10"), f"do.subworkflow: the name 'a#10' {ATTEMPT}"),
        (scope("a", name="root"), "do.name: a scope cannot have the name 'root': that is the whole run"),
    ],
)
def test_a_name_that_the_kernel_gives_to_something_else_is_refused(node: Node, fault: str) -> None:
    assert faults(node) == [fault]


@pytest.mark.parametrize(
    "name", ["a[b]", "a[]", "[0]a", "a[0]\n", "a[٣]", "a#2", "(after)", "(undo)", "root", "(roots)", "é" * 128]
)
def test_a_name_that_only_resembles_one_of_the_kernel_is_fine(name: str) -> None:
    assert faults(call("a", name=name)) == []


def test_a_name_leaves_room_for_what_a_run_adds_to_it() -> None:
    node = sequence(call("a", name="é" * 129), graph({"g" * 257: "b"}), subworkflow("c" * 600), call("d", name="d" * 256))
    long = "the name of a node has at most 256 bytes, since a run adds to it; this one has"
    assert faults(node) == [
        f"do.sequence[0].name: {long} 258",
        f"do.sequence[1].graph.{'g' * 257}: {long} 257",
        f"do.sequence[2].subworkflow: {long} 600",
    ]


def test_known_steps_and_workflows_are_held_against_a_list() -> None:
    node = sequence("charge", "chrge", subworkflow("billing"), log("x"))
    assert faults(node) == []
    assert faults(node, steps=["charge"], workflows=["invoicing"]) == [
        "do.sequence[1].step: there is no step 'chrge'; did you mean 'charge'?",
        "do.sequence[2].subworkflow: there is no workflow 'billing'",
    ]


def test_fields_of_the_wrong_type_are_found_in_what_was_built_in_python() -> None:
    node = Sequence(
        nodes=(
            StepNode(uses=5, timeout_seconds=-1.0),
            Loop(do=StepNode(uses="a"), count=1, max_iterations=0, delay_seconds="soon"),
            Each(do="b", count=-1),
            Parallel(branches={"c": None}, join="most", optional=["c"]),
            Choice(cases=({"when": "true"},)),
            StepNode(uses="d", args={"a": (1, 2), "b": "{{ nope }}", "c": object()}),
        )
    )
    found = faults(node)
    assert [fault.partition(": ")[0] for fault in found] == [
        "do.sequence[0].step",
        "do.sequence[0].timeout_seconds",
        "do.sequence[1].max_iterations",
        "do.sequence[1].delay_seconds",
        "do.sequence[2].count",
        "do.sequence[3].parallel.c",
        "do.sequence[3].join",
        "do.sequence[4].choice[0]",
        "do.sequence[5].with",
    ]


def test_a_definition_with_many_faults_gives_all_of_them() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        define("bad", loop("a"), each("b"), asks("steps.zz.output"), call("c", retry=Retry(attempts=2)), parallel("x", join=2))
    assert [str(problem).partition(":")[0] for problem in caught.value.errors] == [
        "do.sequence[0]",
        "do.sequence[1]",
        "do.sequence[4].join",
        "do.sequence[2].with.v",
    ]


def test_a_tree_in_a_circle_of_values_is_refused_not_followed() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert "nested more than" in faults(StepNode(uses="a", args=circle))[0]
