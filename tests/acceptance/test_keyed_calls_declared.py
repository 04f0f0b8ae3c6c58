"""Calls with a key of one's own in definitions: ``key: charge-7`` runs once in an execution."""

from __future__ import annotations

import threading
from textwrap import dedent
from typing import Any
from uuid import UUID

import pytest
from tests.acceptance.conftest import working_well
from tests.support.module_state import cleared
from tests.support.polling import until

import stepwell
from stepwell import ExecutionFailed, InvalidDefinition, check, step
from stepwell.flow import call, define, each, parallel, parse, render, scope, sequence, signal
from stepwell.testing import crash_everywhere

well = working_well

WAIT = 60
entered, is_open = threading.Event(), threading.Event()
seen: list[str] = []


_cleared = cleared(entered, is_open, seen)


def noted() -> str:
    key = stepwell.current().idempotency_key.partition(":")[2]
    seen.append(key)
    return key


@step(name="keyed.charge")
async def charge(cents: int) -> str:
    return f"{cents} by {noted()}, {len(seen)}"


@step(name="keyed.refund")
async def refund(cents: int) -> str:
    return f"refund of {cents} by {noted()}"


@step(name="keyed.fails_first")
async def fails_first() -> int:
    noted()
    if len(seen) == 1:
        raise ValueError("no money")
    return len(seen)


@step(name="keyed.holds")
def holds(name: str) -> str:
    noted()
    entered.set()
    assert is_open.wait(WAIT)
    return name


@step(name="keyed.pure")
async def pure(cents: int) -> int:
    return cents


def steps_and_outputs(run: Any) -> dict[str, Any]:
    return {record.name: (record.status, record.output) for record in run.steps()}


def test_definition_calls_once_under_a_key(well: Any) -> None:
    text = """
    name: keyed_written
    do:
      - {step: keyed.charge, with: {cents: 5}, key: "charge-{{ trigger.input }}", name: first}
      - {step: keyed.charge, with: {cents: 5}, key: charge-7, name: again}
      - {step: keyed.charge, with: {cents: 5}, key: charge-8, name: other}
    """
    run = well.start(parse(dedent(text)), 7)
    run.result(WAIT)
    assert seen == ["key:charge-7", "key:charge-8"]
    outputs = steps_and_outputs(run)
    assert outputs["first"] == outputs["again"]
    first, again = (well.load(run.execution_id).steps[name] for name in ("first", "again"))
    assert first.digest == again.digest is not None
    assert well.verify(run.execution_id).ok


def test_calls_of_a_definition_with_one_key_at_the_same_time_run_once(well: Any) -> None:
    run = well.start(define("keyed_each", each(call("keyed.charge", {"cents": 5}, key="one"), items=[1, 2, 3])))
    assert len(set(run.result(WAIT))) == 1
    assert seen == ["key:one"]


@pytest.mark.parametrize("second", [call("keyed.charge", {"cents": 6}, key="k"), call("keyed.refund", {"cents": 5}, key="k")])
def test_key_of_another_call_fails_a_definition_with_a_conflict(well: Any, second: Any) -> None:
    run = well.start(define(f"keyed_other_{second.uses}", call("keyed.charge", {"cents": 5}, key="k", name="first"), second))
    with pytest.raises(ExecutionFailed, match="key 'k' stands for another call, of 'first'"):
        run.result(WAIT)
    assert seen == ["key:k"]


def test_call_with_the_key_of_one_that_failed_is_made(well: Any) -> None:
    failing = call("keyed.fails_first", key="k", on_error="continue", name="first")
    run = well.start(define("keyed_failed", parallel(failing, call("keyed.fails_first", key="k", name="second"))))
    run.result(WAIT)
    assert sorted(status for status, _ in steps_and_outputs(run).values()) == ["COMPLETED", "COMPLETED", "FAILED"]
    assert seen == ["key:k", "key:k"]


def test_call_that_waits_for_a_cancelled_one_with_its_key_is_made(well: Any) -> None:
    left = scope(call("keyed.holds", "stay", key="k", name="first"), name="left")
    right = sequence(signal("go"), call("keyed.holds", "stay", key="k", name="second"))
    run = well.start(define("keyed_cancelled", parallel(left, right)))
    assert entered.wait(WAIT)
    run.signal("go")
    until(lambda: "after_call" in str(well.load(run.execution_id).tokens))
    run.cancel(scope="left")
    until(lambda: len(seen) == 2)
    is_open.set()
    run.result(WAIT)
    assert steps_and_outputs(run)["first"] == ("CANCELLED", None)
    assert steps_and_outputs(run)["second"] == ("COMPLETED", "stay")
    assert seen == ["key:k", "key:k"]


def test_retry_of_a_definition_makes_its_failed_call_with_a_key_again(well: Any) -> None:
    run = well.start(
        define("keyed_retry", call("keyed.fails_first", {}, key="k", name="first"), call("keyed.fails_first", {}, key="k"))
    )
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    run.retry()
    run.result(WAIT)
    assert seen == ["key:k", "key:k"]


@pytest.mark.parametrize("key", ["", "{{ trigger.input }}"])
def test_key_that_is_no_text_fails_its_step(well: Any, key: str) -> None:
    definition = define(f"keyed_bad_{bool(key)}", call("keyed.charge", {"cents": 5}, key=key, name="first"))
    run = well.start(definition, [1])
    if key:
        with pytest.raises(ExecutionFailed, match="the key of 'first' must be a string, not list"):
            run.result(WAIT)
    else:
        run.result(WAIT)
    assert len(seen) == (0 if key else 1)


def test_key_where_nothing_could_happen_twice_is_refused() -> None:
    with pytest.raises(InvalidDefinition, match="log takes no key"):
        parse("name: bad\ndo: {log: hello, key: k}")
    with pytest.raises(InvalidDefinition, match="a compensation cannot have a key"):
        define("bad", call("keyed.charge", compensate=call("keyed.refund", key="k")))
    with pytest.raises(InvalidDefinition, match="nope"):
        define("bad", call("keyed.charge", key="{{ steps.nope.output }}"))


def test_key_of_a_definition_is_written_and_read_back() -> None:
    definition = define("keyed_back", call("keyed.charge", {"cents": 5}, key=UUID(int=3)))
    assert parse(render(definition)) == definition
    assert str(UUID(int=3)) in render(definition)
    assert check(definition) == ()


def test_keyed_calls_of_a_definition_survive_a_crash_at_any_point() -> None:
    twice = each(call("keyed.pure", {"cents": 5}, key="k"), items=[1, 2])
    report = crash_everywhere(define("keyed_crash", sequence(twice, call("keyed.pure", {"cents": 5}, key="k"))))
    assert report.result == 5
