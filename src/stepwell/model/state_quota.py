"""Quotas of scoped state: the limits of a workspace's tier on bytes and keys, as a rule for ``model.scoped_operations.resolve``.

``state_bytes`` and ``state_keys`` limit all scopes of a workspace together; ``workflow_state_bytes`` and ``workflow_state_keys``
limit the scope of each workflow together with those of its steps. Whatever has a limit is an *owner* of scopes. Stepwell's own
writes (messages to executions, definitions, schedules, heartbeats) count and are never refused, since an execution that cannot
receive its child's result would wait for ever. Writes that shrink or move state are never refused either, so that an owner over a
lowered limit can be tidied up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from stepwell.errors import LimitExceeded
from stepwell.model.queue_item import Tier

__all__ = ["Owner", "RoomOf", "StateRoom", "StateSize", "boundless", "growth_in", "overfull", "owners_of", "room_in"]

_NEVER_REFUSED = frozenset(
    ("definition", "schedule", "worker", "inbox", "late_result", "audit", "idempotency", "global", "retention", "tombstone")
) | {"child_places"}


class StateSize(NamedTuple):
    """An amount of scoped state, or its growth."""

    bytes: int = 0
    """Of keys and values."""
    keys: int = 0

    def plus(self, other: StateSize) -> StateSize:
        """Return the sum."""
        return StateSize(self.bytes + other.bytes, self.keys + other.keys)


class Owner(NamedTuple):
    """The owner of scopes: a workflow in a workspace, or with an empty ``workflow_id`` the workspace."""

    workspace_id: str
    workflow_id: str = ""

    @property
    def scope_paths(self) -> tuple[str, str]:
        """Return the path of a workflow's scope, and the beginning of the paths of its steps' scopes."""
        names = "/".join(quote(name, safe="") for name in self)
        return f"workflow/{names}", f"step/{names}/"


class StateRoom(NamedTuple):
    """The limits of an owner, None for none, and the size of its state."""

    most_bytes: int | None
    most_keys: int | None
    held: StateSize

    def after(self, grown: StateSize) -> StateRoom:
        """Return the room after a growth."""
        return self._replace(held=self.held.plus(grown))


RoomOf = Callable[[Owner], StateRoom | None]
"""Returns the limits and the size of an owner; None if it has no limit."""


def boundless(_: Owner) -> None:
    """Return None: no owner has a limit."""
    return


def owners_of(path: str) -> tuple[Owner, ...]:
    """Return the owners of a scope."""
    kind, workspace_id, *names = path.split("/", 3)
    owner = Owner(unquote(workspace_id))
    return (owner, Owner(owner.workspace_id, unquote(names[0]))) if kind in ("workflow", "step") else (owner,)


def room_in(tier: Tier, owner: Owner, held: Callable[[], StateSize]) -> StateRoom | None:
    """Return the room of an owner by its tier; None without a limit, and then ``held`` is not called."""
    names = ("workflow_state_bytes", "workflow_state_keys") if owner.workflow_id else ("state_bytes", "state_keys")
    most_bytes, most_keys = (getattr(tier, name) for name in names)
    return None if most_bytes is None and most_keys is None else StateRoom(most_bytes, most_keys, held())


def growth_in(changes: Iterable[tuple[str, StateSize]]) -> dict[Owner, StateSize]:
    """Return the growth of each owner that grows; ``changes`` are scope paths with the growth of each.

    Growth that is never refused is left out, and what shrinks is 0.
    """
    growth: dict[Owner, StateSize] = {}
    for path, grown in changes:
        if any(grown) and path.split("/", 1)[0] not in _NEVER_REFUSED:
            for owner in owners_of(path):
                growth[owner] = growth.get(owner, StateSize()).plus(grown)
    positive = {owner: StateSize(max(grown.bytes, 0), max(grown.keys, 0)) for owner, grown in growth.items()}
    return {owner: grown for owner, grown in positive.items() if any(grown)}


def overfull(changes: Iterable[tuple[str, StateSize]], room_of: RoomOf) -> LimitExceeded | None:
    """Return the refusal of changes that leave an owner over one of its limits."""
    for owner, grown in growth_in(changes).items():
        room = room_of(owner)
        if room is None:
            continue
        after = room.held.plus(grown)
        if grown.bytes and room.most_bytes is not None and after.bytes > room.most_bytes:
            return _full(owner, "bytes", after.bytes, room.most_bytes)
        if grown.keys and room.most_keys is not None and after.keys > room.most_keys:
            return _full(owner, "keys", after.keys, room.most_keys)
    return None


def _full(owner: Owner, unit: str, size: int, most: int) -> LimitExceeded:
    limit = f"workflow_state_{unit}" if owner.workflow_id else f"state_{unit}"
    whose = f"workspace {owner.workspace_id!r}"
    if owner.workflow_id:
        whose = f"workflow {owner.workflow_id!r} in {whose}"
    message = (
        f"the state of {whose}, in {unit}, would be {size:,}, over its tier's {limit}={most:,}; "
        f"delete some, or raise the tier's {limit}"
    )
    return LimitExceeded(message, limit=limit, maximum=most, actual=size)
