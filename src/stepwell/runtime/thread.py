"""A worker in a thread of its own, with its own event loop: how the blocking face runs executions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from stepwell.runtime.worker import Worker

__all__ = ["LoopFactory", "WorkerThread"]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class WorkerThread:
    """Runs a worker until it is stopped."""

    def __init__(self, make: Callable[[], Worker], loop_factory: LoopFactory | None = None) -> None:
        self._ready = threading.Event()
        self._make, self._loop_factory = make, loop_factory
        self.worker: Worker | None = None
        self._thread = threading.Thread(target=self._run, name="stepwell-worker", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.run(self._work())
        except RuntimeError:
            # A program that ends without closing its well takes the loop's threads away under it; the leases end by themselves.
            if threading.main_thread().is_alive():
                raise

    async def _work(self) -> None:
        self.worker = self._make()
        asyncio.get_running_loop().call_soon(self._ready.set)
        await self.worker.run()

    def stop(self) -> None:
        """Hand everything back and wait for the end of the thread."""
        if self.worker is not None and not self.worker.is_stopping:
            self.worker.stop()
        self._thread.join()
