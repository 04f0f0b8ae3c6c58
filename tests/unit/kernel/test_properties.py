"""Whatever the definition and whatever the order of events: a run ends, nothing is left behind, and what failed is undone."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.kernel.driver import Driver

from stepwell import Retry
from stepwell.flow import (
    call,
    choice,
    define,
    each,
    graph,
    loop,
    otherwise,
    parallel,
    scope,
    sequence,
    signal,
    subworkflow,
    wait,
    when,
)
from stepwell.flow.definition.node import Node
from stepwell.kernel.protocol import RunStep
from stepwell.testing.effort import scaled


def boom(_: Any) -> Any:
    raise ValueError("boom")


STEPS = {"bad": boom}

leaves = st.one_of(
    st.just(call("ok", 1)),
    st.just(call("ok", 1, compensate=call("undo", 1))),
    st.just(call("bad", on_error="continue")),
    st.just(call("bad", compensate=call("undo", 1))),
    st.just(call("bad", retry=Retry(attempts=2, first_seconds=1))),
    st.just(wait("1s")),
    st.just(signal("go", timeout="5s", on_timeout="continue")),
    st.just(subworkflow("kid", timeout_seconds=2, on_error="continue")),
)


def composites(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    few = st.lists(inner, min_size=1, max_size=3)
    joins = st.sampled_from(["all", "any", "first", "discriminator", 1, 2])
    return st.one_of(
        few.map(lambda nodes: sequence(*nodes)),
        st.builds(
            lambda nodes, join, fast, losers, most: parallel(
                branches={f"b{n}": node for n, node in enumerate(nodes)},
                join=min(join, len(nodes)) if isinstance(join, int) else join,
                merge="winner",
                fail_fast=fast,
                cancel_losers=losers,
                max_concurrency=most,
            ),
            few,
            joins,
            st.booleans(),
            st.booleans(),
            st.sampled_from([None, 1]),
        ),
        inner.map(lambda node: choice(when("trigger.input", node), otherwise("ok"))),
        st.builds(lambda node, delay: loop(node, count=2, delay=delay), inner, st.sampled_from([0, 1])),
        st.builds(
            lambda node, join, fast: each(node, count=2, join=join, fail_fast=fast),
            inner,
            st.sampled_from(["all", "any", "first", "none", 1]),
            st.booleans(),
        ),
        st.builds(lambda node, how: scope(node, timeout="3s", on_cancel=how), inner, st.sampled_from(["continue", "fail"])),
        st.builds(
            lambda a, b, fast: graph(
                {"n0": a, "n1": b, "n2": call("ok")}, [("n0", "n2"), ("n1", "n2", "trigger.input")], fail_fast=fast
            ),
            inner,
            inner,
            st.booleans(),
        ),
    )


trees = st.recursive(leaves, composites, max_leaves=6)


def uniquely(node: Any, counter: list[int]) -> Any:
    """The same tree with the keys of its graphs and the outputs of its steps made unique."""
    counter[0] += 1
    changes: dict[str, Any] = {"args": counter[0]} if getattr(node, "uses", "") == "ok" else {}
    for field in ("nodes", "branches"):
        inside = getattr(node, field, None)
        if isinstance(inside, tuple):
            changes[field] = tuple(uniquely(each_node, counter) for each_node in inside)
        elif isinstance(inside, dict):
            is_graph = type(node).__name__ == "Graph"
            names = {key: f"g{counter[0]}{key}" if is_graph else key for key in inside}
            counter[0] += 1
            changes[field] = {names[key]: uniquely(each_node, counter) for key, each_node in inside.items()}
            if is_graph:
                changes["edges"] = tuple(
                    msgspec.structs.replace(edge, source=names[edge.source], target=names[edge.target]) for edge in node.edges
                )
    if getattr(node, "do", None) is not None:
        changes["do"] = uniquely(node.do, counter)
    if getattr(node, "cases", None):
        changes["cases"] = tuple(msgspec.structs.replace(case, do=uniquely(case.do, counter)) for case in node.cases)
    return msgspec.structs.replace(node, **changes)


def lived_through(driver: Driver, chance: random.Random, *, with_cancel: bool) -> Driver:
    """Let things happen in any order until the end: answers, time, signals, crashes, and perhaps a cancel."""
    for _ in range(2000):
        if driver.end is not None:
            return driver
        what = chance.random()
        if driver.waiting and what < 0.7:
            driver.answer()
        elif what < 0.8:
            driver.restart()
        elif what < 0.85:
            driver.signal("go", 1)
        elif with_cancel and what < 0.88:
            driver.cancel()
        else:
            driver.advance(1)
    raise AssertionError(f"it does not end: {driver.view.tokens}")


@settings(max_examples=scaled(300), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(tree=trees, seed=st.integers(0, 2**32), flag=st.booleans(), with_cancel=st.booleans())
def test_a_run_ends_and_leaves_nothing_behind(tree: Node, seed: int, flag: bool, with_cancel: bool) -> None:
    definition = define("w", uniquely(tree, [0]))
    driver = Driver(definition, flag, STEPS, seed=seed)
    lived_through(driver, random.Random(seed), with_cancel=with_cancel)
    assert driver.is_clean()
    assert driver.kernel.tokens == {}
    assert driver.end is not None
    if driver.end.status != "COMPLETED":
        assert undone(driver) == undoable(driver), "what was done is undone"
    elif not any(place.kind == "scope" for place in driver.plan.outline):
        assert undone(driver) == set(), "what ended well is not"


def undoable(driver: Driver) -> set[str]:
    """The keys of all that was done and can be undone."""
    names = {place.name for place in driver.plan.outline if "compensate" in place.children and place.kind == "step"}
    steps = driver.view.steps.items()
    return {key for key, found in steps if key.partition("[")[0] in names and found.status == "COMPLETED"}


def undone(driver: Driver) -> set[str]:
    """The keys of all that was undone."""
    names = {place.name: place.parent.name for place in driver.plan.outline if place.slot == "compensate" and place.parent}
    parts = (key.partition("[") for key in driver.view.steps)
    return {names[name] + bracket + rest for name, bracket, rest in parts if name in names}


@settings(max_examples=scaled(100), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(tree=trees, seed=st.integers(0, 2**32), flag=st.booleans())
def test_the_same_events_give_the_same_state(tree: Node, seed: int, flag: bool) -> None:
    definition = define("w", uniquely(tree, [0]))
    ends = [
        lived_through(Driver(definition, flag, STEPS, seed=seed), random.Random(seed), with_cancel=False).view for _ in range(2)
    ]
    assert ends[0] == ends[1]


def interrupted_beside(held: Driver, other: Driver, chance: random.Random) -> None:
    """Let the same things happen to two runs; the other one is taken up again before each."""
    for _ in range(2000):
        if held.end is not None:
            return
        keys, what = asked_for(held), chance.random()
        key = chance.choice(keys) if keys and what < 0.7 else None
        other.restart()
        for driver in (held, other):
            if key is not None:
                driver.answer(key=key)
            elif what < 0.8:
                driver.signal("go", 1)
            else:
                driver.advance(1)
        assert outcome(other) == outcome(held)
    raise AssertionError(f"it does not end: {held.view.tokens}")


def asked_for(driver: Driver) -> list[str]:
    """The steps that are to be made; a child that was begun is asked for once more by a run that is taken up again."""
    return sorted(asked.key for asked in driver.waiting if isinstance(asked, RunStep))


def outcome(driver: Driver) -> tuple[object, ...]:
    """Return the visible state of a run."""
    view = driver.view
    return driver.end, view.steps, view.loops, view.tokens.keys(), asked_for(driver), driver.inbox, driver.kernel.soonest_ms


@settings(max_examples=scaled(300), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(tree=trees, seed=st.integers(0, 2**32), flag=st.booleans())
def test_a_run_that_is_taken_up_again_before_every_event_comes_to_the_same(tree: Node, seed: int, flag: bool) -> None:
    definition = define("w", uniquely(tree, [0]))
    interrupted_beside(Driver(definition, flag, STEPS), Driver(definition, flag, STEPS), random.Random(seed))
