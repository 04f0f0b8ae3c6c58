"""The queue's upkeep: items of dead dispatchers go back, old ended ones go away, and word of who is there is kept fresh."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from stepwell.contract.engine import Engine
from stepwell.contract.store import Store
from stepwell.errors import LockHeld, StepwellError
from stepwell.model.lock import scheduled_lock
from stepwell.queue.operations import QueueOperations
from stepwell.queue.presence import BEAT_SECONDS, absence, presence
from stepwell.state.locks import LockOperations, schedule_request
from stepwell.state.operation import AsyncDriver, Operation, read, write

__all__ = ["Upkeep", "recover_alone"]

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
_LOCK = "queue-recovery"
_AT_MOST_SECONDS, _AT_LEAST_SECONDS = 240.0, 10.0


def recover_alone(queue: QueueOperations, locks: LockOperations) -> Operation[list[str] | None]:
    """Sweep once, unless another process is at it or just was: then None."""
    request = schedule_request(scheduled_lock(_LOCK), _LOCK, _AT_MOST_SECONDS, _AT_LEAST_SECONDS)
    try:
        held = yield from locks.acquire(request)
    except LockHeld:
        return None
    try:
        return (yield from queue.recover())
    finally:
        yield from locks.release(held, _AT_LEAST_SECONDS)


class Upkeep:
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
    ) -> None:
        self._queue, self._locks, self._store, self._engine, self._driver = queue, locks, store, engine, driver
        self._name, self._queues, self._concurrency = name, queues, concurrency
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped. What cannot be done now is done next time."""
        beats = round(SWEEP_SECONDS / BEAT_SECONDS)
        number = 0
        while not self._stopping.is_set():
            await self._try("word of this worker could not be left", self._appear())
            if number % beats == 0:
                await self._try("the queue could not be swept", recover_alone(self._queue, self._locks))
            number += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._stopping.wait()
        await self._try("word of this worker could not be taken back", write(absence(self._name)))

    def stop(self) -> None:
        """Work no more."""
        self._stopping.set()

    def _appear(self) -> Operation[None]:
        now = yield from read(self._store.now_ms)
        names = self._engine.workflows()
        yield from write(presence(self._name, self._engine.name, names, self._queues, self._concurrency, now))

    async def _try(self, what: str, operation: Operation[object]) -> None:
        try:
            await self._driver.run(operation)
        except StepwellError as error:
            log.warning("%s: %s", what, error)
