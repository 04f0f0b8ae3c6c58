"""Quota of scoped state: the ``state_bytes`` of a workspace's tier, as a rule for ``model.scoped_operations.resolve``.

All scopes of a workspace count together. Stepwell's own writes (messages to executions, definitions, schedules, heartbeats) count
and are never refused, since an execution that cannot receive its child's result would wait for ever. Writes that shrink or move
state are never refused either, so that a workspace over a lowered limit can be tidied up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from stepwell.errors import LimitExceeded
from stepwell.model.scope import workspace_of

__all__ = ["RoomOf", "StateRoom", "boundless", "growth_in", "overfull"]

_NEVER_REFUSED = frozenset(
    ("definition", "schedule", "worker", "inbox", "late_result", "audit", "idempotency", "global", "retention", "tombstone")
)


class StateRoom(NamedTuple):
    """The limit and the present size of a workspace's scoped state, in bytes of keys and values."""

    maximum: int
    held: int


RoomOf = Callable[[str], StateRoom | None]
"""Returns the limit and size of a workspace; None if it has no limit."""


def boundless(_: str) -> None:
    """Return None: no workspace has a limit."""
    return


def growth_in(changes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the growth in bytes of each workspace; ``changes`` are scope paths with the growth of each.

    Growth that is never refused is left out.
    """
    growth: dict[str, int] = {}
    for path, grown in changes:
        if grown and path.split("/", 1)[0] not in _NEVER_REFUSED:
            workspace = workspace_of(path)
            growth[workspace] = growth.get(workspace, 0) + grown
    return {workspace: grown for workspace, grown in growth.items() if grown > 0}


def overfull(changes: Iterable[tuple[str, int]], room_of: RoomOf) -> LimitExceeded | None:
    """Return the refusal of changes that leave a workspace over its limit."""
    for workspace, grown in growth_in(changes).items():
        room = room_of(workspace)
        if room is not None and room.held + grown > room.maximum:
            return _full(workspace, room, grown)
    return None


def _full(workspace: str, room: StateRoom, grown: int) -> LimitExceeded:
    size = room.held + grown
    message = (
        f"the state of workspace {workspace!r}, in bytes, would be {size:,}, over its tier's state_bytes={room.maximum:,}; "
        "delete some, or raise the tier's state_bytes"
    )
    return LimitExceeded(message, limit="state_bytes", maximum=room.maximum, actual=size)
