"""Rows of the queue's tables, decoded into values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stepwell.errors import Corrupted
from stepwell.model.queue_item import QUOTAS, Item, ItemQuery, ItemStatus, Override, QueueSettings, Tier, Workspace, tier_at

__all__ = [
    "encode_overrides",
    "encode_quotas",
    "item_of",
    "items_question",
    "limits_in_row",
    "queue_of",
    "quotas_of",
    "tier_of",
    "workspace_of",
]

_LAST = 2**63 - 1
_DEAD = (ItemStatus.FAILED, ItemStatus.CANCELLED)
_ITEM = (
    "item_id",
    "number",
    "workspace_id",
    "workflow_id",
    "version",
    "execution_id",
    "input",
    "queue",
    "status",
    "priority",
    "enqueued_ms",
    "run_at_ms",
    "key",
    "body_digest",
    "singleton",
    "debounce",
    "attempts",
    "max_attempts",
    "holder",
    "fence",
    "lease_until_ms",
    "claimed_ms",
    "dispatched_ms",
    "finished_ms",
    "error",
)


def item_of(row: Sequence[Any]) -> Item:
    """Return an item from the columns of the query ``item``."""
    fields: dict[str, Any] = dict(zip(_ITEM, row, strict=True))
    fields["status"] = ItemStatus(fields["status"])
    return Item(**fields)


def items_question(query: ItemQuery) -> tuple[Any, ...]:
    """Return the statement that finds items, and its arguments: the one whose index has the fewest other items."""
    before = _LAST if query.before is None else query.before
    arguments = (query.queue, query.status, query.workflow_id, before, query.limit)
    if query.workspace_id is not None:
        return "find_items_of", *arguments, query.workspace_id
    return ("find_dead_items" if query.status in _DEAD else "find_items"), *arguments


def tier_of(row: Sequence[Any]) -> Tier:
    """Return a tier from its columns."""
    name, concurrency, weight, rate, depth, state_bytes, retention, children, quotas = row
    return Tier(
        name=name,
        concurrency=concurrency,
        weight=weight,
        rate_per_second=rate,
        queue_depth=depth,
        state_bytes=state_bytes,
        retention_seconds=retention,
        child_concurrency=children,
        **(_decode_quotas(quotas) if quotas else {}),
    )


_decode_quotas = msgspec.json.Decoder(dict[str, int]).decode


def quotas_of(tier: Tier) -> dict[str, int]:
    """Return the limits of a tier that are in its document."""
    limits = ((name, getattr(tier, name)) for name in sorted(QUOTAS))
    return {name: most for name, most in limits if most is not None}


def encode_quotas(tier: Tier) -> str | None:
    """Return the document of a tier's limits as its column holds it: JSON, or None for none."""
    quotas = quotas_of(tier)
    return msgspec.json.encode(quotas).decode() if quotas else None


def workspace_of(row: Sequence[Any]) -> Workspace:
    """Return a workspace from its columns."""
    workspace_id, tier, is_paused, created_ms, overrides = row
    try:
        limits = _decode_overrides(overrides) if overrides else {}
    except msgspec.MsgspecError:
        raise Corrupted(f"workspace {workspace_id!r} has overrides that cannot be read; put it again") from None
    return Workspace(workspace_id=workspace_id, tier=tier, is_paused=bool(is_paused), created_ms=created_ms, overrides=limits)


_decode_overrides = msgspec.json.Decoder(dict[str, Override]).decode


def encode_overrides(workspace: Workspace) -> str | None:
    """Return the overrides of a workspace as its column holds them: JSON, or None for none."""
    return msgspec.json.encode(workspace.overrides, order="sorted").decode() if workspace.overrides else None


def limits_in_row(row: Sequence[Any], now_ms: int) -> Tier:
    """Return what limits the scoped state of a workspace now, from the columns of the query ``state_limits``."""
    workspace_id, state_bytes, quotas, overrides = row
    tier = Tier(name="its-own", state_bytes=state_bytes, **(_decode_quotas(quotas) if quotas else {}))
    return tier_at(tier, workspace_of((workspace_id, tier.name, False, 0, overrides)), now_ms)


def queue_of(row: Sequence[Any]) -> QueueSettings:
    """Return a named queue from its columns."""
    name, is_paused, concurrency, rate = row
    return QueueSettings(name=name, is_paused=bool(is_paused), concurrency=concurrency, rate_per_second=rate)
