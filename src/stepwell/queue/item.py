"""Queue items as the public classes return them."""

from __future__ import annotations

from datetime import datetime

from stepwell.clock import from_ms
from stepwell.errors import NotFound
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import Enqueued, Item, ItemStatus
from stepwell.model.record import ERASED_INPUT, UNREADABLE_INPUT, plain_input, split_input
from stepwell.model.value import Value

__all__ = ["ItemHandle", "ItemSummary", "no_item"]

_HIDDEN = frozenset((ERASED_INPUT, UNREADABLE_INPUT))
_UNREADABLE = "its input cannot be opened here: it was changed, or its key is missing"


class ItemSummary(PlainRecord, frozen=True, kw_only=True):
    """A queue item as it was when it was read."""

    item_id: str
    workspace_id: str
    workflow_id: str
    version: int
    execution_id: str
    queue: str
    status: ItemStatus
    priority: int
    input: Value
    attempts: int
    max_attempts: int
    enqueued_at: datetime
    run_at: datetime
    claimed_at: datetime | None = None
    dispatched_at: datetime | None = None
    finished_at: datetime | None = None
    holder: str | None = None
    error: str | None = None
    is_erased: bool = False
    """Whether its input was erased with its subject."""
    key: str | None = None
    """Its idempotency key; ``schedule:NAME:...`` for one that a schedule enqueued."""
    secrets: tuple[str, ...] = ()
    """The names of keys and fields of its input whose values are shown nowhere."""
    number: int = 0
    """Rises with every item; a page of a list ends before the number where the next one begins."""

    @classmethod
    def of(cls, item: Item) -> ItemSummary:
        """Return the summary of an item's row."""
        given = None if item.input in _HIDDEN else split_input(item.input)
        return cls(
            item_id=item.item_id,
            workspace_id=item.workspace_id,
            workflow_id=item.workflow_id,
            version=item.version,
            execution_id=item.execution_id,
            queue=item.queue,
            status=ItemStatus(item.status),
            priority=item.priority,
            input=None if given is None else plain_input(given.trigger),
            attempts=item.attempts,
            max_attempts=item.max_attempts,
            enqueued_at=from_ms(item.enqueued_ms),
            run_at=from_ms(item.run_at_ms),
            claimed_at=_moment(item.claimed_ms),
            dispatched_at=_moment(item.dispatched_ms),
            finished_at=_moment(item.finished_ms),
            holder=item.holder,
            error=_UNREADABLE if item.input == UNREADABLE_INPUT and item.error is None else item.error,
            is_erased=item.input == ERASED_INPUT,
            key=item.key,
            secrets=() if given is None else given.secrets,
            number=item.number,
        )


def no_item(item_id: str) -> NotFound:
    """Return the error for an item that does not exist."""
    return NotFound(
        f"there is no queue item {item_id!r} in this store; it never was, ended so long ago that it was dropped, "
        "or a step asked for it by singleton or debounce, and another item stands for it"
    )


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else from_ms(milliseconds)


class ItemHandle:
    """A queue item as its last answer from the store described it."""

    def __init__(self, answer: Enqueued) -> None:
        self.item_id, self.execution_id, self.is_new = answer.item_id, answer.execution_id, answer.is_new
        self.status = str(answer.status)

    @property
    def message(self) -> str:
        """Return what became of the request, in words."""
        if not self.is_new:
            return f"queue item {self.item_id} was there already and is {self.status}; no second one was made"
        return f"queue item {self.item_id} is {self.status}; it starts as execution {self.execution_id} when there is capacity"

    def _update(self, item: Item) -> None:
        self.execution_id = item.execution_id
        self.status = str(item.status)
