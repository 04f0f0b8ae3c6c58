"""``crash_everywhere`` finds what does not survive a crash, and passes what does."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

import stepwell
from stepwell import ExecutionCancelled, InvalidInput, Retry, step, workflow
from stepwell.flow import call, define, each, parallel, signal, wait
from stepwell.testing import crash_everywhere

sent: list[str] = []
ticks = itertools.count()


@step
async def charge(cents: int) -> int:
    sent.append(f"charge {cents}")
    await asyncio.sleep(3)
    return cents


@step
def pack(item: str) -> str:
    sent.append(f"pack {item}")
    return f"packed {item}"


@step(retry=Retry(attempts=3, first_seconds=600))
async def flaky(item: str) -> str:
    sent.append(f"flaky {item}")
    if stepwell.current().attempt < 3:
        raise RuntimeError("not yet")
    return item


@step
def tick() -> int:
    return next(ticks)


@workflow
async def delivery(item: str) -> str:
    await stepwell.sleep("3d")
    return await pack(item)


@workflow
async def checkout(item: str) -> Any:
    await charge(100)
    await stepwell.sleep("2h")
    answer = await stepwell.wait_signal("approve", timeout="30d")
    charges = await stepwell.map(charge, [1, 2, 3], concurrency=2)
    stepwell.current().variables["answer"] = answer
    return [answer, charges, await delivery(item), await flaky(item)]


@workflow
def plain(item: str) -> str:
    first = pack(item)
    stepwell.sleep("1h")
    return f"{first}, {pack('box')}, {stepwell.wait_signal('approve')}"


@workflow
async def careless(item: str) -> str:
    sent.append("outside of any step")
    return await pack(item)


@workflow
async def moody(item: str) -> str:
    if next(ticks) % 2:
        await charge(1)
    return await pack(item)


@workflow
async def forgetful(item: str) -> int:
    await pack(item)
    return next(ticks)


@workflow
async def numbered(item: str) -> list[int]:
    return [await tick(), len(await pack(item))]


@workflow
async def failing(item: str) -> str:
    await pack(item)
    raise ValueError("no such item")


def test_workflow_of_all_kinds_of_calls_survives_everywhere():
    """T01, T30"""
    report = crash_everywhere(checkout, "lamp", signals={"approve": "yes"}, effects=lambda: len(sent))
    assert report.result == ["yes", [1, 2, 3], "packed lamp", "lamp"]
    assert report.crashes == 2 * len(report.commits) > 40


def test_plain_workflow_survives_everywhere():
    """T01, T30"""
    report = crash_everywhere(plain, "lamp", signals=[("approve", 1)], effects=lambda: len(sent))
    assert report.result == "packed lamp, packed box, 1"


def test_declared_workflow_survives_everywhere():
    """T01, T30"""
    definition = define(
        "declared-checkout",
        parallel(call("charge", 100), wait("2h")),
        signal("approve", timeout="30d", name="answer"),
        each(call("pack", "{{ item }}"), items=["lamp", "box"], name="packed"),
        output=["{{ steps.answer.output }}", "{{ steps.packed.output }}"],
    )
    report = crash_everywhere(definition, signals={"approve": "yes"}, effects=lambda: len(sent))
    assert report.result == ["yes", ["packed lamp", "packed box"]]


def test_workflow_that_fails_fails_the_same_way_everywhere():
    report = crash_everywhere(failing, "lamp")
    assert "no such item" in str(report.result)


def test_effect_outside_of_a_step_is_found():
    with pytest.raises(AssertionError) as raised:
        crash_everywhere(careless, "lamp", effects=lambda: len(sent))
    told = str(raised.value)
    assert "killed at commit 2 (record_step pack), after it landed" in told
    assert "1 more effects than without a crash, by 0 more attempts at steps: something outside of a step has effects" in told


def test_code_that_decides_by_chance_is_found():
    with pytest.raises(AssertionError) as raised:
        crash_everywhere(moody, "lamp")
    assert "the record of step 'charge' is" in str(raised.value)


def test_result_that_is_not_recorded_is_found():
    with pytest.raises(AssertionError) as raised:
        crash_everywhere(forgetful, "lamp")
    assert "killed at commit 3 (set_result, set_status COMPLETED), before it landed: it ended as COMPLETED with" in str(
        raised.value
    )


def test_only_the_first_failures_are_told():
    with pytest.raises(AssertionError, match=r"and \d+ more$"):
        crash_everywhere(forgetful, "lamp")


def test_results_may_be_compared_otherwise():
    with pytest.raises(AssertionError):
        crash_everywhere(numbered, "lamp")
    crash_everywhere(numbered, "lamp", same=lambda one, another: one[1] == another[1])


def test_reset_is_called_before_every_run():
    runs: list[int] = []
    report = crash_everywhere(delivery, "lamp", reset=lambda: runs.append(1))
    assert len(runs) == 1 + report.crashes


def test_run_that_waits_for_a_signal_that_is_not_sent_is_told():
    with pytest.raises(AssertionError, match="waits for ever: it is WAITING, at signal 'signal:approve'"):
        crash_everywhere(plain, "lamp")


def test_step_that_is_made_again_after_it_was_recorded_is_found(monkeypatch: pytest.MonkeyPatch):
    """A defect of Stepwell itself: the record is not looked at."""
    from stepwell.runtime.sessions.call_record import CallRecord

    monkeypatch.setattr(CallRecord, "outcome", lambda *_: None)
    with pytest.raises(AssertionError, match="step 'pack' was made again after it was recorded"):
        crash_everywhere(careless, "lamp")


def test_input_that_is_refused_is_the_callers_error():
    with pytest.raises(InvalidInput):
        crash_everywhere(delivery, 5)


def test_it_can_be_called_where_a_loop_is_running():
    async def inside() -> Any:
        return crash_everywhere(delivery, "lamp").result

    assert asyncio.run(inside()) == "packed lamp"


@workflow
async def cleaning(item: str) -> str:
    try:
        await stepwell.wait_signal("never", timeout="1h")
    except TimeoutError:
        await pack("cloth")
    except ExecutionCancelled:
        raise
    finally:
        await pack(item)
    return "clean"


def test_what_cleans_up_is_not_run_by_a_process_that_is_dead():
    """A killed process has no ``finally``: the steps there are made once, by whoever goes on."""
    sent.clear()
    crash_everywhere(cleaning, "lamp", effects=lambda: len(sent))
