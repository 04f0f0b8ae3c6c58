"""A rehearsal runs a workflow once in an order that a scheduler chooses, and the same choices give the same run."""

from __future__ import annotations

import asyncio

import pytest

import stepwell
from stepwell import Retry, step, workflow
from stepwell.testing import Diverged, Replay, Seeded, rehearse

flips: list[bool] = []


@step
async def double(number: int) -> int:
    return number * 2


@step(retry=Retry(attempts=2, first_seconds=60))
async def flaky(number: int) -> int:
    if stepwell.current().attempt == 1:
        raise RuntimeError("not yet")
    return number


@workflow
async def fan(numbers: list[int]) -> list[int]:
    doubled = list(await asyncio.gather(*(double(number) for number in numbers)))
    await stepwell.sleep("2h")
    return [*doubled, await flaky(7)]


@workflow
def told(name: str) -> str:
    answer = stepwell.wait_signal(name, timeout="3d")
    return f"{name}: {answer}"


@workflow
async def fickle(number: int) -> int:
    flips.append(not flips or not flips[-1])
    return await (double(number) if flips[-1] else flaky(number))


def steps_of(rehearsal: stepwell.testing.Rehearsal) -> list[str]:
    return [event.name for event in rehearsal.trace.events if event.kind == "step"]


def test_plainest_run_goes_in_order():
    rehearsal = rehearse(fan, [1, 2, 3])
    assert (rehearsal.status, rehearsal.result) == ("COMPLETED", [2, 4, 6, 7])
    assert steps_of(rehearsal) == ["double", "double#2", "double#3", "sleep", "flaky"]


def test_seeds_try_other_orders_with_the_same_result():
    rehearsals = [rehearse(fan, [1, 2, 3], scheduler=Seeded(seed)) for seed in range(8)]
    assert {str(rehearsal.result) for rehearsal in rehearsals} == {"[2, 4, 6, 7]"}
    assert len({str(steps_of(rehearsal)) for rehearsal in rehearsals}) > 1


def test_choices_give_the_same_run_again_to_the_millisecond():
    first = rehearse(fan, [1, 2, 3], scheduler=Seeded(5))
    again = rehearse(fan, [1, 2, 3], scheduler=Replay(first.choices))
    assert again == first
    assert again.trace.difference(first.trace) is None


def test_replay_of_code_that_decides_otherwise_says_where():
    flips.clear()
    first = rehearse(fickle, 1, scheduler=Seeded(5))
    with pytest.raises(Diverged, match=r"add_token flaky.* but the log has .*record_step double"):
        rehearse(fickle, 1, scheduler=Replay(first.choices))


def test_plain_code_gets_its_signals_too():
    assert rehearse(told, "go", signals={"go": 5}).result == "go: 5"


def test_failure_of_the_run_is_its_result():
    rehearsal = rehearse(told, "go")
    assert rehearsal.status == "FAILED"
    assert "did not come within" in str(rehearsal.result)
