"""T38: items that can never succeed end as FAILED with their error, after exactly their attempts, and hold nobody up."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from tests.support.queue_urls import shared_url

from stepwell import ExecutionFailed, ItemStatus, Stepwell, step, workflow
from stepwell.model.queue_item import ClaimItems
from stepwell.queue.local_engine import LocalEngine
from stepwell.testing.store_access import store_under, write_unit_or_raise

__all__ = ["shared_url"]

WAIT = 60
starts: Counter[str] = Counter()
begun, gate = list[int](), threading.Event()


@workflow(name="poison.raises")
async def raises(_: int) -> None:
    raise ValueError("it raises \0 \ud800 every time")


@workflow(name="poison.undecodable")
async def undecodable(_: int) -> object:
    return object()


@step
async def never_returns() -> None:
    await asyncio.Event().wait()


@workflow(name="poison.hangs", timeout=0.3)
async def hangs(_: int) -> None:
    await never_returns()


@workflow(name="poison.fine")
async def fine(number: int) -> int:
    return number


@workflow(name="poison.suspect")
async def suspect(number: int) -> int:
    begun.append(number)
    await asyncio.to_thread(gate.wait, WAIT)
    return number


def test_runs_that_raise_return_rubbish_or_hang_are_dead_and_others_go_on(shared_url: str) -> None:
    with Stepwell(shared_url) as well:
        dead = {each.name: well.enqueue(each, 1) for each in (raises, undecodable, hangs)}
        items = [well.enqueue(fine, number) for number in range(20)]
        assert [item.result(WAIT) for item in items] == list(range(20))
        for item in dead.values():
            with pytest.raises(ExecutionFailed):
                item.result(WAIT)
        assert {each.item_id for each in well.queue.dead()} == {item.item_id for item in dead.values()}
        errors = {each.workflow_id: each.error or "" for each in well.queue.dead()}
        assert "it raises" in errors["poison.raises"]
        assert "object" in errors["poison.undecodable"]
        assert "ExecutionTimedOut" in errors["poison.hangs"]
        assert all(lane.running == 0 for lane in well.queue.stats())


def test_item_that_its_engine_cannot_start_is_dead_at_exactly_its_attempts(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three attempts, each counted once; then it is visible, and can be driven again."""
    start = LocalEngine.start
    starts.clear()

    async def refuse(engine: LocalEngine, claimed: Any) -> None:
        starts[claimed.item_id] += 1
        if claimed.input.endswith(b":13}"):
            raise RuntimeError("no such luck")
        await start(engine, claimed)

    monkeypatch.setattr(LocalEngine, "start", refuse)
    monkeypatch.setattr("stepwell.queue.dispatcher._ERROR_DELAY_MS", 10)
    with Stepwell(shared_url) as well:
        bad = well.enqueue(fine, 13)
        assert [well.enqueue(fine, number).result(WAIT) for number in range(5)] == list(range(5))
        while bad.state().status is not ItemStatus.FAILED:
            pass
        state = bad.state()
        assert (state.attempts, starts[bad.item_id], state.error) == (3, 3, "RuntimeError: no such luck")
        monkeypatch.setattr(LocalEngine, "start", start)
        assert well.queue.redrive(bad.item_id).result(WAIT) == 13


def test_interrupted_items_are_started_one_at_a_time_across_claims(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until one of them has committed something it may be the one that ends its process, and others must not be beside it then."""
    monkeypatch.setattr("stepwell.queue.local_engine._CREATE_AFTER_SECONDS", 600)
    begun.clear()
    gate.clear()
    with Stepwell(shared_url, worker=False) as well:
        items = [well.enqueue(suspect, number) for number in range(2)]
        write_unit_or_raise(well, ClaimItems("dead", 0.001, 2))
        returned: list[str] = []
        while len(returned) < 2:
            returned += well.queue.recover()
    with Stepwell(shared_url, lease_seconds=3_600) as well, ExitStack() as at_the_end:
        at_the_end.callback(gate.set)
        while not begun:
            pass  # the test's own time limit ends this
        other: Any = items[1 - begun[0]]
        while store_under(well).item(other.item_id).fence < 4:  # by then two claims have brought it, and it was given back
            assert len(begun) == 1
        gate.set()
        assert [well.queue.item(item.item_id).result(WAIT) for item in items] == [0, 1]
        assert {well.queue.item(item.item_id).state().attempts for item in items} == {2}
