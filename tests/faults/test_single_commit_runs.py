"""Runs from the queue whose only commit is also their last: lost replies, refusals and ids that are taken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.module_state import cleared
from tests.support.queue_urls import shared_url

import stepwell
from stepwell import CommitUnknown, ItemStatus, QueueItem, QueueRequest, Stepwell, StoreUnavailable, workflow
from stepwell.model.commit import Commit, Outcome
from stepwell.model.queue_item import Redrive, ReturnItem
from stepwell.testing.store_access import store_under, write_unit_or_raise

__all__ = ["shared_url"]

WAIT = 60
COUNT = 20
calls: Counter[int] = Counter()


@workflow(name="single.echo")
async def echo(number: int) -> int:
    calls[number] += 1
    return number


@workflow(name="single.waits")
async def waits() -> object:
    return await stepwell.wait_signal("go")


@workflow(name="single.held_once")
async def held_once(number: int) -> Any:
    """The first run waits without a commit, the second one for a signal."""
    calls[number] += 1
    if calls[number] == 1:
        await asyncio.Event().wait()
    return await stepwell.wait_signal("go")


_cleared = cleared(calls)


class Mishap:
    """Stands before a store's ``write``, and does something else with the first group that makes executions.

    All items are asked for at once and claimed at once, so no claim that is lost with that group has anything.
    """

    def __init__(self, well: Any, monkeypatch: pytest.MonkeyPatch, instead: Callable[[Any], list[Outcome]]) -> None:
        self.write_really, self._instead, self.commits = store_under(well).write, instead, 0
        monkeypatch.setattr(store_under(well), "write", self.write)

    def write(self, units: Any) -> list[Outcome]:
        commits = sum(isinstance(unit, Commit) and unit.creation is not None for unit in units)
        if self.commits or not commits:
            return self.write_really(units)
        self.commits = commits
        return self._instead(units)


def asked_for(well: Stepwell, *requests: QueueRequest) -> list[str]:
    return [answer.item_id for answer in well.enqueue_many(requests) if isinstance(answer, QueueItem)]


def numbered() -> list[QueueRequest]:
    return [QueueRequest(workflow=echo, value=number) for number in range(COUNT)]


def ended(well: Stepwell, item_ids: list[str]) -> list[Any]:
    """Wait for all items; what each came to."""
    return [well.queue.item(item_id).result(WAIT) for item_id in item_ids]


def test_lost_replies_to_only_commits_are_looked_up_and_nothing_is_run_twice(
    shared_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """T05: they have landed, so their items have ended and their slots are free."""
    with Stepwell(shared_url) as well:

        def lose_the_reply(units: Any) -> list[Outcome]:
            mishap.write_really(units)
            raise CommitUnknown

        mishap = Mishap(well, monkeypatch, lose_the_reply)
        item_ids = asked_for(well, *numbered())
        assert ended(well, item_ids) == list(range(COUNT))
        assert mishap.commits
        assert not [told for told in caplog.messages if told.startswith("execution")]  # none is taken for one that stopped
        assert set(calls.values()) == {1}
        items = [well.queue.item(item_id).state() for item_id in item_ids]
        assert {(item.status, item.attempts) for item in items} == {(ItemStatus.COMPLETED, 1)}


def test_items_whose_only_commits_met_no_store_keep_their_attempts_and_run_again(shared_url: str, monkeypatch: pytest.MonkeyPatch):
    """T41: nothing has landed, so they are run again; that the store was away is not their fault."""
    with Stepwell(shared_url) as well:

        def be_away(_: Any) -> list[Outcome]:
            raise StoreUnavailable("away")

        mishap = Mishap(well, monkeypatch, be_away)
        item_ids = asked_for(well, *numbered())
        assert ended(well, item_ids) == list(range(COUNT))
        assert mishap.commits
        assert sorted(calls.values()) == [1] * (COUNT - mishap.commits) + [2] * mishap.commits
        items = [well.queue.item(item_id).state() for item_id in item_ids]
        assert {(item.status, item.attempts) for item in items} == {(ItemStatus.COMPLETED, 1)}


def test_one_taken_execution_id_among_many_fails_its_own_item_alone(shared_url: str):
    """T33: the run that has the id is left as it is."""
    taken = QueueRequest(workflow=echo, value=COUNT, execution_id="taken")
    with Stepwell(shared_url, worker=False) as asking:
        *others, last = asked_for(asking, *numbered(), taken)
        asking.create("taken")
    with Stepwell(shared_url) as well:
        assert ended(well, others) == list(range(COUNT))
        while (item := well.queue.item(last).state()).finished_at is None:
            pass  # the test's own time limit ends this
        assert item.status is ItemStatus.FAILED
        assert "AlreadyExists" in str(item.error)
        assert well.load("taken").revision == 0


def test_item_whose_own_execution_is_there_already_follows_it(shared_url: str):
    """T28: by whatever way it came to wait again. The run is not made twice, and is not taken for somebody else's."""
    with Stepwell(shared_url) as well:
        item = well.enqueue(waits)
        while item.state().status is not ItemStatus.DISPATCHED:
            pass  # the test's own time limit ends this
        item.cancel()
        while item.state().finished_at is None:
            pass
        revision = well.load(item.execution_id).revision
        write_unit_or_raise(well, Redrive(item.item_id, item.execution_id))
        while (state := item.state()).finished_at is None:
            pass
        assert (state.status, state.error, state.attempts) == (ItemStatus.CANCELLED, None, 1)
        assert well.load(item.execution_id).revision == revision


def test_worker_claims_an_item_again_that_it_lost_before_the_first_commit(shared_url: str):
    """T28: the session that lost it takes nothing from the one that follows, since the leases have different fences."""
    with Stepwell(shared_url, lease_seconds=3600) as well:
        item = well.enqueue(held_once, 1)
        while not calls[1]:
            pass  # the test's own time limit ends this
        write_unit_or_raise(well, ReturnItem(item.item_id, fence=1))
        run = well.run(item.execution_id)
        while item.state().status is not ItemStatus.DISPATCHED:
            pass
        head = store_under(well).head(item.execution_id)
        assert head is not None
        assert head.fence == 2
        run.signal("go", "on")
        assert item.result(WAIT) == "on"
        assert calls[1] == 2
