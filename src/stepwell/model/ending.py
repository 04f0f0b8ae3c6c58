"""What the end of an execution means for the queue item that it came from: its slot is free with the same commit."""

from __future__ import annotations

from typing import Any

from stepwell.model.draft import Draft
from stepwell.model.queue import ItemMark, ItemStatus
from stepwell.model.record import decode_metadata
from stepwell.model.state import ONLY
from stepwell.model.status import FINAL, Status
from stepwell.model.value import decode

__all__ = ["mark_of"]

_ENDS = {
    Status.COMPLETED: ItemStatus.COMPLETED,
    Status.PARTIALLY_COMPLETED: ItemStatus.COMPLETED,
    Status.FAILED: ItemStatus.FAILED,
    Status.CANCELLED: ItemStatus.CANCELLED,
}
_LONGEST_ERROR = 2_000


def mark_of(draft: Draft, given: ItemMark | None) -> ItemMark | None:
    """The mark that a commit carries: the one it was given, or the item's end if the execution ends with it.

    The two are one when the first commit of an execution is its last: the claim's fence is compared, and the item has ended.
    """
    if draft.status is None or draft.status not in FINAL:
        return given
    item_id = given.item_id if given is not None else _item_of(draft)
    if item_id is None:
        return None
    error = _error_of(draft) if draft.status == Status.FAILED else None
    return ItemMark(item_id, _ENDS[draft.status], None if given is None else given.fence, error)


def _item_of(draft: Draft) -> str | None:
    identity = draft.get("identity", ONLY)
    # Most executions come from no queue, and need not be decoded to know it.
    if identity is None or b'"item_id"' not in identity:
        return None
    return decode_metadata(identity).item_id


def _error_of(draft: Draft) -> str | None:
    data = draft.get("result", ONLY)
    result: Any = None if data is None else decode(data)
    match result:
        case {"error": {"kind": str() as kind, "message": str() as message}}:
            return f"{kind}: {message}"[:_LONGEST_ERROR]
        case _:
            return None
