"""From a unit of the queue to the script that writes it, with its keys and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from stepwell.errors import InvalidInput
from stepwell.model.commit import Commit
from stepwell.model.queue_item import (
    CancelItem,
    ClaimItems,
    Enqueue,
    ItemMark,
    PutQueue,
    PutTier,
    PutWorkspace,
    RecoverItems,
    Redrive,
    ReturnItem,
)
from stepwell.model.queue_lifecycle import EXPIRED, storable
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.queue_rows import encoded, pack, pack_mark, pack_queue, pack_tier, pack_workspace, request

__all__ = ["QUEUE_UNITS", "QueueCalls"]

T = TypeVar("T")
Arguments = tuple[bytes | str | int, ...]

_GONE = "its execution was not written to for as long as execution_ttl keeps one, and is gone"


class QueueCalls:
    """What the queue's scripts of one store are called with.

    They build the names of most keys themselves, so they are for a single server. A cluster could keep the queue on one node, but
    never write it together with executions on others.
    """

    def __init__(self, keys: Keys, *, is_cluster: bool, store_id: bytes, ttl_ms: int, ahead_ms: Callable[[], int]) -> None:
        self._keys, self._is_cluster, self._id, self._ttl_ms, self._ahead_ms = keys, is_cluster, store_id, ttl_ms, ahead_ms

    def of(self, unit: Any) -> tuple[str, tuple[bytes, ...], Arguments]:
        """The script of a unit, its keys and its arguments."""
        self._refuse_cluster()
        script, arguments = _BUILDERS[type(unit)](self, unit)
        return script, (self._keys.store, self._keys.queue), arguments

    def riding(self, commit: Commit) -> bytes:
        """What a commit does to the queue, as ``parts/riding.lua`` takes it."""
        self._refuse_cluster()
        keys, mark = self._keys, commit.mark
        return pack(
            (
                *(keys.store.decode(), keys.queue.decode(), keys.queue_channel.decode(), self._ahead_ms()),
                *([request(new) for new in commit.items], mark and pack_mark(mark, storable(mark.error))),
            )
        )

    def _refuse_cluster(self) -> None:
        if self._is_cluster:
            raise InvalidInput(
                "the queue needs a single Redis server or PostgreSQL; a Redis cluster cannot write it with executions"
            )

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

    def put_tier(self, unit: PutTier) -> tuple[str, Arguments]:
        row, based_on = pack_tier(unit.tier), _based_on(unit.based_on, pack_tier)
        return "put_tier", (self._id, self._keys.queue_channel, unit.tier.name, row, self._ahead_ms(), based_on)

    def put_workspace(self, unit: PutWorkspace) -> tuple[str, Arguments]:
        wanted = unit.workspace
        name, is_paused = encoded(wanted.workspace_id), int(wanted.is_paused)
        told = (name, wanted.tier, is_paused, self._ahead_ms(), _based_on(unit.based_on, pack_workspace))
        return "put_workspace", (self._id, self._keys.queue_channel, *told)

    def put_queue(self, unit: PutQueue) -> tuple[str, Arguments]:
        settings = unit.settings
        row, based_on = pack_queue(settings), _based_on(unit.based_on, pack_queue)
        return "put_queue", (self._id, self._keys.queue_channel, encoded(settings.name), row, self._ahead_ms(), based_on)


def _based_on(row: T | msgspec.UnsetType | None, pack_row: Callable[[T], bytes]) -> bytes:
    """What a change is based on, as ``parts/based.lua`` takes it."""
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
    PutTier: QueueCalls.put_tier,
    PutWorkspace: QueueCalls.put_workspace,
    PutQueue: QueueCalls.put_queue,
}

QUEUE_UNITS = frozenset(_BUILDERS)
"""The units that are the queue's."""
