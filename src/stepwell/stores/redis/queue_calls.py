"""Build the script calls of the queue's units, read their outcomes, and merge the enqueues of one group into few scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeGuard, TypeVar

import msgspec

from stepwell.errors import NotFound, StepwellError
from stepwell.model.commit import Commit, Outcome, Unit, Written
from stepwell.model.queue_item import (
    CancelItem,
    Claimed,
    ClaimItems,
    DropItems,
    Enqueue,
    Enqueued,
    ItemMark,
    NewItem,
    PutQueue,
    PutTier,
    PutWorkspace,
    RecoverItems,
    Redrive,
    ReturnItem,
)
from stepwell.model.queue_lifecycle import EXPIRED, full, no_slot, storable, unknown_workspace
from stepwell.model.refusals import (
    asked_otherwise,
    changed_since_read,
    claim_lost,
    item_alive,
    item_driven,
    item_dropped,
    no_item,
    singleton_alive,
)
from stepwell.stores.queue_rows import encode_overrides
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.rows import encoded, pack, pack_mark, pack_queue, pack_tier, pack_workspace, read_item, request

__all__ = [
    "QUEUE_UNITS",
    "Merged",
    "QueueCalls",
    "are_enqueues",
    "queue_refusal",
    "queue_written",
]


def queue_written(unit: Any, rest: Sequence[Any]) -> Written:
    """Return the outcome of a unit that its script has written."""
    match unit:
        case Enqueue():
            return Written(_added(unit.items, rest))
        case ClaimItems():
            return Written([_claimed(row, rest[0]) for row in rest[1:]])
        case ReturnItem() | CancelItem() | Redrive():
            return Written([read_item(rest[0])])
        case RecoverItems():
            return Written([item_id.decode() for item_id in rest])
        case DropItems():
            return Written([int(rest[0])])
        case _:
            return Written()


def _added(items: Sequence[NewItem], rest: Sequence[Any]) -> list[Enqueued | StepwellError]:
    """Return an answer for each request; the script reports only those that are not simply new items."""
    answers: list[Enqueued | StepwellError] = [Enqueued(new.item_id, new.execution_id, "QUEUED", True) for new in items]
    for which, word, *said in rest:
        index = int(which) - 1
        answers[index] = _there(said) if word == b"there" else _refused(items[index], word, said)
    return answers


def _there(said: Sequence[bytes]) -> Enqueued:
    item_id, execution_id, status = (each.decode() for each in said)
    return Enqueued(item_id, execution_id, status, False)


def _refused(new: NewItem, word: bytes, said: Sequence[bytes]) -> StepwellError:
    match word:
        case b"workspace":
            return unknown_workspace(new.workspace_id)
        case b"full":
            return full(new.workspace_id)
        case b"used" | b"paused":
            return no_slot(new.workspace_id, is_paused=word == b"paused")
        case _:
            return asked_otherwise(said[0].decode())


def _claimed(row: Sequence[Any], until_ms: int) -> Claimed:
    item_id, workspace, workflow, version, execution, data, fence, attempts, queue, enqueued, *_ = row
    return Claimed(
        item_id.decode(),
        workspace.decode(),
        workflow.decode(),
        int(version),
        execution.decode(),
        data,
        int(fence or 0) + 1,
        int(attempts or 0) + 1,
        until_ms,
        queue.decode(),
        int(enqueued),
    )


def queue_refusal(word: object, rest: Sequence[Any], unit: Any) -> StepwellError | None:
    """Return the refusal of a unit; None for a word that no queue script replies."""
    match word:
        case b"item" if isinstance(unit, Commit):
            return _refused(unit.items[int(rest[0]) - 1], rest[1], rest[2:])
        case b"claim":
            mark = _named(unit)
            return claim_lost(mark.item_id, mark.fence)
        case b"no_item":
            return no_item(unit.item_id)
        case b"dropped":
            return item_dropped(_named(unit).item_id)
        case b"driven":
            return item_driven(_named(unit).item_id, rest[0].decode())
        case b"alive":
            return item_alive(_named(unit).item_id, rest[0].decode())
        case b"single":
            return singleton_alive(rest[0].decode())
        case b"changed":
            return changed_since_read(unit)
        case b"tier":
            names = ", ".join(sorted(name.decode() for name in rest))
            return NotFound(f"there is no tier {unit.workspace.tier!r}; there are {names}")
        case _:
            return None


def _named(unit: Any) -> Any:
    """Return the part of a unit that names its item: the mark of a commit, or the unit itself."""
    return unit.mark if isinstance(unit, Commit) else unit


T = TypeVar("T")
Arguments = tuple[bytes | str | int, ...]

_GONE = "its execution was not written to for as long as execution_ttl keeps one, and is gone"


class QueueCalls:
    """Build the calls of the queue's scripts of one store. The scripts build the names of most keys themselves."""

    def __init__(self, keys: Keys, *, store_id: bytes, ttl_ms: int, ahead_ms: Callable[[], int]) -> None:
        self._keys, self._id, self._ttl_ms, self._ahead_ms = keys, store_id, ttl_ms, ahead_ms

    def of(self, unit: Any) -> tuple[str, tuple[bytes, ...], Arguments]:
        """Return the script of a unit, its keys and its arguments."""
        script, arguments = _BUILDERS[type(unit)](self, unit)
        return script, (self._keys.store, self._keys.queue), arguments

    def _start(self) -> Arguments:
        return self._id, self._ahead_ms(), self._keys.queue_channel

    def enqueue(self, unit: Enqueue) -> tuple[str, Arguments]:
        return "enqueue", (*self._start(), pack([request(new) for new in unit.items]))

    def claim(self, unit: ClaimItems) -> tuple[str, Arguments]:
        span, limit = round(unit.seconds * 1000), max(unit.limit, 0)
        names = [pack([encoded(name) for name in names]) for names in (unit.queues, unit.workflows)]
        return "claim_items", (self._id, self._ahead_ms(), unit.holder, span, limit, *names)

    def mark(self, unit: ItemMark) -> tuple[str, Arguments]:
        return "mark_item", (*self._start(), pack(pack_mark(unit, storable(unit.error))))

    def give_back(self, unit: ReturnItem) -> tuple[str, Arguments]:
        told = (unit.item_id, unit.fence, unit.delay_ms, unit.is_final, storable(unit.error))
        return "return_item", (*self._start(), pack(told))

    def cancel(self, unit: CancelItem) -> tuple[str, Arguments]:
        return "cancel_item", (*self._start(), unit.item_id)

    def redrive(self, unit: Redrive) -> tuple[str, Arguments]:
        return "redrive", (*self._start(), unit.item_id, unit.execution_id)

    def recover(self, unit: RecoverItems) -> tuple[str, Arguments]:
        return "recover_items", (*self._start(), unit.limit, EXPIRED, self._ttl_ms, self._keys.prefix, _GONE)

    def drop(self, unit: DropItems) -> tuple[str, Arguments]:
        workspaces = pack([encoded(name) for name in unit.workspaces])
        span = round(unit.seconds * 1000)
        return "drop_items", (self._id, workspaces, pack(unit.statuses), span, unit.limit, self._ahead_ms())

    def put_tier(self, unit: PutTier) -> tuple[str, Arguments]:
        row, based_on = pack_tier(unit.tier), _based_on(unit.based_on, pack_tier)
        return "put_tier", (self._id, self._keys.queue_channel, unit.tier.name, row, self._ahead_ms(), based_on)

    def put_workspace(self, unit: PutWorkspace) -> tuple[str, Arguments]:
        wanted = unit.workspace
        name, is_paused = encoded(wanted.workspace_id), int(wanted.is_paused)
        based_on = _based_on(unit.based_on, pack_workspace)
        told = (name, wanted.tier, is_paused, self._ahead_ms(), based_on, encode_overrides(wanted) or "")
        return "put_workspace", (self._id, self._keys.queue_channel, *told)

    def put_queue(self, unit: PutQueue) -> tuple[str, Arguments]:
        settings = unit.settings
        row, based_on = pack_queue(settings), _based_on(unit.based_on, pack_queue)
        return "put_queue", (self._id, self._keys.queue_channel, encoded(settings.name), row, self._ahead_ms(), based_on)


