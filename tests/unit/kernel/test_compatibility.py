"""Whatever the two versions are: an execution that may go on with the other one ends, and leaves nothing behind."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.kernel.driver import Driver
from tests.unit.kernel.test_properties import STEPS, lived_through, trees, undoable, undone, uniquely

from stepwell.errors import InvalidDefinition
from stepwell.flow import call, define, sequence
from stepwell.flow.definition.node import Case, Definition, Node, NodeFields
from stepwell.kernel.compatibility import obstacles
from stepwell.kernel.plan import Plan
from stepwell.kernel.token import ROOT
from stepwell.model.mutation import UpdateToken
from stepwell.model.record import decode_token, encode_token
from stepwell.testing.effort import scaled


def named(node: Any, counter: list[int]) -> Any:
    """The same tree with a name for every node."""
    counter[0] += 1
    return msgspec.structs.replace(rebuilt(node, lambda inner: named(inner, counter)), name=f"n{counter[0]}")


def rebuilt(node: Any, change: Any) -> Any:
    """The same node with each node inside it changed."""
    changes: dict[str, Any] = {}
    for field in node.__struct_fields__:
        value = getattr(node, field)
        if isinstance(value, NodeFields):
            changes[field] = change(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Case):
            changes[field] = tuple(msgspec.structs.replace(case, do=change(case.do)) for case in value)
        elif isinstance(value, tuple) and value and isinstance(value[0], NodeFields):
            changes[field] = tuple(change(each) for each in value)
        elif isinstance(value, dict) and value and all(isinstance(each, NodeFields) for each in value.values()):
            changes[field] = {key: change(each) for key, each in value.items()}
    return msgspec.structs.replace(node, **changes)


def edited(node: Any, chance: random.Random, odds: float) -> Any:
    """The tree with some nodes replaced, taken away, added, or changed in what they are."""
    node = rebuilt(node, lambda inner: edited(inner, chance, odds))
    if chance.random() > odds:
        return node
    added = call("ok", 99, name=f"new{chance.randrange(10**9)}")
    kind = type(node).__name__
    if kind == "Sequence":
        nodes = list(node.nodes)
        match chance.randrange(4):
            case 0 if len(nodes) > 1:
                nodes.pop(chance.randrange(len(nodes)))
            case 1:
                chance.shuffle(nodes)
            case _:
                nodes.insert(chance.randrange(len(nodes) + 1), added)
        return msgspec.structs.replace(node, nodes=tuple(nodes))
    if kind == "Parallel" and chance.random() < 0.5:
        return msgspec.structs.replace(node, branches={**node.branches, "added": added})
    if kind == "StepNode" and node.compensate is not None and chance.random() < 0.5:
        return msgspec.structs.replace(node, compensate=None)
    return sequence(node, added) if chance.random() < 0.6 else sequence(added, node) if chance.random() < 0.5 else added


def versions(tree: Any, chance: random.Random) -> tuple[Definition, Definition]:
    """Two versions of a definition: the second is the first with some edits. Their nodes have names, or not."""
    whole = uniquely(tree, [0])
    whole = named(whole, [0]) if chance.random() < 0.7 else whole
    before, after = call("ok", 0, name="first"), call("ok", 0, name="last")
    odds = chance.choice([0.1, 0.3, 0.6])
    return define("w", before, whole, after), define("w", before, edited(whole, chance, odds), after, version=2)


def moved(driver: Driver, new: Definition) -> bool:
    """Whether the execution can go on with the other version; it does from here on."""
    plan = Plan(new)
    if obstacles(driver.plan, plan, driver.view):
        return False
    root = decode_token(driver.state.sections["tokens"][ROOT])
    driver._commit([UpdateToken(ROOT, msgspec.Raw(encode_token(root.replace(node=plan.root.name))))])
    driver.plan = plan
    driver.restart()
    return True


@settings(max_examples=scaled(200), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(tree=trees, seed=st.integers(0, 2**32), flag=st.booleans(), with_cancel=st.booleans())
def test_execution_that_is_moved_ends_and_leaves_nothing_behind(tree: Node, seed: int, flag: bool, with_cancel: bool) -> None:
    chance = random.Random(seed)
    try:
        old, new = versions(tree, chance)
    except InvalidDefinition:
        return
    driver = Driver(old, flag, STEPS, seed=seed)
    for _ in range(chance.randrange(8)):
        if driver.end is None and driver.waiting:
            driver.answer()
        elif driver.end is None:
            driver.advance(1)
    if driver.end is not None or not moved(driver, new):
        return
    lived_through(driver, chance, with_cancel=with_cancel)
    assert driver.is_clean()
    assert driver.kernel.tokens == {}
    assert driver.end is not None
    if driver.end.status != "COMPLETED":
        assert undone(driver) >= undoable(driver), "what was done is undone"
