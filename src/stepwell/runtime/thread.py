"""A worker in a thread of its own, with its own event loop: how the blocking face runs executions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from stepwell.runtime.worker import Worker

__all__ = ["WorkerThread"]


class WorkerThread:
    """Runs a worker until it is stopped."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._ready = threading.Event()
        self._make = make
        self.worker: Worker | None = None
        self._thread = threading.Thread(target=self._run, name="stepwell-worker", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        self.worker = self._make()
        asyncio.get_running_loop().call_soon(self._ready.set)
        await self.worker.run()

    def stop(self) -> None:
        """Hand everything back and wait for the end of the thread."""
        if self.worker is not None:
            self.worker.stop()
        self._thread.join()
