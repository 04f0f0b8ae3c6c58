"""Reads the queue from Redis. What must be one view is one script."""

from __future__ import annotations

from stepwell.model.queue_item import TIERS, Item, ItemQuery, ItemStatus, Lane, QueueSettings, Tier, Workspace
from stepwell.stores.redis.asking import Asking
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.link import Command
from stepwell.stores.redis.queue_rows import (
    encoded,
    pack_tier,
    pack_workspace,
    read_item,
    read_lane,
    read_queues,
    read_tiers,
    read_workspaces,
)

__all__ = ["RedisQueueReads", "first_rows"]

_PAGE = 1_000
_LAST_NUMBER = 10**16 - 1
_DEFAULT = Workspace(workspace_id="default", tier="unlimited")

# Where to look for items of a status, if there is a better place than among all.
_INDEXES: dict[str, str] = {
    ItemStatus.CLAIMED: "active",
    ItemStatus.DISPATCHED: "active",
    ItemStatus.FAILED: "dead",
    ItemStatus.CANCELLED: "dead",
}


def first_rows(keys: Keys) -> list[tuple[bytes, Command]]:
    """What makes the tiers and the workspace that every store has; what is there already stays as it is."""
    rows = [(b":tiers", tier.name, pack_tier(tier)) for tier in TIERS]
    rows.append((b":workspaces", encoded(_DEFAULT.workspace_id), pack_workspace(_DEFAULT)))
    return [(keys.store, ("HSETNX", keys.queue + table, name, row)) for table, name, row in rows]


class RedisQueueReads:
    """The queue's reads of one store."""

    def __init__(self, asking: Asking, keys: Keys) -> None:
        self._asking, self._keys = asking, keys

    def item(self, item_id: str) -> Item | None:
        return read_item(self._asking.script("item", (self._keys.queue,), item_id))

    def items(self, query: ItemQuery) -> list[Item]:
        """Walks the index that holds the fewest others, a page at a time."""
        index = _index_of(query)
        filters = [value or "" for value in (query.queue, query.status, query.workflow_id)]
        high = "+" if query.before is None else f"({min(max(query.before, 0), _LAST_NUMBER):016d}"
        found: list[Item] = []
        while len(found) < query.limit:
            most = query.limit - len(found)
            last, *rows = self._asking.script("items", (self._keys.queue,), index, high, most, _PAGE, *filters)
            found += [item for row in rows if (item := read_item(row)) is not None]
            if not last:
                break
            high = f"({last.decode()}"
        return found

    def lanes(self, workspace_id: str | None, ahead_ms: int) -> list[Lane]:
        name = "" if workspace_id is None else encoded(workspace_id)
        rows = self._asking.script("lanes", (self._keys.queue,), ahead_ms, name)
        return sorted(map(read_lane, rows), key=lambda lane: (lane.workspace_id, lane.queue))

    def next_ready_ms(self) -> int | None:
        delayed = self._keys.queue + b":delayed"
        first = self._asking.one("ZRANGE", delayed, 0, 0, "WITHSCORES", key=delayed)
        return int(float(first[1])) if first else None

    def has_ready(self) -> bool:
        ready = self._keys.queue + b":ready"
        return bool(self._asking.one("EXISTS", ready, key=ready))

    def workspaces(self) -> list[Workspace]:
        return read_workspaces(self._table(b":workspaces"))

    def tiers(self) -> list[Tier]:
        return read_tiers(self._table(b":tiers"))

    def queues(self) -> list[QueueSettings]:
        return read_queues(self._table(b":queues"))

    def _table(self, name: bytes) -> list[bytes]:
        table = self._keys.queue + name
        return self._asking.one("HGETALL", table, key=table)


def _index_of(query: ItemQuery) -> str:
    if query.workspace_id is not None:
        return f"of:{encoded(query.workspace_id)}"
    return "all" if query.status is None else _INDEXES.get(query.status, "all")
