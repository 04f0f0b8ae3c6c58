"""Many at once: nothing runs twice, one end wins, and a request is one item or none (T27, T28, T38, T39, T40)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.module_state import cleared
from tests.support.queue_urls import SHARED_STORES
from tests.support.store_urls import url_of

import stepwell
from stepwell import CommitUnknown, Conflict, ItemStatus, QueueRequest, Status, Stepwell, step, workflow
from stepwell.model.commit import Commit, Outcome
from stepwell.model.queue_item import CancelItem, ClaimItems, Enqueue, ReturnItem
from stepwell.testing.store_access import store_under

WAIT = 60
runs: Counter[int] = Counter()


entered, gate = threading.Event(), threading.Event()


_cleared = cleared(runs, entered, gate)


@workflow(name="race.count")
async def count(number: int) -> int:
    runs[number] += 1
    return number


@contextmanager
def wells(url: str, number: int, **options: Any) -> Iterator[list[Stepwell]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Stepwell(url, concurrency=10, **options)) for _ in range(number)]


@pytest.mark.parametrize("store", SHARED_STORES)
def test_eight_dispatchers_run_each_item_once(request: pytest.FixtureRequest, store: str):
    """T27."""
    with wells(url_of(store, request), 8) as working:
        for name in range(5):
            working[0].workspaces.put(f"w{name}", tier="enterprise")
        requests = [QueueRequest(workflow=count, value=number, workspace=f"w{number % 5}") for number in range(300)]
        items = [item for item in working[0].enqueue_many(requests) if not isinstance(item, Exception)]
        assert [item.result(WAIT) for item in items] == list(range(300))
        assert runs == dict.fromkeys(range(300), 1)
        states = [item.state() for item in items]
        assert {state.status for state in states} == {ItemStatus.COMPLETED}
        assert {state.attempts for state in states} == {1}
        assert len({state.execution_id for state in states}) == 300


@pytest.mark.parametrize("store", SHARED_STORES)
def test_waiting_for_capacity_uses_no_attempts(request: pytest.FixtureRequest, store: str):
    """T38: a hundred looks at an item that has no slot."""
    with Stepwell(url_of(store, request)) as well:
        well.workspaces.put_tier("none", concurrency=0)
        well.workspaces.put("acme", tier="none")
        item = well.enqueue(count, 1, workspace="acme")
        for number in range(100):
            assert well.enqueue(count, 100 + number).result(WAIT) == 100 + number
        assert (item.state().status, item.state().attempts) == (ItemStatus.QUEUED, 0)
        well.workspaces.put("acme", tier="free")
        assert item.result(WAIT) == 1


@pytest.mark.parametrize("store", SHARED_STORES)
def test_one_end_wins_when_items_are_cancelled_while_they_run(request: pytest.FixtureRequest, store: str):
    """T40: a cancel that meets a claim, a start or an end; whichever it was, the item and its execution say the same."""
    with Stepwell(url_of(store, request)) as well:
        items = [well.enqueue(count, number) for number in range(100)]

        def cancel(item: Any) -> None:
            with suppress(Conflict):  # it had ended
                item.cancel()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(cancel, items))
        for item in items:
            while (state := item.state()).status not in (ItemStatus.COMPLETED, ItemStatus.CANCELLED):
                pass
            heads = [each for each in well.executions.list(limit=1_000) if each.execution_id == state.execution_id]
            if state.status is ItemStatus.COMPLETED:
                assert [head.status for head in heads] == [Status.COMPLETED]
            else:
                assert [head.status for head in heads] in ([], [Status.CANCELLED])
        assert all(lane.running == 0 for lane in well.queue.stats())


async def pass_gate() -> None:
    entered.set()
    await asyncio.to_thread(gate.wait, WAIT)


@step
async def pass_in_step() -> None:
    await pass_gate()


@workflow(name="race.late_end")
async def late_end() -> None:
    await pass_gate()


@workflow(name="race.late_step")
async def late_step() -> None:
    await pass_in_step()


class TellsOfStarts:
    """Stands before a store's ``write``, and tells when one is over that would make an execution."""

    def __init__(self, well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write, self.is_over = store_under(well).write, threading.Event()
        monkeypatch.setattr(store_under(well), "write", self.write)

    def write(self, units: Any) -> list[Outcome]:
        outcomes = self._write(units)
        if any(isinstance(unit, Commit) and unit.creation is not None for unit in units):
            self.is_over.set()
        return outcomes


@pytest.mark.parametrize("store", SHARED_STORES)
@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "given to another"])
@pytest.mark.parametrize("late", [late_end, late_step], ids=["whole run", "first step"])
def test_item_that_is_lost_before_its_first_commit_does_not_become_a_run(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str, is_cancelled: bool, late: Any
):
    """T28, T40: what was done for it since the claim lands nowhere; the item is as whoever took it left it."""
    monkeypatch.setattr("stepwell.queue.local_engine._CREATE_AFTER_SECONDS", 600)
    url = url_of(store, request)
    with Stepwell(url, lease_seconds=3_600) as well, Stepwell(url, worker=False) as other:
        starts, items = TellsOfStarts(well, monkeypatch), store_under(other)
        item = well.enqueue(late)
        assert entered.wait(WAIT)
        claimed = items.item(item.item_id)
        assert claimed is not None
        taking = [ReturnItem(item.item_id, claimed.fence), ClaimItems("other", 3_600, 1)]
        items.write([CancelItem(item.item_id)] if is_cancelled else taking)
        left = items.item(item.item_id)
        assert left is not None
        assert (left.status, left.fence) == (("CANCELLED", claimed.fence) if is_cancelled else ("CLAIMED", claimed.fence + 1))
        gate.set()
        assert starts.is_over.wait(WAIT)
        assert items.head(item.execution_id) is None
        assert items.item(item.item_id) == left


