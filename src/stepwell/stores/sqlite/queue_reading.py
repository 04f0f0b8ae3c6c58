"""Reads the queue from SQLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stepwell.model.queue_item import Item, ItemQuery, Lane, QueueSettings, Tier, Workspace
from stepwell.stores.queue_rows import item_of, items_question, queue_of, tier_of, workspace_of
from stepwell.stores.sqlite.connection import Database
from stepwell.stores.sqlite.queue import SQL

__all__ = ["SqliteQueueReads"]

T = TypeVar("T")
_MOST_WAITS = 1_000


class SqliteQueueReads:
    """The queue's reading verbs; the store lends a reader and knows the time."""

    def _read(self, query: Callable[[Database], T]) -> T:
        raise NotImplementedError

    def now_ms(self) -> int:
        """The store's clock."""
        raise NotImplementedError

    def _queue_rows(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        return self._read(lambda db: db.rows(SQL[name], *arguments))

    def item(self, item_id: str) -> Item | None:
        """A queue item as it is now."""
        rows = self._queue_rows("item", item_id)
        return item_of(rows[0]) if rows else None

    def items(self, query: ItemQuery) -> list[Item]:
        """Queue items, newest first."""
        return [item_of(row) for row in self._queue_rows(*items_question(query))]

    def lanes(self, workspace_id: str | None = None) -> list[Lane]:
        """What waits and runs, by workspace and queue, in one view."""
        now = self.now_ms()

        def query(db: Database) -> list[Lane]:
            db.rows("BEGIN")
            try:
                return _lanes(db, workspace_id, now)
            finally:
                db.rows("COMMIT")

        return self._read(query)

    def next_ready_ms(self) -> int | None:
        """When the next delayed item becomes ready."""
        rows = self._queue_rows("next_ready")
        return rows[0][0] if rows else None

    def has_ready(self) -> bool:
        """Whether there is anything for claims to find."""
        return bool(self._queue_rows("has_ready"))

    def workspaces(self) -> list[Workspace]:
        """All workspaces by id."""
        return [workspace_of(row) for row in self._queue_rows("workspaces")]

    def tiers(self) -> list[Tier]:
        """All tiers by name."""
        return [tier_of(row) for row in self._queue_rows("tiers")]

    def queues(self) -> list[QueueSettings]:
        """The queues that were set up, by name."""
        return [queue_of(row) for row in self._queue_rows("queues")]


def _lanes(db: Database, workspace_id: str | None, now_ms: int) -> list[Lane]:
    waiting = {row[:2]: row[2:] for row in db.rows(SQL["waiting_lanes"], workspace_id, now_ms)}
    active = {row[:2]: row[2:] for row in db.rows(SQL["active_lanes"], workspace_id)}
    ended = set(db.rows(SQL["ended_lanes"], workspace_id))
    return [
        _lane(db, key, waiting.get(key, (0, 0, None)), active.get(key, (0, 0)))
        for key in sorted(waiting.keys() | active.keys() | ended)
    ]


def _lane(db: Database, key: tuple[Any, ...], waiting: tuple[Any, ...], active: tuple[Any, ...]) -> Lane:
    ready, delayed, oldest = waiting
    waits = tuple(sorted(row[0] for row in db.rows(SQL["waits"], *key, _MOST_WAITS)))
    claimed, dispatched = active
    return Lane(
        workspace_id=key[0],
        queue=key[1],
        ready=ready,
        delayed=delayed,
        claimed=claimed,
        dispatched=dispatched,
        oldest_ready_ms=oldest,
        waits_ms=waits,
    )
