"""An idle worker's items start with the write that asks for them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.places import url_of
from tests.support.queues import SHARED_STORES

from stepwell import CommitUnknown, QueueRequest, Stepwell, StoreUnavailable, workflow
from stepwell.model.commit import Outcome
from stepwell.model.queue_item import ClaimItems, Enqueue

WAIT = 60
TRIES = range(1, 30)
"""A dispatcher that is idle may be woken at any moment, by the end of a run or by its poll: then it claims as always."""


@workflow(name="standing.echo")
async def echo(number: int) -> int:
    return number


def takes_along(units: Any) -> bool:
    """Whether a group asks for a run and takes the standing claim along, with none of the dispatcher's own, which may be first."""
    claims = [unit for unit in units if type(unit) is ClaimItems]
    return len(claims) == 1 and claims[0].is_riding and any(type(unit) is Enqueue for unit in units)


class Groups:
    """Stands before a store's ``write`` and notes what the claims came to that were written with a request."""

    def __init__(self, well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = well._parts.store.write
        self.claims: list[int] = []
        monkeypatch.setattr(well._parts.store, "write", self.write)

    def write(self, units: Any) -> list[Outcome]:
        outcomes = self._write(units)
        if takes_along(units):
            self.claims.append(len(outcomes[-1].answers))
        return outcomes


def wait_until_it_stands(well: Stepwell) -> None:
    """Until the dispatcher has nothing to do; an item before that would be claimed as always."""
    while not well._parts.queue.standing._is_offered():
        threading.Event().wait(0.005)


@pytest.mark.parametrize("store", ["memory", *SHARED_STORES])
def test_item_is_claimed_by_the_write_that_asks_for_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str):
    with Stepwell(url_of(store, request)) as well:
        groups = Groups(well, monkeypatch)
        for number in TRIES:
            wait_until_it_stands(well)
            assert well.enqueue(echo, number).result(WAIT) == number
            if groups.claims:
                break
        assert groups.claims == [1]


@pytest.mark.parametrize("store", SHARED_STORES)
def test_write_whose_reply_is_lost_loses_the_claims_too_and_the_item_runs_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str
):
    """T28, T39: nobody heard of the claim, so it ends by itself; whoever asked finds the item that is there."""
    with Stepwell(url_of(store, request), lease_seconds=1) as well:
        write, lost, asked = well._parts.store.write, list[int](), list[str]()

        def lose_the_first(units: Any) -> list[Outcome]:
            outcomes = write(units)
            if not lost and takes_along(units):
                lost.append(len(outcomes[-1].answers))
                raise CommitUnknown
            return outcomes

        monkeypatch.setattr(well._parts.store, "write", lose_the_first)
        for number in TRIES:
            wait_until_it_stands(well)
            item = well.enqueue(echo, number)
            assert item.result(WAIT) == number
            asked.insert(0, item.item_id)
            if lost:
                break
        assert lost == [1]
        assert [each.item_id for each in well.queue.list()] == asked


@pytest.mark.parametrize("store", SHARED_STORES)
def test_caps_and_pauses_hold_for_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str):
    """It is a claim like any other: what has no capacity stays."""
    with Stepwell(url_of(store, request)) as well:
        well.workspaces.put_tier("none", concurrency=0)
        well.workspaces.put("full", tier="none")
        groups, waiting = Groups(well, monkeypatch), list[Any]()
        for number in TRIES:
            wait_until_it_stands(well)
            waiting.append(well.enqueue(echo, number, workspace="full"))
            if groups.claims:
                break
        assert groups.claims == [0]
        assert {str(item.state().status) for item in waiting} == {"PENDING"}
        well.workspaces.put("full", tier="free")
        assert [item.result(WAIT) for item in waiting] == list(TRIES[: len(waiting)])


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
