"""Cancellation of a run: the times of the request, of its delivery and of the end, read from the inbox and the receipts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from stepwell.clock import from_ms
from stepwell.kernel.token import ROOT
from stepwell.model.execution_state import ExecutionState
from stepwell.model.plain_data import PlainRecord
from stepwell.model.receipt import Receipt
from stepwell.model.status import Status
from stepwell.runtime.inbox import CANCEL, Message, sent_ms

__all__ = ["Cancellation", "cancellation_of", "is_cancelling"]


class Cancellation(PlainRecord, frozen=True):
    """A request to a run to end, and what came of it."""

    requested_at: datetime | None
    """None if the request came from its parent, or is not on record any more."""
    acknowledged_at: datetime | None = None
    """The commit that took the request. A declared workflow compensates after it; a function takes it with its end."""
    ended_at: datetime | None = None


def is_cancelling(state: ExecutionState) -> bool:
    """Return whether a run has taken a request to end, so that its receipts say when."""
    root = state.tokens.get(ROOT)
    return state.status is Status.CANCELLED or (root is not None and _is_left(root.value))


def cancellation_of(waiting: Sequence[Message], receipts: Iterable[Receipt]) -> Cancellation | None:
    """Return the cancellation of a run; None if none was requested.

    - ``waiting``: the messages in its inbox.
    - ``receipts``: those of a run that ``is_cancelling``; none for any other.
    """
    requested = [ms for each in waiting if each.kind == CANCEL and (ms := sent_ms(each.key)) is not None]
    acknowledged = ended = None
    for receipt in receipts:
        changes = cast("list[Mapping[str, Any]]", receipt.mutations)
        is_end = any(each["type"] == "set_status" and each["status"] == Status.CANCELLED for each in changes)
        if acknowledged is None and (is_end or any(map(_leaves, changes))):
            acknowledged = receipt.committed_at
            requested = [ms for each in changes if (ms := _taken_ms(each)) is not None] or requested
        if is_end:
            ended = receipt.committed_at
    if acknowledged is None and not any(each.kind == CANCEL for each in waiting):
        return None
    return Cancellation(from_ms(min(requested)) if requested else None, acknowledged, ended)


def _leaves(change: Mapping[str, Any]) -> bool:
    return change["type"] in ("add_token", "update_token") and change["token_id"] == ROOT and _is_left(change["token"]["value"])


def _is_left(value: object) -> bool:
    match value:
        case {"ending": {"how": "cancelled"}}:
            return True
        case _:
            return False


def _taken_ms(change: Mapping[str, Any]) -> int | None:
    """Return when the message was sent that a change takes from the inbox."""
    match change:
        case {"type": "write_state", "op": {"op": "delete", "scope": str(scope), "key": str(key)}} if scope.startswith("inbox/"):
            return sent_ms(key)
        case _:
            return None