def _based_on(row: T | msgspec.UnsetType | None, pack_row: Callable[[T], bytes]) -> bytes:
    """Return the row that a change is based on, as ``includes/unchanged_row.lua`` takes it."""
    if isinstance(row, msgspec.UnsetType):
        return b"*"
    return b"" if row is None else pack_row(row)


_BUILDERS: dict[type, Callable[[QueueCalls, Any], tuple[str, Arguments]]] = {
    Enqueue: QueueCalls.enqueue,
    ClaimItems: QueueCalls.claim,
    ItemMark: QueueCalls.mark,
    ReturnItem: QueueCalls.give_back,
    CancelItem: QueueCalls.cancel,
    Redrive: QueueCalls.redrive,
    RecoverItems: QueueCalls.recover,
    DropItems: QueueCalls.drop,
    PutTier: QueueCalls.put_tier,
    PutWorkspace: QueueCalls.put_workspace,
    PutQueue: QueueCalls.put_queue,
}

QUEUE_UNITS = frozenset(_BUILDERS)
"""The units that are the queue's."""


# A script blocks the server; so many items take about ten milliseconds.
_MOST_ITEMS = 1_000


def are_enqueues(units: Sequence[Unit]) -> TypeGuard[Sequence[Enqueue]]:
    """Return whether the group only adds items, in units small enough to merge."""
    return all(type(unit) is Enqueue and len(unit.items) < _MOST_ITEMS for unit in units)


class Merged:
    """Merge enqueues into few units; the items of one enqueue are never divided between two, so it lands whole."""

    def __init__(self, enqueues: Sequence[Enqueue]) -> None:
        self._groups: list[list[Enqueue]] = []
        room = 0
        for unit in enqueues:
            if not self._groups or len(unit.items) > room:
                self._groups.append([])
                room = _MOST_ITEMS
            self._groups[-1].append(unit)
            room -= len(unit.items)
        self.units = [Enqueue(tuple(_items(group))) for group in self._groups]

    def outcomes(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcome of each original enqueue."""
        return [each for group, outcome in zip(self._groups, outcomes, strict=True) for each in _shares(group, outcome)]


def _items(group: Sequence[Enqueue]) -> Iterator[NewItem]:
    return (new for unit in group for new in unit.items)


def _shares(group: Sequence[Enqueue], outcome: Outcome) -> Iterator[Outcome]:
    if not isinstance(outcome, Written):
        yield from [outcome] * len(group)
        return
    answers = iter(outcome.answers)
    for unit in group:
        yield Written(list(islice(answers, len(unit.items))))
