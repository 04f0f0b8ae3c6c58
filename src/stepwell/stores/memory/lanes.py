"""Counts queue items by lane."""

from __future__ import annotations

from collections.abc import Iterable

from stepwell.model.queue_item import Item, ItemStatus, Lane
from stepwell.model.queue_lifecycle import ready_since

__all__ = ["lanes_of"]

_MOST_WAITS = 1_000


def lanes_of(items: Iterable[Item], now_ms: int) -> list[Lane]:
    """What waits and runs, by workspace and queue."""
    grouped: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        grouped.setdefault((item.workspace_id, item.queue), []).append(item)
    return [_lane(*key, grouped[key], now_ms) for key in sorted(grouped)]


def _lane(workspace_id: str, queue: str, items: list[Item], now_ms: int) -> Lane:
    pending = [item for item in items if item.status is ItemStatus.PENDING]
    ready = [ready_since(item) for item in pending if item.run_at_ms <= now_ms]
    started = sorted((item.claimed_ms, ready_since(item)) for item in items if item.claimed_ms is not None)
    return Lane(
        workspace_id=workspace_id,
        queue=queue,
        ready=len(ready),
        delayed=len(pending) - len(ready),
        claimed=sum(item.status is ItemStatus.CLAIMED for item in items),
        dispatched=sum(item.status is ItemStatus.DISPATCHED for item in items),
        oldest_ready_ms=min(ready, default=None),
        waits_ms=tuple(sorted(claimed - since for claimed, since in started[-_MOST_WAITS:])),
    )
