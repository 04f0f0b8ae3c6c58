"""The first commit of an execution from the queue, by the dispatcher or the workflow, whichever comes first."""

from __future__ import annotations

from stepwell.model.commit import Creation
from stepwell.model.draft import Opening, opening_of
from stepwell.model.execution_state import ONLY, State
from stepwell.model.external_engines import HOLD_SECONDS, TEMPORAL
from stepwell.model.limits import Limits
from stepwell.model.queue_item import ItemMark, ItemStatus
from stepwell.model.record import encode_record
from stepwell.model.validation import plan
from stepwell.temporal.messages import ItemOrigin

__all__ = ["creation_of", "mark_of", "opened_state", "opening"]


def opening(origin: ItemOrigin) -> Opening:
    """Return the mutations that the execution begins with."""
    return opening_of(encode_record(origin.identity), bytes(origin.trigger))


def creation_of(origin: ItemOrigin) -> Creation:
    """Return the row of the execution: Temporal's from the start, with the fence of the item's claim."""
    who = origin.identity
    return Creation(who.workflow_id, who.version, holder=TEMPORAL, lease_seconds=HOLD_SECONDS, is_runnable=True, fence=origin.fence)


def mark_of(origin: ItemOrigin) -> ItemMark:
    """Return what becomes of the item with the creation."""
    return ItemMark(origin.item_id, ItemStatus.DISPATCHED, origin.fence)


def opened_state(origin: ItemOrigin) -> State:
    """Return the state at the first revision, without reading it."""
    state = State()
    draft = plan(state, (), Limits(), opening(origin))
    draft.apply()
    state.name(encode_record(origin.identity), origin.identity)
    assert state.sections["identity"][ONLY]  # noqa: S101 - that is what the opening is for
    return state
