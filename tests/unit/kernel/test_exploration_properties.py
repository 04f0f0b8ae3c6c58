"""Whatever the definition: what exploring calls dead is never run, and what it finds no fault with comes to its end."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.unit.kernel.driver import Driver
from tests.unit.kernel.test_properties import composites, leaves, uniquely

from stepwell.flow import (
    call,
    cancel_scope,
    choice,
    deferred,
    each,
    edge,
    graph,
    loop,
    otherwise,
    scope,
    sequence,
    signal,
    throw,
    when,
)
from stepwell.flow.definition.node import Action, Approval, Definition, Node, Signal, Wait
from stepwell.flow.definition.outline import Outline
from stepwell.flow.language.expression import compile_expression
from stepwell.kernel.soundness.explorer import explore
from stepwell.testing.effort import scaled

QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]


def flaky(seed: int) -> dict[str, Any]:
    """Steps that fail by chance."""
    chance = random.Random(seed)

    def step(_: Any) -> Any:
        if chance.random() < 0.3:
            raise ValueError("by chance")
        return chance.random() < 0.5

    return dict.fromkeys(("ok", "bad", "undo"), step)


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Conditions that join others."""
    several = st.lists(parts, min_size=2, max_size=3)
    return st.one_of(
        st.builds(lambda each, word: f"({f' {word} '.join(each)})", several, st.sampled_from(["and", "or"])),
        parts.map(lambda part: f"not {part}"),
    )


atoms = st.sampled_from(["true", "false", "trigger.input.a", "trigger.input.b", "trigger.input.c"])
conditions = st.recursive(atoms, joined, max_leaves=5)


def either(first: Node, node: Node, other: Node, word: str) -> Node:
    """Two ways in a graph, of which a condition decides."""
    edges = [edge("a", "b", when=word), edge("a", "c", otherwise=True), edge("b", "d"), edge("c", "d")]
    return graph({"a": first, "b": node, "c": other, "d": call("ok")}, edges=edges)


