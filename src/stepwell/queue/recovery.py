"""The queue's upkeep: items of dead dispatchers go back, old ended ones go away, and word of who is there is kept fresh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from math import inf
from time import monotonic

from stepwell.clock import from_ms
from stepwell.contract.engine import Engine
from stepwell.contract.store import Store
from stepwell.errors import LockHeld, StepwellError
from stepwell.flow.function import registered_versions
from stepwell.model.lock import scheduled_lock
from stepwell.pipeline.operations import AsyncDriver, Operation, read, write
from stepwell.queue.operations import QueueOperations
from stepwell.queue.worker_presence import BEAT_SECONDS, WorkerPresence, absence, presence
from stepwell.state.locks import LockOperations, schedule_request

__all__ = ["QueueRecovery", "recover_alone"]

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
"""The longest time between two sweeps; where claims are shorter, so is this, since what they leave waits for a sweep."""

_LOCK = "queue-recovery"
_AT_MOST_SECONDS, _AT_LEAST_SECONDS = 240.0, 10.0


def recover_alone(queue: QueueOperations, locks: LockOperations, claim_seconds: float = 30.0) -> Operation[list[str] | None]:
    """Sweep once, unless another process is at it or just was: then None."""
    # In proportion to the claims: who dies in a sweep holds up the next one for so long.
    most, least = min(_AT_MOST_SECONDS, 3 * claim_seconds), min(_AT_LEAST_SECONDS, claim_seconds)
    try:
        held = yield from locks.acquire(schedule_request(scheduled_lock(_LOCK), _LOCK, most, least))
    except LockHeld:
        return None
    try:
        # No longer than the lock is kept anyhow: a worker that sweeps leaves no word of itself, and stops only behind it.
        return (yield from queue.recover(least))
    finally:
        yield from locks.release(held, least)


class QueueRecovery:
    """Looks after the queue beside a worker, on its loop."""

    def __init__(
        self,
        *,
        queue: QueueOperations,
        locks: LockOperations,
        store: Store,
        engine: Engine,
        driver: AsyncDriver,
        name: str,
        queues: tuple[str, ...],
        concurrency: int,
        claim_seconds: float,
    ) -> None:
        self._queue, self._locks, self._store, self._engine, self._driver = queue, locks, store, engine, driver
        self._name, self._queues, self._concurrency = name, queues, concurrency
        self._claim_seconds, self._sweep_seconds = claim_seconds, min(SWEEP_SECONDS, claim_seconds)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped. What cannot be done now is done next time."""
        swept = seen = -inf
        while not self._stopping.is_set():
            if monotonic() >= seen + BEAT_SECONDS:
                seen = monotonic()
                await self._try("word of this worker could not be left", self._appear())
            if monotonic() >= swept + self._sweep_seconds:
                swept = monotonic()
                await self._try("the queue could not be swept", self._sweep())
            left = min(seen + BEAT_SECONDS, swept + self._sweep_seconds) - monotonic()
            with suppress(TimeoutError):
                # A timer may come a hair before its time, and a wait for that hair would come to no end.
                async with asyncio.timeout(max(left, 0.001)):
                    await self._stopping.wait()
        await self._try("word of this worker could not be taken back", self._leave())

    def stop(self) -> None:
        """Work no more."""
        self._stopping.set()

    async def _appear(self) -> None:
        names = await self._engine.workflows()
        now = await self._driver.run(read(self._store.now_ms))
        versions = {name: version for name, version in registered_versions().items() if name in names}
        word = WorkerPresence(self._name, self._engine.name, names, self._queues, self._concurrency, from_ms(now), versions)
        await self._driver.run(write(presence(word)))

    async def _sweep(self) -> None:
        await self._driver.run(recover_alone(self._queue, self._locks, self._claim_seconds))

    async def _leave(self) -> None:
        await self._driver.run(write(absence(self._name)))

    async def _try(self, what: str, work: Awaitable[object]) -> None:
        try:
            await work
        except StepwellError as error:
            log.warning("%s: %s", what, error)
        except Exception:
            # A worker whose queue nobody looks after any more would not be noticed for long.
            log.exception("%s, for a reason that was not expected", what)
