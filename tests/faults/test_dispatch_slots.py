"""T35: whatever becomes of an item, its slot is free afterwards, since slots are counted from the rows and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.queue_urls import shared_url

import stepwell
from stepwell import ItemStatus, Stepwell, workflow
from stepwell.model.queue_item import ClaimItems
from stepwell.testing.store_access import write_unit_or_raise

__all__ = ["shared_url"]

WAIT = 60


@workflow(name="slots.held")
async def held() -> object:
    return await stepwell.wait_signal("go")


@workflow(name="slots.quick")
async def quick(number: int) -> int:
    return number


def used_slots(well: Stepwell) -> int:
    """As the lanes count them; the rows must say the same."""
    counted = sum(lane.running for lane in well.queue.stats("acme"))
    rows = [item for item in well.queue.list(workspace="acme") if item.status in ("CLAIMED", "DISPATCHED")]
    assert counted == len(rows)
    return counted


@pytest.mark.parametrize("fate", ["cancelled", "deleted", "completed"])
def test_slot_of_a_running_item_is_free_after_its_end(shared_url: str, fate: str) -> None:
    """T35: a workspace with one slot; the next item starts as soon as the first has ended, however that came about."""
    with Stepwell(shared_url) as well:
        well.workspaces.put("acme", tier="free")
        first = well.enqueue(held, workspace="acme")
        while first.state().status is not ItemStatus.DISPATCHED:
            pass
        second = well.enqueue(quick, 2, workspace="acme")
        assert (used_slots(well), second.state().status) == (1, ItemStatus.QUEUED)
        if fate == "deleted":
            well.delete(first.execution_id)
        elif fate == "cancelled":
            first.cancel()
        else:
            well.run(first.execution_id).signal("go")
        assert second.result(WAIT) == 2
        assert used_slots(well) == 0
        wanted = ItemStatus.COMPLETED if fate == "completed" else ItemStatus.CANCELLED
        assert (first.state().status, second.state().status) == (wanted, ItemStatus.COMPLETED)


def test_items_that_are_cancelled_while_they_wait_or_are_claimed_keep_no_slot(shared_url: str) -> None:
    """T35, T40: half of them are with a dispatcher that never comes back."""
    with Stepwell(shared_url, worker=False) as well:
        well.workspaces.put("acme", tier="startup")
        items = [well.enqueue(quick, number, workspace="acme") for number in range(6)]
        outcome: Any = write_unit_or_raise(well, ClaimItems("dead", 600, 10))
        assert len(outcome.answers) == used_slots(well) == 3
        for left, item in zip(range(5, -1, -1), items, strict=True):
            item.cancel()
            assert used_slots(well) == max(left - 3, 0)
        assert {item.state().status for item in items} == {ItemStatus.CANCELLED}
        again = well.enqueue(quick, 7, workspace="acme")
        outcome = write_unit_or_raise(well, ClaimItems("other", 600, 10))
        assert [claimed.item_id for claimed in outcome.answers] == [again.item_id]
