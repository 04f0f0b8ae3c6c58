"""The builder: the same tree as a document, steps by name or function, and names that are always the same."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.flow.definitions import definitions

import stepwell.flow
from stepwell.errors import InvalidDefinition, InvalidInput
from stepwell.flow import (
    Definition,
    Outline,
    Range,
    Retry,
    approval,
    call,
    cancel_scope,
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
    parse,
    render,
    scope,
    script,
    sequence,
    set_variables,
    signal,
    subworkflow,
    throw,
    validate,
    wait,
    when,
)
from stepwell.flow.definition.node import Sequence, StepNode
from stepwell.flow.function import Step, step
from stepwell.flow.language.template import StateKey, state_keys


class Registered:
    """The parts of a decorated function that a definition reads."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self) -> None: ...


charge = Registered("charge")


def test_a_builder_and_a_document_give_the_same_tree() -> None:
    built = define(
        "everything",
        call(charge, {"order": "{{ trigger.input }}"}, retry=Retry(attempts=5), timeout_seconds="30s", compensate="refund"),
        parallel(charge, "pack", insure=subworkflow("insurance", context="copy"), join="any", optional=["insure"]),
        choice(when("steps.charge.output.total > 1", "a", "b"), otherwise(throw("no"))),
        loop("poll", wait(60), range=(10, 0, -2), break_when="index > 3", delay="5s", collect="last"),
        each(script("return 1"), items=[1, 2], concurrency=2, join=1),
        graph({"x": "x", "y": "y"}, [("x", "y", "steps.x.output.ok")]),
        scope(signal("go", timeout=timedelta(minutes=1)), timeout="1h", cancel_on="stop", name="region"),
        deferred({"yes": log("yes"), "no": cancel_scope("region")}, timeout="1d", on_timeout=map_data({"late": True})),
        approval("Ship it?", approvers=["ann", "bob"], needed=2, timeout="3d", on_timeout="escalate", escalate_to=["eve", "joe"]),
        set_variables(done=True),
        validate("{{ steps.approval.output }}", {"type": "object"}),
        http_request("https://example.org", method="POST", json={"a": 1}, secret_headers={"Authorization": "x"}),
        version=3,
        variables={"done": False},
        output="{{ steps.approval.output }}",
    )
    written = parse("""
name: everything
version: 3
variables: {done: false}
output: "{{ steps.approval.output }}"
do:
  - step: charge
    with: {order: "{{ trigger.input }}"}
    retry: {attempts: 5}
    timeout_seconds: 30s
    compensate: refund
  - parallel:
      charge: charge
      pack: pack
      insure: {subworkflow: insurance, context: copy}
    join: any
    optional: [insure]
  - choice:
      - when: steps.charge.output.total > 1
        do: [a, b]
    otherwise: {throw: {message: "no"}}
  - loop: [poll, {wait: 60}]
    range: {start: 10, stop: 0, step: -2}
    break_when: index > 3
    delay_seconds: 5s
    collect: last
  - each: {script: return 1}
    items: [1, 2]
    concurrency: 2
    join: 1
  - graph: {x: x, y: y}
    edges: [{from: x, to: y, when: steps.x.output.ok}]
  - scope: {signal: go, timeout_seconds: 1m}
    timeout_seconds: 1h
    cancel_on: stop
    name: region
  - deferred:
      "yes": {log: {message: "yes", level: info}}
      "no": {cancel_scope: {scope: region}}
    timeout_seconds: 1d
    on_timeout: {map_data: {late: true}}
  - approval: Ship it?
    approvers: [ann, bob]
    needed: 2
    timeout_seconds: 3d
    on_timeout: escalate
    escalate_to: [eve, joe]
  - set_variables: {done: true}
  - validate: {value: "{{ steps.approval.output }}", schema: {type: object}}
  - http_request: {url: "https://example.org", method: POST, json: {a: 1}, secret_headers: {Authorization: x}}
""")
    assert built == written


