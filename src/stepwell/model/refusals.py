"""Refusals of units, in the same words on every store."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from stepwell.errors import AlreadyExists, Conflict, LeaseLost, LockHeld, NotFound
from stepwell.model.commit import Archiving, LockGuard, Renew, Unlock
from stepwell.model.queue_item import PutQueue, PutTier, PutWorkspace, QueueSettings, Tier, Workspace

__all__ = [
    "asked_otherwise",
    "changed_since_decision",
    "changed_since_read",
    "claim_lost",
    "conflict_if_changed",
    "guard_lost",
    "id_taken",
    "item_alive",
    "item_driven",
    "item_dropped",
    "leased",
    "lock_held",
    "lock_lost",
    "no_execution",
    "no_item",
    "no_revision",
    "singleton_alive",
]


def no_execution(execution_id: str) -> NotFound:
    """Return the refusal of a unit for an execution that does not exist."""
    return NotFound(f"there is no execution {execution_id!r}")


def no_revision(archiving: Archiving) -> NotFound:
    """Return the refusal to archive up to a revision that is not in the retained history."""
    return NotFound(f"execution {archiving.execution_id!r} has no revision {archiving.snapshot.revision} to archive")


def id_taken(execution_id: str) -> AlreadyExists:
    """Return the refusal of a creation whose id is, or was, another execution's."""
    return AlreadyExists(f"execution {execution_id!r} exists already; ids are never used twice")


def leased(execution_id: str, until_ms: int | None = None) -> LockHeld:
    """Return the refusal of a claim on an execution that another holder has leased."""
    return LockHeld(f"execution {execution_id!r} is leased to another holder", until_ms=until_ms)


def lock_held(name: str, until_ms: int | None) -> LockHeld:
    """Return the refusal of a lock that another holder has."""
    return LockHeld(f"{_lock_title(name)} is held by another", until_ms=until_ms)


def lock_lost(unit: Renew | Unlock) -> LeaseLost:
    """Return the refusal to renew or release a lock that its holder has lost."""
    return LeaseLost(f"{_lock_title(unit.name)} expired or was taken by another", fence=unit.fence)


def guard_lost(guard: LockGuard) -> LeaseLost:
    """Return the refusal of a guarded write whose lock was granted to another holder since."""
    return LeaseLost(f"{_lock_title(guard.name)} was lost; nothing was written", fence=guard.fence)


_LOCK_TITLES = {"user": "lock", "workspace": "lock", "scheduled": "scheduled lock", "conversation": "conversation"}


def _lock_title(name: str) -> str:
    """Return what the user calls a lock of the store: ``conversation/acme/c1`` is conversation 'c1'."""
    kind, *parts = name.split("/")
    return f"{_LOCK_TITLES[kind]} {unquote(parts[-1])!r}" if kind in _LOCK_TITLES and parts else f"lock {name!r}"


def asked_otherwise(item_id: str) -> Conflict:
    """Return the refusal of a request whose id or key belongs to another request with another body."""
    return Conflict(
        f"item {item_id!r} has this id or key and asks for something else; ask again with the same workflow, input and options, "
        "or with a key of its own"
    )


def no_item(item_id: str) -> NotFound:
    """Return the refusal of a unit for a queue item that does not exist."""
    return NotFound(f"there is no item {item_id!r}")


def claim_lost(item_id: str, fence: int | None) -> LeaseLost:
    """Return the refusal of a worker that has lost its claim on an item."""
    return LeaseLost(f"the claim of item {item_id!r} was lost; nothing was written", fence=fence)


def item_alive(item_id: str, status: str) -> Conflict:
    """Return the refusal to redrive an item that has neither failed nor been cancelled."""
    return Conflict(f"item {item_id!r} is {status}; only one that is FAILED or CANCELLED is driven again")


def item_dropped(item_id: str) -> Conflict:
    """Return the refusal of a retry whose queue item was dropped, so that it could never be claimed."""
    return Conflict(
        f"item {item_id!r}, which the execution came from, was dropped since it ended; nothing was written, enqueue the work anew"
    )


def item_driven(item_id: str, execution_id: str) -> Conflict:
    """Return the refusal of a retry whose queue item was redriven and has another execution by now."""
    return Conflict(
        f"item {item_id!r}, which the execution came from, was driven again as execution {execution_id!r}; nothing was written, "
        "look at that one"
    )


def singleton_alive(name: str) -> Conflict:
    """Return the refusal of an item while another one with its singleton name has not ended."""
    return Conflict(f"another item of singleton {name!r} has not ended; wait for it, or cancel it")


def conflict_if_changed(
    unit: PutTier | PutWorkspace | PutQueue, present: Tier | Workspace | QueueSettings | None
) -> Conflict | None:
    """Return the refusal of a change that is not based on the stored value; None if it may be written."""
    return None if unit.based_on is msgspec.UNSET or unit.based_on == present else changed_since_read(unit)


def changed_since_decision(execution_id: str) -> Conflict:
    """Return the refusal of a deletion that was decided on an earlier revision."""
    return Conflict(f"execution {execution_id!r} has changed since it was to be deleted; nothing was written")


def changed_since_read(unit: PutTier | PutWorkspace | PutQueue) -> Conflict:
    """Return the refusal of a change to a tier, workspace or queue that was changed meanwhile."""
    match unit:
        case PutTier():
            what = f"tier {unit.tier.name!r}"
        case PutWorkspace():
            what = f"workspace {unit.workspace.workspace_id!r}"
        case PutQueue():
            what = f"queue {unit.settings.name!r}"
    return Conflict(f"{what} was changed by another at the same moment; nothing was written, try again")
