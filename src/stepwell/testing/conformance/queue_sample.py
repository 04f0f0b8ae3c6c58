"""Samples for the tests of the queue: the smallest items, workspaces and claims."""

from __future__ import annotations

from typing import Any

from stepwell.contract.store import Store
from stepwell.model.queue_item import (
    Claimed,
    ClaimItems,
    Enqueue,
    Enqueued,
    Item,
    ItemMark,
    ItemQuery,
    NewItem,
    PutTier,
    PutWorkspace,
    RecoverItems,
    ReturnItem,
    Tier,
    Workspace,
)
from stepwell.testing.conformance.sample import HOUR, answers, fresh_id, landed, write

__all__ = [
    "add",
    "added",
    "claim_items",
    "claimed_item",
    "end",
    "give_back",
    "ids_of",
    "new_item",
    "put_workspace",
    "recover",
    "statuses",
    "stored",
    "used",
]


def new_item(name: str | None = None, workspace: str = "default", **fields: Any) -> NewItem:
    """A request for an execution; ``fields`` replace some of its own."""
    item_id = name or fresh_id("item")
    own: dict[str, Any] = {
        "item_id": item_id,
        "workspace_id": workspace,
        "workflow_id": "orders",
        "version": 3,
        "execution_id": f"of-{item_id}",
        "input": b'{"a":1}',
        "body_digest": "d1",
    }
    return NewItem(**{**own, **fields})


def added(store: Store, *items: NewItem) -> list[Any]:
    """Enqueue items as one unit; an answer or a refusal for each."""
    return answers(write(store, Enqueue(items)))


def add(store: Store, *items: NewItem | str) -> list[str]:
    """Enqueue items that must be new, as one unit; their ids."""
    given = [new_item(item) if isinstance(item, str) else item for item in items]
    got = added(store, *given)
    assert [(answer.item_id, answer.is_new) for answer in got if isinstance(answer, Enqueued)] == [(n.item_id, True) for n in given]
    return [new.item_id for new in given]


def put_workspace(store: Store, name: str = "acme", *, is_paused: bool = False, **limits: Any) -> None:
    """A workspace with a tier of its own; the tier's name is the workspace's, in small letters."""
    landed(write(store, PutTier(Tier(name=name.lower(), **limits))))
    landed(write(store, PutWorkspace(Workspace(workspace_id=name, tier=name.lower(), is_paused=is_paused))))


def claim_items(store: Store, limit: int = 10, *, holder: str = "d", seconds: float = HOUR, **fields: Any) -> list[Claimed]:
    """What a claim takes."""
    return answers(write(store, ClaimItems(holder, seconds, limit, **fields)))


def claimed_item(store: Store, name: str = "a", **fields: Any) -> Claimed:
    """An item that was enqueued and claimed, with nothing else waiting."""
    add(store, new_item(name, **fields))
    [claimed] = claim_items(store)
    return claimed


def end(store: Store, *items: Claimed, status: str = "COMPLETED") -> None:
    """End items that were claimed."""
    for item in items:
        landed(write(store, ItemMark(item.item_id, status, item.fence)))


def recover(store: Store, limit: int = 1_000) -> list[str]:
    """The ids of the items that a recovery returned."""
    *ids, _ = answers(write(store, RecoverItems(limit)))
    return ids


def ids_of(items: list[Claimed] | list[Item]) -> list[str]:
    """The ids of items."""
    return [item.item_id for item in items]


def stored(store: Store, item_id: str) -> Item:
    """An item that must be there."""
    item = store.item(item_id)
    assert item is not None, f"item {item_id!r} is gone"
    return item


def statuses(store: Store, workspace: str | None = None) -> dict[str, str]:
    """Every item's status, the first one first."""
    items = store.items(ItemQuery(workspace_id=workspace, limit=100_000))
    return {item.item_id: item.status.value for item in reversed(items)}


def used(store: Store, workspace: str) -> int:
    """How many slots of a workspace its rows use."""
    return sum(status in ("CLAIMED", "DISPATCHED") for status in statuses(store, workspace).values())


def give_back(store: Store, item: Claimed, error: str | None = None, **fields: Any) -> Item:
    """Return an item; how it is afterwards."""
    [after] = answers(write(store, ReturnItem(item.item_id, item.fence, error, **fields)))
    assert after == stored(store, item.item_id)
    return after
