"""Locks in memory: who holds which, until when, with which fence."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.clock import Clock
from stepwell.errors import LeaseLost, LockHeld
from stepwell.model.commit import Acquire, Lease, LockGuard, Outcome, Renew, Unlock, Written
from stepwell.stores.memory.undo import Undo

__all__ = ["Locks"]

replace = msgspec.structs.replace


class _Lock(msgspec.Struct, frozen=True):
    lease: Lease
    acquired_ms: int


class Locks:
    """All locks of a store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, _Lock] = {}
        self.fences = 0

    def broken(self, guards: Sequence[LockGuard]) -> LeaseLost | None:
        for guard in guards:
            lock = self._held.get(guard.name)
            if lock is None or lock.lease.fence != guard.fence:
                return LeaseLost(f"lock {guard.name!r} was lost; nothing was written", fence=guard.fence)
        return None

    def acquire(self, unit: Acquire, undo: Undo) -> Outcome:
        now, lock = self._clock.now_ms(), self._held.get(unit.name)
        is_held = lock is not None and lock.lease.until_ms > now
        if lock is not None and is_held and lock.lease.holder != unit.holder:
            return LockHeld(f"lock {unit.name!r} is held by another", until_ms=lock.lease.until_ms)
        if lock is None or not is_held:
            undo.set(self, "fences", self.fences + 1)
            lock = _Lock(Lease(unit.name, unit.holder, self.fences, 0), now)
        lease = replace(lock.lease, until_ms=now + round(unit.seconds * 1000))
        undo.put(self._held, unit.name, _Lock(lease, lock.acquired_ms))
        return Written([lease])

    def keep(self, unit: Renew | Unlock, undo: Undo) -> Outcome:
        now, lock = self._clock.now_ms(), self._held.get(unit.name)
        if lock is None or (lock.lease.holder, lock.lease.fence) != (unit.holder, unit.fence) or lock.lease.until_ms <= now:
            return LeaseLost(f"lock {unit.name!r} expired or was taken by another", fence=unit.fence)
        if isinstance(unit, Renew):
            lease = replace(lock.lease, until_ms=now + round(unit.seconds * 1000))
            undo.put(self._held, unit.name, _Lock(lease, lock.acquired_ms))
            return Written([lease])
        until = lock.acquired_ms + round(unit.at_least_seconds * 1000)
        if until > now:
            undo.put(self._held, unit.name, _Lock(replace(lock.lease, holder="", until_ms=until), lock.acquired_ms))
        else:
            undo.drop(self._held, unit.name)
        return Written()

    def drop_expired(self, oldest_ms: int, limit: int, undo: Undo) -> None:
        """Forget locks that ended before a time."""
        for name in [name for name, lock in self._held.items() if lock.lease.until_ms <= oldest_ms][:limit]:
            undo.drop(self._held, name)
