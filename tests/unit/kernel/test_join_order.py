"""The recorded order of joins, loops and times, also after a resume."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kernel.driver import Driver

from stepwell.flow import call, define, graph, loop, parallel, sequence, set_variables, subworkflow, wait


def boom(_: Any) -> Any:
    raise ValueError("boom")


def interrupted(driver: Driver) -> None:
    """Take a run up again, if that is tried."""
    if driver.reload:
        driver.restart()


@pytest.fixture(params=[False, True], ids=["held", "reloaded"])
def reload(request: pytest.FixtureRequest) -> bool:
    """Whether the interpreter is built again from the state before every event."""
    return request.param


def test_winner_of_a_join_is_the_first_that_ended_though_the_run_was_taken_up_again() -> None:
    driver = Driver(define("w", parallel(branches={name: call(name, name) for name in "abc"}, join=3, merge="winner")))
    for name in "ba":
        driver.answer(name)
        driver.advance(1)
    driver.restart()
    assert driver.go().output == "b"


def test_loop_waits_between_its_rounds_and_not_after_the_last() -> None:
    driver = Driver(define("w", loop(call("s", 1), count=2, delay="10s"), call("after", 2)))
    driver.answer()
    assert driver.waiting == []
    driver.advance(10)
    driver.answer()
    assert [asked.key for asked in driver.waiting] == ["after"]


def test_of_those_that_end_in_the_same_moment_the_first_in_the_document_wins(reload: bool) -> None:
    branches = {name: call(name, name) for name in "abc"}
    driver = Driver(define("w", parallel(branches=branches, join=3, merge="winner")), reload=reload)
    for name in "bac":
        interrupted(driver)
        driver.answer(name)
    assert driver.output == "a"


def test_of_failures_in_the_same_moment_the_first_in_the_document_is_told(reload: bool) -> None:
    branches = {name: call("bad", name=name) for name in "abc"}
    driver = Driver(define("w", parallel(branches=branches, fail_fast=False)), steps={"bad": boom}, reload=reload)
    for name in "cab":
        interrupted(driver)
        driver.answer(key=name)
    assert driver.error["step"] == "a"


def test_failure_of_a_graph_is_that_of_the_first_though_the_run_was_taken_up_again(reload: bool) -> None:
    nodes = {name: call("bad") for name in "abc"} | {"end": call("ok")}
    definition = define("w", graph(nodes, [(name, "end") for name in "abc"], fail_fast=False))
    driver = Driver(definition, steps={"bad": boom}, reload=reload)
    for name in "bac":
        interrupted(driver)
        driver.answer(key=name)
        driver.advance(1)
    assert driver.error["step"] == "b"


def test_times_that_come_at_once_are_served_in_the_order_of_the_document(reload: bool) -> None:
    until = "2026-01-01T00:01:00Z"
    first, second = (sequence(wait(until), set_variables(last=name)) for name in "ab")
    definition = define("w", parallel(sequence(call("later"), first), second), output="{{ variables.last }}")
    driver = Driver(definition, reload=reload)
    driver.answer("later")
    assert driver.go().output == "b"


def test_time_of_a_child_counts_once_though_the_child_before_it_had_the_same(reload: bool) -> None:
    rounds = loop(subworkflow("kid", timeout_seconds=10, on_error="continue"), count=2)
    driver = Driver(define("w", rounds), reload=reload)
    driver.child("run:kid[0]", status="COMPLETED", result={"output": 1})
    interrupted(driver)
    driver.advance(10)
    assert driver.output == [1, None]
    assert driver.cancelled == ["run:kid[1]"]