class LosesReplies:
    """Stands before a store's ``write``: the first unit of a kind that comes to something lands, and its reply is lost."""

    def __init__(self, well: Stepwell, monkeypatch: pytest.MonkeyPatch, kind: type = Enqueue) -> None:
        self._write, self._kind, self.lost = store_under(well).write, kind, 0
        monkeypatch.setattr(store_under(well), "write", self.write)

    def write(self, units: Any) -> list[Outcome]:
        if self._kind is ClaimItems and not self.lost:  # it is short, so that the test need not wait; those that are heard are not
            units = [replace(unit, seconds=1.0) if isinstance(unit, ClaimItems) else unit for unit in units]
        outcomes = self._write(units)
        found = [outcome for unit, outcome in zip(units, outcomes, strict=True) if isinstance(unit, self._kind)]
        if not self.lost and any(self._kind is Commit or outcome.answers for outcome in found):
            self.lost += 1
            raise CommitUnknown("the reply was lost")
        return outcomes


@pytest.mark.parametrize("store", SHARED_STORES)
@pytest.mark.parametrize("key", [None, "order-7"])
def test_a_request_whose_reply_was_lost_is_one_item_and_one_run(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str, key: str | None
):
    """T39: the first writing landed; whoever asks again, by the item's id or by a key of their own, finds it."""
    url = url_of(store, request)
    with Stepwell(url, worker=False) as well:
        faulty = LosesReplies(well, monkeypatch)
        item = well.enqueue(count, 1, key=key)
        assert faulty.lost == 1
        if key is not None:
            assert well.enqueue(count, 1, key=key).item_id == item.item_id
        assert [each.item_id for each in well.queue.list()] == [item.item_id]
    with Stepwell(url) as well:
        assert well.queue.item(item.item_id).result(WAIT) == 1
    assert runs == {1: 1}


@pytest.mark.parametrize("store", SHARED_STORES)
@pytest.mark.parametrize("kind", [ClaimItems, Commit])
def test_items_whose_claim_or_commit_was_not_answered_run_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str, kind: type
):
    """T28: nobody heard of the claim, so it ends by itself; a commit is looked up by its id, and was there."""
    with Stepwell(url_of(store, request), lease_seconds=15) as well:
        well.queue.pause()
        items = [well.enqueue(count, number) for number in range(5)]
        faulty = LosesReplies(well, monkeypatch, kind)
        with suppress(CommitUnknown):  # written in one group with the claim that it makes possible, it is not answered either
            well.queue.resume()
        while any(item.state().finished_at is None for item in items):
            with suppress(CommitUnknown):
                well.queue.recover()
        assert [item.result(WAIT) for item in items] == list(range(5))
        assert faulty.lost == 1
        assert runs == dict.fromkeys(range(5), 1)
        assert all(lane.running == 0 for lane in well.queue.stats())


@pytest.mark.parametrize("store", SHARED_STORES)
def test_a_key_with_another_body_is_a_conflict_however_many_ask_at_once(request: pytest.FixtureRequest, store: str):
    """T39: eight ask with one key and two bodies; one body has it, and the others are told."""
    with ExitStack() as stack:
        asking = [stack.enter_context(Stepwell(url_of(store, request), worker=False)) for _ in range(8)]

        def ask(number: int) -> str | None:
            try:
                return asking[number].enqueue(count, number % 2, key="order-7").item_id
            except Conflict:
                return None

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(ask, range(8)))
        [item] = asking[0].queue.list()
        assert answers == [item.item_id if number % 2 == item.input else None for number in range(8)]


@step
async def ask_and_fail() -> None:
    stepwell.enqueue(count, 100, key="asked")
    raise ValueError("and so nothing was asked")


@step
async def ask() -> None:
    stepwell.enqueue(count, 101)


@workflow(name="race.asks")
async def asks() -> None:
    with suppress(Exception):
        await ask_and_fail()
    await ask()


@pytest.mark.parametrize("store", SHARED_STORES)
def test_what_a_failed_step_asked_for_is_never_stored(request: pytest.FixtureRequest, store: str):
    """T39: requests are part of the step's commit; a step that fails has none, one that lands has all."""
    with Stepwell(url_of(store, request)) as well:
        well.enqueue(asks).result(WAIT)
        while runs != {101: 1}:
            assert 100 not in runs
        assert sorted(item.workflow_id for item in well.queue.list()) == ["race.asks", "race.count"]
