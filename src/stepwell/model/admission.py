"""What a request for an item comes to: an item that is there already, a new one, or a refusal.

The rules are here, once; a store that decides in Python shows its items as a ``Desk`` and has no rules of its own.
"""

from __future__ import annotations

from typing import Protocol

from stepwell.errors import LimitExceeded, NotFound, StepwellError
from stepwell.model.lifecycle import answer, debounced, is_same
from stepwell.model.queue import Enqueued, Item, NewItem
from stepwell.model.refusal import asked_otherwise

__all__ = ["Desk", "admit", "full", "is_plain", "unknown_workspace"]


class Desk(Protocol):
    """A store's items, as a request needs to see them."""

    def room(self, workspace_id: str) -> int | StepwellError:
        """How many more PENDING items the workspace may have, or why it may have none."""
        ...

    def named(self, new: NewItem) -> Item | None:
        """The item with this id."""
        ...

    def keyed(self, workspace_id: str, key: str) -> Item | None:
        """The item of the workspace with this idempotency key."""
        ...

    def single(self, workspace_id: str, singleton: str) -> Item | None:
        """The item of the workspace with this singleton name that has not ended."""
        ...

    def bouncing(self, workspace_id: str, debounce: str) -> Item | None:
        """The newest PENDING item of the workspace with this debounce name."""
        ...

    def enter(self, new: NewItem) -> Item:
        """Add an item."""
        ...

    def change(self, before: Item, after: Item) -> None:
        """Write an item anew."""
        ...


def is_plain(new: NewItem) -> bool:
    """Whether nothing but its id can make it an item that is there already."""
    return new.key is None and new.singleton is None and new.debounce is None


def admit(new: NewItem, desk: Desk, now_ms: int) -> Enqueued | StepwellError:
    """Write what a request comes to, and say what that is."""
    room = desk.room(new.workspace_id)
    if isinstance(room, StepwellError):
        return room
    found = _found(new, desk)
    if isinstance(found, StepwellError):
        return found
    if found is not None:
        return answer(found)
    waiting = None if new.debounce is None else desk.bouncing(new.workspace_id, new.debounce)
    if waiting is not None:
        desk.change(waiting, debounced(waiting, new, now_ms))
        return answer(waiting)
    return answer(desk.enter(new), is_new=True) if room > 0 else full(new.workspace_id)


def _found(new: NewItem, desk: Desk) -> Item | StepwellError | None:
    """The item that the request made before, or that stands for it."""
    item = desk.named(new)
    if item is None and new.key is not None:
        item = desk.keyed(new.workspace_id, new.key)
    if item is not None:
        return item if is_same(item, new) else asked_otherwise(item.item_id)
    return None if new.singleton is None else desk.single(new.workspace_id, new.singleton)


def full(workspace_id: str) -> LimitExceeded:
    """The refusal of a workspace that has as much waiting as its tier allows."""
    message = f"workspace {workspace_id!r} has as many items waiting as its tier allows; wait, or raise the tier's queue_depth"
    return LimitExceeded(message, limit="queue_depth")


def unknown_workspace(workspace_id: str) -> NotFound:
    """The refusal of a workspace that nobody made."""
    return NotFound(f"there is no workspace {workspace_id!r}; put it first, with a tier")
