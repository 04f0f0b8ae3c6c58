"""Locks: their names in a store, and the transitions of a lock's row as pure functions, for the stores that decide in Python.

Each transition returns the row afterwards, or the refusal. The rules are stated with the units, in ``model.commit``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import quote

import msgspec

from stepwell.errors import LeaseLost, LockHeld
from stepwell.model.commit import Acquire, Lease, LockGuard, Renew, Unlock
from stepwell.model.ids import check_key
from stepwell.model.refusals import guard_lost, lock_held, lock_lost

__all__ = [
    "LockRow",
    "acquired",
    "broken",
    "conversation_lock",
    "lease_on",
    "probe_lock",
    "renewed",
    "scheduled_lock",
    "unlocked",
    "user_lock",
]


def user_lock(name: str) -> str:
    """Return the store's name of a user's lock."""
    return f"user/{quote(check_key(name, 'a lock name'), safe='')}"


def scheduled_lock(name: str) -> str:
    """Return the lock of a scheduled job."""
    return f"scheduled/{quote(check_key(name, 'a lock name'), safe='')}"


def probe_lock() -> str:
    """Return the lock that is acquired for a moment to test whether the store accepts writes."""
    return "health/probe"


def conversation_lock(conversation_id: str, workspace: str) -> str:
    """Return the lock of a conversation of a workspace."""
    parts = check_key(workspace, "a workspace id"), check_key(conversation_id, "a conversation id")
    return "conversation/" + "/".join(quote(part, safe="") for part in parts)


replace = msgspec.structs.replace


class LockRow(msgspec.Struct, frozen=True):
    """A lock as it is stored; free once ``until_ms`` has passed."""

    holder: str
    fence: int
    acquired_ms: int
    until_ms: int


def broken(guards: Sequence[LockGuard], row_of: Callable[[str], LockRow | None]) -> LeaseLost | None:
    """Return the first guarded lock that another holder was granted since; None if there is none."""
    for guard in guards:
        row = row_of(guard.name)
        if row is None or row.fence != guard.fence:
            return guard_lost(guard)
    return None


def acquired(row: LockRow | None, unit: Acquire, now_ms: int, next_fence: Callable[[], int]) -> LockRow | LockHeld:
    """Return the row of an acquired lock. The present holder, asking again, keeps the fence; another one gets the next fence."""
    until = now_ms + round(unit.seconds * 1000)
    if row is None or row.until_ms <= now_ms:
        return LockRow(unit.holder, next_fence(), now_ms, until)
    if row.holder != unit.holder:
        return lock_held(unit.name, row.until_ms)
    return replace(row, until_ms=until)


def renewed(row: LockRow | None, unit: Renew, now_ms: int) -> LockRow | LeaseLost:
    """Return the row of a renewed lock."""
    if row is None or not _is_held(row, unit, now_ms):
        return lock_lost(unit)
    return replace(row, until_ms=now_ms + round(unit.seconds * 1000))


def unlocked(row: LockRow | None, unit: Unlock, now_ms: int) -> LockRow | LeaseLost | None:
    """Return the row of a released lock that stays taken for a while; None if it is free now."""
    if row is None or not _is_held(row, unit, now_ms):
        return lock_lost(unit)
    until = row.acquired_ms + round(unit.at_least_seconds * 1000)
    return replace(row, holder="", until_ms=until) if until > now_ms else None


def lease_on(name: str, row: LockRow) -> Lease:
    """Return the lease on a lock."""
    return Lease(name, row.holder, row.fence, row.until_ms)


def _is_held(row: LockRow, unit: Renew | Unlock, now_ms: int) -> bool:
    return (row.holder, row.fence) == (unit.holder, unit.fence) and row.until_ms > now_ms