def constants(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    """Nodes with something in them that is the same always."""
    return st.one_of(
        composites(inner),
        st.builds(lambda node, other, word: choice(when(word, node), otherwise(other)), inner, inner, conditions),
        st.builds(
            lambda node, other, word, late: choice(when(word, node), when(late, other), mode="all"), inner, inner, *[conditions] * 2
        ),
        st.builds(either, inner, inner, inner, conditions),
        st.builds(lambda node, word: loop(node, while_=word, max_iterations=3), inner, conditions),
        st.builds(lambda node, word: loop(node, until=word, max_iterations=3), inner, conditions),
        st.builds(lambda node, count: loop(node, count=count), inner, st.integers(0, 3)),
        st.builds(lambda node, count, join: each(node, count=count, join=join), inner, st.integers(0, 3), st.integers(1, 3)),
        st.builds(lambda node, other: deferred({"go": node}, timeout="2s", on_timeout=other), inner, inner),
        st.builds(sequence, inner, inner),
        inner.map(lambda node: scope(node, name="region")),
    )


few = st.one_of(
    leaves,
    st.just(throw("no")),
    st.just(cancel_scope("root")),
    st.just(cancel_scope("region")),
    st.just(signal("go")),
    st.just(call("ok")),
)
trees = st.recursive(few, constants, max_leaves=7)


def named(tree: Node) -> Definition:
    return Definition(name="w", root=uniquely(tree, [0]))


def lived(definition: Definition, seed: int) -> Driver:
    """A run in which anything may happen in any order."""
    chance = random.Random(seed)
    driver = Driver(definition, {name: chance.random() < 0.5 for name in "abc"}, flaky(seed), seed=seed)
    for _ in range(400):
        if driver.end is not None:
            break
        what = chance.random()
        if driver.waiting and what < 0.7:
            driver.answer()
        elif what < 0.8:
            driver.signal("go", 1)
        else:
            driver.advance(chance.choice([1, 2, 5]))
    return driver


def dead_steps(definition: Definition, dead: set[str]) -> set[str]:
    """The steps and waits in places that were called dead, and behind them."""
    outline = Outline(definition)
    found: set[str] = set()
    for place in outline:
        is_leaf = isinstance(place.node, Action | Wait | Signal | Approval) and place.slot != "compensate"
        if is_leaf and dead & {place.name, *(around.name for around in place.ancestors())}:
            found.add(place.name)
    return found


@settings(max_examples=scaled(150), deadline=None, suppress_health_check=QUIET)
@given(tree=trees, seed=st.integers(0, 2**32))
def test_what_is_called_dead_is_never_run(tree: Node, seed: int) -> None:
    definition = named(tree)
    found = explore(definition)
    dead = dead_steps(definition, {fault.node for fault in found.faults if fault.kind == "dead"})
    assume(dead)
    for number in range(20):
        driver = lived(definition, seed + number)
        ran = {key.partition("[")[0] for key in (*driver.keys, *driver.state.sections["steps"])}
        skipped = {name for name, record in driver.view.steps.items() if record.status == "SKIPPED"}
        assert not dead & (ran - {name.partition("[")[0] for name in skipped})


@settings(max_examples=scaled(150), deadline=None, suppress_health_check=QUIET)
@given(tree=trees, seed=st.integers(0, 2**32))
def test_what_has_no_fault_comes_to_its_end(tree: Node, seed: int) -> None:
    definition = named(tree)
    found = explore(definition)
    assume(found.is_complete and not found.faults)
    for number in range(5):
        driver = lived(definition, seed + number)
        assert driver.end is not None, driver.view.tokens
        assert driver.is_clean()


def fruitless(definition: Definition) -> set[str]:
    """The loops that are said to have no end, and the joins that are said never to pass."""
    told = ("goes on and on, and nothing in it ends it", "never ends by itself", "can never come together")
    return {fault.node for fault in explore(definition).faults if any(each in fault.message for each in told)}


@settings(max_examples=scaled(150), deadline=None, suppress_health_check=QUIET)
@given(tree=trees, seed=st.integers(0, 2**32))
def test_what_is_said_never_to_end_well_never_does(tree: Node, seed: int) -> None:
    definition = named(tree)
    found = fruitless(definition)
    assume(found)
    for number in range(20):
        steps = lived(definition, seed + number).view.steps.values()
        assert not found & {record.node_name for record in steps if record.status == "COMPLETED"}


@settings(max_examples=scaled(100), deadline=None, suppress_health_check=QUIET)
@given(tree=trees)
def test_a_definition_is_explored_whole_and_always_alike(tree: Node) -> None:
    first, second = explore(named(tree)), explore(named(tree))
    assert first == second
    assert first.is_complete
    assert not [fault for fault in first.faults if fault.kind == "improper"]


@settings(max_examples=scaled(150), deadline=None, suppress_health_check=QUIET)
@given(condition=st.recursive(st.sampled_from(["true", "false", "X"]), joined, max_leaves=6))
def test_exactly_the_branches_that_no_data_leads_to_are_called_dead(condition: str) -> None:
    names = [f"n{number}" for number in range(condition.count("X"))]
    for name in names:  # each reference once, so that none excludes another
        condition = condition.replace("X", f"trigger.input.{name}", 1)
    holds = compile_expression(condition).holds
    inputs = (dict(zip(names, values, strict=True)) for values in product([True, False], repeat=len(names)))
    outcomes = {holds({"trigger": {"input": each}}) for each in inputs}
    found = explore(named(choice(when(condition, call("ok", name="yes")), otherwise(call("ok", name="no")))))
    never = {name for name, outcome in (("yes", True), ("no", False)) if outcome not in outcomes}
    assert {fault.node for fault in found.faults if fault.kind == "dead"} == never


@pytest.mark.parametrize("condition", ["trigger.input.a and trigger.input.b", "trigger.input.a or not trigger.input.b"])
def test_a_loop_that_data_can_end_is_no_livelock(condition: str) -> None:
    for word in ("while_", "until"):
        assert explore(named(loop(call("ok"), **{word: condition}))).faults == ()


def test_two_hundred_runs_never_meet_a_dead_step() -> None:
    definition = named(
        sequence(
            choice(when("false", call("ok", name="never")), otherwise(call("ok", name="always"))),
            scope(sequence(call("ok", name="work"), throw("no")), timeout="3s", on_cancel="continue"),
            call("bad", name="late"),
        )
    )
    found = explore(definition)
    assert [(fault.kind, fault.node) for fault in found.faults] == [("dead", "never")]
    seen = [lived(definition, seed).keys for seed in range(200)]
    assert {"always", "work", "late"} <= {key for keys in seen for key in keys}
    assert not [keys for keys in seen if "never" in keys]
