"""The cost of a step does not depend on their number: counted in calls of functions, which no other process can slow down."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.unit.kernel.driver import Driver

from stepwell.flow import call, define, each, graph, loop, parallel, scope, sequence
from stepwell.flow.definition.node import Definition
from stepwell.kernel.protocol import StepCompleted


def calls_of_one_step(definition: Definition, after: int) -> tuple[int, int]:
    """How many functions are called, and how many mutations made, for one step after so many others."""
    driver = Driver(definition)
    for _ in range(after):
        driver.answer()
    asked = driver.waiting.pop(0)
    count = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        came = driver.kernel.handle(StepCompleted(asked.token_id, asked.key, b"1"), driver.now_ms)
    finally:
        sys.setprofile(None)
    return count, len(came.mutations)


def long_sequence(size: int) -> Definition:
    return define("w", *(call("s", 1, name=f"n{number}") for number in range(size)))


def wide_parallel(size: int) -> Definition:
    return define("w", parallel(branches={f"b{number}": call("s", 1) for number in range(size)}))


def many_instances(size: int) -> Definition:
    return define("w", each(call("s", 1), count=size))


def long_loop(size: int) -> Definition:
    return define("w", loop(call("s", 1), count=size))


def wide_graph(size: int) -> Definition:
    nodes = {"end": call("s", 1), **{f"n{number}": call("s", 1) for number in range(size)}}
    return define("w", graph(nodes, [(f"n{number}", "end") for number in range(size)]))


def deep_nesting(size: int) -> Definition:
    node: Any = sequence(*(call("s", 1, name=f"n{number}") for number in range(9)))
    for number in range(size):
        node = (sequence(node), parallel(only=node), scope(node), loop(node, count=1))[number % 4]
    return define("w", node)


@pytest.mark.parametrize(
    ("shape", "small", "large"),
    [
        (long_sequence, 10, 10_000),
        (wide_parallel, 10, 1_000),
        (many_instances, 10, 1_000),
        (long_loop, 10, 1_000),
        (wide_graph, 10, 500),
        (deep_nesting, 4, 100),
    ],
)
def test_a_step_costs_the_same_however_large_the_definition_is(shape: Any, small: int, large: int) -> None:
    few, few_mutations = calls_of_one_step(shape(small), after=3)
    many, many_mutations = calls_of_one_step(shape(large), after=3)
    assert many <= few * 1.2
    assert many_mutations == few_mutations


def test_a_hundred_deep_ends_without_running_out_of_stack() -> None:
    driver = Driver(deep_nesting(100)).go()
    assert driver.end is not None
    assert driver.is_clean()


def test_an_ordinary_step_is_three_mutations() -> None:
    """Its output, the count, and the token that moves on."""
    assert calls_of_one_step(long_sequence(10), after=3)[1] == 3


def test_cancelling_costs_what_is_inside_the_scope() -> None:
    """A scope of one step, beside a thousand others."""

    def mutations(size: int) -> int:
        others = {f"b{number}": call("s", 1) for number in range(size)}
        driver = Driver(define("w", parallel(branches={"small": scope("slow", timeout="1s"), **others}, fail_fast=False)))
        before = driver.mutations
        driver.advance(1)
        return driver.mutations - before

    assert mutations(1_000) == mutations(2)
