"""Items that were claimed before, and whose execution is there already: it goes on from its record, and is not made twice.

An execution that was retried waits for its item's turn. To give it that is one commit on the execution, which marks the item: a
crash before leaves a claim that ends by itself, a crash after leaves an execution that is due.
"""

from __future__ import annotations

from stepwell.contract.engine import NotNow
from stepwell.errors import Conflict, LeaseLost, NotFound
from stepwell.model.execution_state import ONLY
from stepwell.model.ids import NewId
from stepwell.model.queue_item import Claimed, ItemMark, ItemStatus
from stepwell.model.queue_lifecycle import waits_for_turn
from stepwell.model.record import decode_status
from stepwell.model.status import Status
from stepwell.pipeline.operations import Operation, write_or_raise
from stepwell.runtime.run_retry import RunRetry
from stepwell.state.executions import Executions

__all__ = ["Resuming", "mark_of_run"]

_MOST_CONFLICTS = 20

_ENDS = {
    Status.COMPLETED: ItemStatus.COMPLETED,
    Status.PARTIALLY_COMPLETED: ItemStatus.COMPLETED,
    Status.FAILED: ItemStatus.FAILED,
    Status.CANCELLED: ItemStatus.CANCELLED,
}


def mark_of_run(claimed: Claimed, status: str) -> ItemMark:
    """What becomes of an item whose execution is there, and has this status."""
    return ItemMark(claimed.item_id, _ENDS.get(Status(status), ItemStatus.DISPATCHED), claimed.fence)


class Resuming:
    """Has executions go on that wait for their item's turn."""

    def __init__(self, executions: Executions, new_id: NewId) -> None:
        self._executions, self._again = executions, RunRetry(executions, new_id)

    def resume(self, claimed: Claimed) -> Operation[bool]:
        """Have the execution of an item go on; False if it has none yet. Who has lost the claim meanwhile leaves it as it is."""
        for _ in range(_MOST_CONFLICTS):
            try:
                return (yield from self._resume(claimed))
            except LeaseLost:
                return True
            except Conflict:  # somebody was first, to end it or to put it back: what it is now says what to do
                continue
        raise NotNow(f"execution {claimed.execution_id!r} of queue item {claimed.item_id!r} is changed by others all the time")

    def _resume(self, claimed: Claimed) -> Operation[bool]:
        try:
            live = yield from self._executions.newest(claimed.execution_id)
        except NotFound:
            return False
        if live.state.identity.item_id != claimed.item_id:
            return False
        if waits_for_turn(live.state):
            yield from self._again.go_on(live, ItemMark(claimed.item_id, ItemStatus.DISPATCHED, claimed.fence))
        else:
            yield from write_or_raise(mark_of_run(claimed, decode_status(live.state.sections["status"][ONLY])))
        return True
