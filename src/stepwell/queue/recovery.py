"""Recovery of the queue: return items whose claim has expired."""

from __future__ import annotations

from stepwell.errors import LockHeld
from stepwell.model.lock import scheduled_lock
from stepwell.pipeline.operations import AsyncDriver, Operation
from stepwell.queue.operations import QueueOperations
from stepwell.runtime.periodic import PeriodicTask
from stepwell.state.locks import LockOperations, schedule_request

__all__ = ["QueueRecovery", "recover_alone"]

SWEEP_SECONDS = 60.0
"""The longest time between two sweeps. With shorter claims sweeps come as often as claims expire, since expired claims wait
for a sweep."""

_LOCK = "queue-recovery"
_AT_MOST_SECONDS, _AT_LEAST_SECONDS = 240.0, 10.0


def recover_alone(queue: QueueOperations, locks: LockOperations, claim_seconds: float = 30.0) -> Operation[list[str] | None]:
    """Sweep once; return None if another process is sweeping or has just done so."""
    # In proportion to the claims: a process that dies in a sweep delays the next sweep for as long.
    most, least = min(_AT_MOST_SECONDS, 3 * claim_seconds), min(_AT_LEAST_SECONDS, claim_seconds)
    try:
        held = yield from locks.acquire(schedule_request(scheduled_lock(_LOCK), _LOCK, most, least))
    except LockHeld:
        return None
    try:
        # No longer than the lock is held: a worker stops only when its sweep is over.
        return (yield from queue.recover(least))
    finally:
        yield from locks.release(held, least)


class QueueRecovery(PeriodicTask):
    """Recover the queue on a worker's event loop. One worker of a store does it at a time."""

    name = "the recovery of the queue"

    def __init__(self, queue: QueueOperations, locks: LockOperations, driver: AsyncDriver, claim_seconds: float) -> None:
        super().__init__()
        self._queue, self._locks, self._driver, self._claim_seconds = queue, locks, driver, claim_seconds

    async def work(self) -> float:
        """Sweep, unless another process does or just did; return the seconds until the next sweep."""
        await self._driver.run(recover_alone(self._queue, self._locks, self._claim_seconds))
        return min(SWEEP_SECONDS, self._claim_seconds)
