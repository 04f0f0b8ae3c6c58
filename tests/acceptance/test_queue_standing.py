"""An idle worker's items start with the write that asks for them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.places import url_of
from tests.support.queues import SHARED_STORES

from stepwell import CommitUnknown, QueueRequest, Stepwell, StoreUnavailable, workflow
from stepwell.model.commit import Outcome
from stepwell.model.queue import ClaimItems, Enqueue

WAIT = 60


@workflow(name="standing.echo")
async def echo(number: int) -> int:
    return number


class Groups:
    """Stands before a store's ``write`` and notes the kinds of units that were written together, with what claims came to."""

    def __init__(self, well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write, self._known = well._parts.store.write, threading.Condition()
        self.kinds: list[list[type]] = []
        self.claims: list[int] = []
        monkeypatch.setattr(well._parts.store, "write", self.write)

    def write(self, units: Any) -> list[Outcome]:
        outcomes = self._write(units)
        with self._known:
            self.kinds.append([type(unit) for unit in units])
            self.claims += [len(outcome.answers) for unit, outcome in zip(units, outcomes, strict=True) if type(unit) is ClaimItems]
            self._known.notify_all()
        return outcomes


def wait_until_it_stands(well: Stepwell) -> None:
    """Until the dispatcher has nothing to do; an item before that would be claimed as always."""
    while not well._parts.queue.standing._is_offered():
        threading.Event().wait(0.005)


@pytest.mark.parametrize("store", ["memory", *SHARED_STORES])
def test_item_is_claimed_by_the_write_that_asks_for_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str):
    with Stepwell(url_of(store, request)) as well:
        well.enqueue(echo, 0).result(WAIT)
        wait_until_it_stands(well)
        groups = Groups(well, monkeypatch)
        assert well.enqueue(echo, 1).result(WAIT) == 1
        assert groups.kinds[0] == [Enqueue, ClaimItems]
        assert groups.claims[0] == 1


@pytest.mark.parametrize("store", SHARED_STORES)
def test_write_whose_reply_is_lost_loses_the_claims_too_and_the_item_runs_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str
):
    """T28, T39: nobody heard of the claim, so it ends by itself; whoever asked finds the item that is there."""
    with Stepwell(url_of(store, request), lease_seconds=1) as well:
        well.enqueue(echo, 0).result(WAIT)
        wait_until_it_stands(well)
        write, lost = well._parts.store.write, []

        def lose_the_first(units: Any) -> list[Outcome]:
            outcomes = write(units)
            if not lost and type(units[0]) is Enqueue:
                lost.append([type(unit) for unit in units])
                raise CommitUnknown
            return outcomes

        monkeypatch.setattr(well._parts.store, "write", lose_the_first)
        item = well.enqueue(echo, 1)
        assert item.result(WAIT) == 1
        assert lost == [[Enqueue, ClaimItems]]
        assert [each.item_id for each in well.queue.list()][:1] == [item.item_id]
        assert len(well.queue.list()) == 2


@pytest.mark.parametrize("store", SHARED_STORES)
def test_caps_and_pauses_hold_for_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str):
    """It is a claim like any other: what has no capacity stays."""
    with Stepwell(url_of(store, request)) as well:
        well.workspaces.put_tier("none", concurrency=0)
        well.workspaces.put("full", tier="none")
        well.enqueue(echo, 0).result(WAIT)
        wait_until_it_stands(well)
        groups = Groups(well, monkeypatch)
        waiting = well.enqueue(echo, 1, workspace="full")
        assert groups.kinds[0] == [Enqueue, ClaimItems]
        assert groups.claims[0] == 0
        assert str(waiting.state().status) == "PENDING"
        well.workspaces.put("full", tier="free")
        assert waiting.result(WAIT) == 1


def test_well_that_is_closing_gives_back_what_its_last_claim_brought(tmp_path: Any):
    """Requests and the end of the worker, at the same moment: no item is left to wait for its lease."""
    url = f"sqlite:///{tmp_path}/well.db?synchronous=NORMAL"
    for number in range(15):
        with Stepwell(url, lease_seconds=600) as well, Stepwell(url, worker=False) as asking:
            well.enqueue(echo, 0).result(WAIT)
            closing = threading.Thread(target=well.close)
            items = asking.enqueue_many([QueueRequest(workflow=echo, value=number)])
            closing.start()
            items += _asked_of(well, number)
            closing.join()
            assert {str(asking.queue.item(item.item_id).state().status) for item in items} <= {"PENDING", "COMPLETED"}


def _asked_of(well: Stepwell, number: int) -> list[Any]:
    """One more request by the well itself, unless it is closed by then."""
    try:
        return [well.enqueue(echo, number)]
    except StoreUnavailable:
        return []