def test_one_node_is_the_root_itself_and_several_are_a_sequence() -> None:
    assert define("a", "x").root == StepNode(uses="x")
    assert define("a", "x", charge).root == Sequence(nodes=(StepNode(uses="x"), StepNode(uses="charge")))


def test_branches_without_names_are_named_after_their_steps_or_by_number() -> None:
    assert list(parallel("a", "a", sequence("b"), call("c", name="d"), e="f").branches) == ["a", "2", "3", "d", "e"]
    assert list(parallel(branches={"odd name": "a"}).branches) == ["odd name"]
    with pytest.raises(InvalidDefinition, match="two branches 'a'"):
        parallel("a", a="b")


def test_node_is_not_taken_for_a_step_of_its_name() -> None:
    with pytest.raises(InvalidDefinition, match=r"a node \(Subworkflow 'undo'\) is no step"):
        call("book", compensate=subworkflow("cancelling", name="undo"))  # pyright: ignore[reportArgumentType] - that is the point
    with pytest.raises(InvalidDefinition, match="is no workflow"):
        subworkflow(call("book", name="b"))  # pyright: ignore[reportArgumentType] - that is the point


def test_what_is_no_step_is_refused() -> None:
    with pytest.raises(InvalidDefinition, match="decorate the function"):
        sequence(lambda: None)
    with pytest.raises(InvalidDefinition, match="5 is neither a step nor the name of one"):
        sequence(5)
    with pytest.raises(InvalidDefinition, match="neither a step nor the name"):
        sequence("")
    with pytest.raises(InvalidDefinition, match=r"takes when\(\.\.\.\) and at most one otherwise"):
        choice(when("true", "a"), otherwise("b"), otherwise("c"))
    with pytest.raises(InvalidDefinition, match="a range is"):
        loop("a", range=(1, 2, 3, 4))
    with pytest.raises(InvalidDefinition, match="the status 'LIVE' is none of DRAFT, ACTIVE, PAUSED"):
        define("a", "x", status="LIVE")
    with pytest.raises(InvalidInput, match="a tuple would come back as a list"):
        call("a", {"b": (1, 2)})
    with pytest.raises(InvalidInput, match="timeout must be seconds"):
        scope("a", timeout="soon")


def test_ranges_are_those_of_python() -> None:
    assert loop("a", range=(3,)).range == Range(stop=3)
    assert loop("a", range=(1, 3)).range == Range(start=1, stop=3)
    assert loop("a", range=(5, 0, -2)).range == Range(start=5, stop=0, step=-2)
    assert loop("a", range=Range(stop=2)).range == Range(stop=2)
    assert loop("a", range=range(5, 0, -2)).range == Range(start=5, stop=0, step=-2)
    assert loop("a", range=range(3)).range == Range(start=0, stop=3, step=1)
    with pytest.raises(InvalidDefinition, match="a range is"):
        loop("a", range=5)  # pyright: ignore[reportArgumentType]


# Names.


def names(*nodes: object) -> list[str]:
    return [place.name for place in Outline(define("a", *nodes))]


def test_a_node_is_named_after_its_step_or_kind_with_a_number_if_that_is_taken() -> None:
    found = names("a", "b", "a", sequence("a", call("c", compensate="a")), subworkflow("w"), log("x"), wait(1), wait(2))
    assert found == ["sequence", "a", "b", "a-2", "sequence-2", "a-3", "c", "a-4", "w", "log", "wait", "wait-2"]


def test_a_name_that_a_user_chose_is_kept_and_not_taken_by_others() -> None:
    assert names("a", call("b", name="a"), call("b", name="a-2"), "a") == ["sequence", "a-3", "a", "a-2", "a-4"]


def test_the_key_of_a_node_in_a_graph_is_its_name() -> None:
    assert names(graph({"x": "a", "y": call("b", name="z")}, [("x", "y")])) == ["graph", "x", "z"]


@given(definitions())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_names_are_unique_and_the_same_every_time(definition: Definition) -> None:
    first, second = Outline(definition), Outline(definition)
    assert [place.name for place in first] == [place.name for place in second]
    assert len(first) == len({place.path for place in first})
    for place in first:
        assert first[place.name] is place
        assert place.parent is None or place.parent.children[place.slot] is place
        assert place.depth == len([*place.ancestors()]) + 1


