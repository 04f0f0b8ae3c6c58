"""Reads the queue from PostgreSQL."""

from __future__ import annotations

from stepwell.clock import Clock
from stepwell.model.queue_item import Item, ItemQuery, Lane, QueueSettings, Tier, Workspace
from stepwell.stores.postgres.wire import Row
from stepwell.stores.queue_rows import item_of, items_question, queue_of, tier_of, workspace_of

__all__ = ["PostgresQueueReads"]

_MOST_WAITS = 1_000


class PostgresQueueReads:
    """The queue's reading verbs; the store asks the server."""

    _clock: Clock

    def _rows(self, name: str, *arguments: object) -> list[Row]:
        raise NotImplementedError

    def item(self, item_id: str) -> Item | None:
        """A queue item as it is now."""
        rows = self._rows("item", item_id)
        return item_of(rows[0]) if rows else None

    def items(self, query: ItemQuery) -> list[Item]:
        """Queue items, newest first."""
        return [item_of(row) for row in self._rows(*items_question(query))]

    def lanes(self, workspace_id: str | None = None) -> list[Lane]:
        """What waits and runs, by workspace and queue, in one view."""
        return [_lane(row) for row in self._rows("lanes", workspace_id, self._clock.ahead_ms(), _MOST_WAITS)]

    def next_ready_ms(self) -> int | None:
        """When the next delayed item becomes ready."""
        rows = self._rows("next_ready")
        return rows[0][0] if rows else None

    def has_ready(self) -> bool:
        """Whether there is anything for claims to find."""
        return bool(self._rows("has_ready"))

    def workspaces(self) -> list[Workspace]:
        """All workspaces by id."""
        return [workspace_of(row) for row in self._rows("workspaces")]

    def tiers(self) -> list[Tier]:
        """All tiers by name."""
        return [tier_of([*row[:2], float(row[2]), _number(row[3]), *row[4:6], _number(row[6])]) for row in self._rows("tiers")]

    def queues(self) -> list[QueueSettings]:
        """The queues that were set up, by name."""
        return [queue_of([*row[:3], _number(row[3])]) for row in self._rows("queues")]


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _lane(row: Row) -> Lane:
    workspace_id, queue, ready, delayed, claimed, dispatched, oldest, waits = row
    return Lane(
        workspace_id=workspace_id,
        queue=queue,
        ready=ready,
        delayed=delayed,
        claimed=claimed,
        dispatched=dispatched,
        oldest_ready_ms=oldest,
        waits_ms=tuple(int(wait) for wait in waits.split()),
    )
