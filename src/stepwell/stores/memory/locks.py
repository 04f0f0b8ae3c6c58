"""Locks in memory: who holds which, until when, with which fence."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.clock import Clock
from stepwell.errors import LeaseLost, StepwellError
from stepwell.model.commit import Acquire, LockGuard, Outcome, Renew, Unlock, Written
from stepwell.model.lock import LockRow, acquired, broken, lease_on, renewed, unlocked
from stepwell.stores.memory.undo import UndoLog

__all__ = ["MemoryLocks"]


class MemoryLocks:
    """All locks of a store. Called under the store's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[str, LockRow] = {}
        self.fences = 0

    def broken(self, guards: Sequence[LockGuard]) -> LeaseLost | None:
        """The first lock that a writer believes it holds and has lost."""
        return broken(guards, self._held.get)

    def write(self, unit: Acquire | Renew | Unlock, undo: UndoLog) -> Outcome:
        """Write one unit, or say why not."""
        match unit:
            case Acquire():
                return self._acquire(unit, undo)
            case Renew():
                return self._renew(unit, undo)
            case Unlock():
                return self._unlock(unit, undo)

    def _acquire(self, unit: Acquire, undo: UndoLog) -> Outcome:
        def next_fence() -> int:
            undo.set(self, "fences", self.fences + 1)
            return self.fences

        return self._put(unit.name, acquired(self._held.get(unit.name), unit, self._clock.now_ms(), next_fence), undo)

    def _renew(self, unit: Renew, undo: UndoLog) -> Outcome:
        return self._put(unit.name, renewed(self._held.get(unit.name), unit, self._clock.now_ms()), undo)

    def _unlock(self, unit: Unlock, undo: UndoLog) -> Outcome:
        row = unlocked(self._held.get(unit.name), unit, self._clock.now_ms())
        if isinstance(row, StepwellError):
            return row
        if row is None:
            undo.drop(self._held, unit.name)
        else:
            undo.put(self._held, unit.name, row)
        return Written()

    def drop_expired(self, oldest_ms: int, limit: int, undo: UndoLog) -> None:
        """Forget locks that ended before a time."""
        for name in [name for name, row in self._held.items() if row.until_ms <= oldest_ms][:limit]:
            undo.drop(self._held, name)

    def _put(self, name: str, row: LockRow | StepwellError, undo: UndoLog) -> Outcome:
        if isinstance(row, StepwellError):
            return row
        undo.put(self._held, name, row)
        return Written([lease_on(name, row)])