def given_to(name: str, *nodes: object) -> object:
    return Outline(define("a", *nodes))[name].args.source


def test_a_node_is_given_the_output_before_it_if_it_does_not_say() -> None:
    assert given_to("a", "a", "b") == "{{ trigger.input }}"
    assert given_to("b", "a", "b") == "{{ steps.a.output }}"
    assert given_to("b", "a", log("x"), wait(1), set_variables(v=1), "b") == "{{ steps.a.output }}"
    assert given_to("c", call("a", name="odd name"), parallel("b", "c")) == '{{ steps."odd name".output }}'
    assert given_to("d", parallel("b", "c"), "d") == "{{ steps.parallel.output }}"
    assert given_to("b", "a", loop("b", count=2)) == "{{ item }}"
    assert given_to("b", deferred({"go": "b"})) == "{{ item }}"
    assert given_to("b", call("a", {"x": 1}, compensate="b")) == "{{ steps.a.output }}"
    assert given_to("b", call("b", [1])) == [1]


def test_a_node_of_a_graph_is_given_what_its_predecessors_gave() -> None:
    node = graph({"a": "x", "b": "y", "c": "z"}, [("a", "b"), ("a", "c"), edge("b", "c", "steps.b.output")])
    assert given_to("a", node) == "{{ trigger.input }}"
    assert given_to("b", node) == "{{ steps.a.output }}"
    assert given_to("c", node) == {"a": "{{ steps.a.output ?? null }}", "b": "{{ steps.b.output ?? null }}"}


def test_state_that_a_template_reads_is_known_beforehand() -> None:
    outline = Outline(
        define("a", call("x", ["{{ state.global.k }}", "{{ state.custom.ns.k.deep }} {{ state.workflow.'a b' ?? 1 }}"]))
    )
    assert sorted(state_keys(outline["x"].args.references)) == [
        StateKey("custom", "ns", "k"),
        StateKey("global", "", "k"),
        StateKey("workflow", "", "a b"),
    ]


# The face.


def test_the_face_is_sorted_complete_and_says_what_it_is() -> None:
    assert stepwell.flow.__all__ == sorted(stepwell.flow.__all__)
    for name in stepwell.flow.__all__:
        assert getattr(stepwell.flow, name) is not None
        assert name == "Node" or (getattr(stepwell.flow, name).__doc__ or "").strip(), name
    assert sorted(name for names in stepwell.flow._HOMES.values() for name in names) == stepwell.flow.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = stepwell.flow.nonsense


def test_set_variables_takes_a_name_for_its_node_like_other_builders() -> None:
    node = set_variables({"name": "ann"}, name="greet", count=1)
    assert (node.name, node.args) == ("greet", {"name": "ann", "count": 1})
    with pytest.raises(InvalidDefinition, match="set_variables takes a mapping of values by name, not list"):
        set_variables([1])  # pyright: ignore[reportArgumentType]


def test_edges_have_ids_which_documents_keep() -> None:
    built = define("w", graph({"a": "s", "b": "s"}, [edge("a", "b", id="a-to-b")]))
    assert parse(render(built)) == built
    assert [each.id for each in built.root.edges] == ["a-to-b"]


def test_two_edges_with_one_id_are_refused() -> None:
    with pytest.raises(InvalidDefinition, match=r"edges\[1\].id: there is a second edge with the id 'e'"):
        define("w", graph({"a": "s", "b": "s", "c": "s"}, [edge("a", "b", id="e"), edge("a", "c", id="e")]))


def test_a_definition_refuses_a_step_whose_name_another_function_has() -> None:
    def make(text: str) -> Step[[], str]:
        @step(name="builder.twin")
        def twin() -> str:
            return text

        return twin

    first, second = make("one"), make("two")
    with pytest.raises(InvalidDefinition, match=r"another function is registered as step 'builder\.twin'"):
        define("w", call(first))
    define("w", call(second))
