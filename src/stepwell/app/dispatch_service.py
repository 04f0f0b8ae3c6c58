"""Tasks of a store that need no workflow, in a thread: schedules, webhooks, items of dead workers, retention."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from stepwell.app.composition import Parts
from stepwell.app.sealing import sealing_of

if TYPE_CHECKING:
    from stepwell.runtime.periodic import PeriodicTask

__all__ = ["DispatchService"]


class DispatchService:
    """Serve a store without running workflows. It works from its creation until ``close``.

    - ``url``: the store, as for ``Stepwell``.
    - ``lease_seconds``: how often items of dead workers are looked for, as for a worker.
    """

    def __init__(self, url: str | None = None, *, lease_seconds: float = 30) -> None:
        self._parts = Parts(url, None, None, None, sealing_of(None, None, ()))
        self._parts.open()
        self._lease_seconds = lease_seconds
        self._tasks: list[PeriodicTask] = []
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="stepwell-dispatch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._work())

    async def _work(self) -> None:
        self._tasks = self._parts.tasks_without_workflows(self._lease_seconds)
        if self._is_closed:  # closed before this began
            return
        await asyncio.gather(*(each.run() for each in self._tasks))

    def drain(self, grace_seconds: float | None = None) -> None:  # noqa: ARG002 - nothing here takes long
        """Begin no further round, and return at once."""
        with suppress(RuntimeError):  # the loop has ended, and the tasks with it
            for each in self._tasks:
                self._loop.call_soon_threadsafe(each.stop)

    def close(self) -> None:
        """Finish the rounds under way, and close the store. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.drain()
            self._thread.join()
            self._parts.close()
