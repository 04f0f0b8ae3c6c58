"""Hosts: run a well's operations and its worker; the one part that `Stepwell` and `AsyncStepwell` do not share.

`Host` blocks the calling thread and runs the worker in a thread of its own. `AsyncHost` awaits and runs the worker as a task of the
caller's event loop. Both have the same names, so that the rest of the blocking classes can be generated from the awaited ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from stepwell.app.composition import Parts
from stepwell.flow.function import on_registration, registered_names, registered_step_names
from stepwell.pipeline.operations import AsyncDriver, Driver
from stepwell.runtime.worker import Worker
from stepwell.runtime.worker_host import LoopFactory, WorkerThread

__all__ = ["AsyncHost", "Host"]


class Host:
    """Opens the store at once; the worker has a thread."""

    def __init__(
        self,
        parts: Parts,
        concurrency: int,
        lease_seconds: float,
        queues: tuple[str, ...],
        wants_worker: Callable[[], bool],
        loop_factory: LoopFactory | None = None,
    ) -> None:
        self._parts, self._wants_worker, self._loop_factory = parts, wants_worker, loop_factory
        self._make_worker = lambda: parts.worker_alone(concurrency, lease_seconds, queues)
        self._thread: WorkerThread | None = None
        self._starting_worker = threading.Lock()
        self.driver = Driver(parts.group)
        self.is_closed = False
        parts.open()
        self._end_watching = on_registration(self.start_worker)
        if registered_names() or registered_step_names():
            self.start_worker()

    @property
    def worker(self) -> Worker | None:
        """The worker, once it was started."""
        return None if self._thread is None else self._thread.worker

    def open(self) -> None:
        """Do nothing: the store is open since this object was made."""

    def start_worker(self) -> Worker | None:
        """Return the worker, which the first call starts; None if the well has none or is closed."""
        if self.is_closed or not self._wants_worker():
            return None
        with self._starting_worker:
            if self._thread is None:
                self._thread = WorkerThread(self._make_worker, self._loop_factory)
            return self._thread.worker

    def stop_worker(self, grace_seconds: float | None) -> None:
        """Make the worker claim no more and hand its executions back; return at once."""
        if self.worker is not None:
            self.worker.stop(grace_seconds)

    def close(self) -> None:
        """Stop the worker, wait for its end, and close the store."""
        self._end_watching()
        self.is_closed = True
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
        self._parts.close()


class AsyncHost:
    """Opens the store with ``open`` or the first operation; the worker is a task of the event loop."""

    def __init__(
        self,
        parts: Parts,
        concurrency: int,
        lease_seconds: float,
        queues: tuple[str, ...],
        wants_worker: Callable[[], bool],
    ) -> None:
        self._parts, self._wants_worker = parts, wants_worker
        self._make_worker = lambda: parts.worker(self.driver, concurrency, lease_seconds, queues)
        self._task: asyncio.Task[None] | None = None
        self._end_watching: Callable[[], None] = lambda: None
        self.driver = AsyncDriver(parts.group, parts.store, open_store=parts.open)
        self.is_closed = False
        self.worker: Worker | None = None

    async def open(self) -> None:
        """Open the store, and start the worker now if a workflow or step is registered, else at the first registration."""
        await self.driver.open()
        loop = asyncio.get_running_loop()

        def start_worker() -> None:
            with suppress(RuntimeError):  # the loop was closed, and the well was not
                loop.call_soon_threadsafe(self.start_worker)

        self._end_watching = on_registration(start_worker)
        if registered_names() or registered_step_names():
            self.start_worker()

    def start_worker(self) -> Worker | None:
        """Return the worker, which the first call starts; None if the well has none or is closed."""
        if self.is_closed or not self._wants_worker():
            return None
        if self.worker is None:
            self.worker = self._make_worker()
            self._task = asyncio.get_running_loop().create_task(self.worker.run())
        return self.worker

    def stop_worker(self, grace_seconds: float | None) -> None:
        """Make the worker claim no more and hand its executions back; return at once."""
        if self.worker is not None:
            self.worker.stop(grace_seconds)

    async def close(self) -> None:
        """Stop the worker, wait for its end, and close the store."""
        self._end_watching()
        self.is_closed = True
        if self.worker is not None and self._task is not None:
            if not self.worker.is_stopping:
                self.worker.stop()
            await self._task
            self.worker = None
        await self.driver.close(self._parts.close)
