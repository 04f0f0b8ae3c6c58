"""A well that closes gives back the items that its last claim brought."""

from __future__ import annotations

import threading
from typing import Any

from stepwell import QueueRequest, Stepwell, StoreUnavailable, workflow

WAIT = 60


@workflow(name="closing.echo")
async def echo(number: int) -> int:
    return number


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
            assert {str(asking.queue.item(item.item_id).state().status) for item in items} <= {"QUEUED", "COMPLETED"}


def _asked_of(well: Stepwell, number: int) -> list[Any]:
    """One more request by the well itself, unless it is closed by then."""
    try:
        return [well.enqueue(echo, number)]
    except StoreUnavailable:
        return []
