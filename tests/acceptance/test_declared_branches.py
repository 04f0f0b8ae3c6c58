"""Branches of declared workflows: what one gives to others, and what it keeps when they go on without it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from stepwell import Status, step
from stepwell.flow import approval, call, choice, define, each, otherwise, parallel, sequence, wait, when
from stepwell.testing import SkippingClock, TestWell

WAIT = 30


@step(name="branches.ok")
async def ok(value: Any = None) -> Any:
    return value


@step(name="branches.boom")
async def boom(value: Any = None) -> None:
    raise ValueError("boom")


@step(name="branches.slow")
async def slow(value: Any = None) -> Any:
    await asyncio.sleep(50)
    return value


@pytest.fixture
def well() -> Iterator[TestWell]:
    with TestWell(SkippingClock()) as opened:
        yield opened


def test_winner_that_failed_and_was_passed_over_gives_nothing(well: TestWell) -> None:
    winner = call("branches.boom", on_error="continue")
    run = well.start(define("w", parallel(winner, "branches.slow", join="any", merge="winner")), 1)
    assert run.result(WAIT) is None


def test_instance_never_sees_what_a_step_gave_in_another_one(well: TestWell) -> None:
    """A round of a loop sees the one before; instances have none before them, only others beside them."""
    definition = define(
        "w",
        each(
            sequence(
                choice(
                    when("item == 1", call("branches.ok", "secret {{ item }}", name="a")),
                    otherwise(call("branches.ok", "other", name="b")),
                ),
                wait("1s"),
                call("branches.ok", "{{ steps.a.output ?? 'none' }}", name="c"),
            ),
            items=[1, 2, 3],
        ),
    )
    assert well.start(definition, 1).result(WAIT) == ["secret 1", "none", "none"]


@pytest.mark.parametrize("seconds", [0, 60])
def test_instances_that_run_on_know_their_items(well: TestWell, seconds: int) -> None:
    body = sequence(wait(seconds), call("branches.ok", "{{ loops.e.current_item }}", name="s"))
    run = well.start(define("w", each(body, items=["x", "y"], join="none", name="e")), 1)
    assert run.result(WAIT) is None
    well.clock.advance("10m")
    steps = [run.state().get_step_output(f"s[{number}]") for number in range(2)]
    assert [(each.status, each.output) for each in steps] == [(Status.COMPLETED, "x"), (Status.COMPLETED, "y")]


def test_approvers_after_an_escalation_can_approve_after_an_earlier_refusal(well: TestWell) -> None:
    people = {"approvers": ["a", "b"], "escalate_to": ["x", "y"]}
    asked = approval("go on?", needed=1, timeout="1h", on_timeout="escalate", name="ap", **people)
    run = well.start(define("w", asked))
    run.signal("ap", {"by": "a", "is_approved": False})
    well.clock.advance("61m")
    run.signal("ap", {"by": "x", "is_approved": False})
    run.signal("ap", {"by": "y", "is_approved": True})
    assert run.result(WAIT)["is_approved"] is True
