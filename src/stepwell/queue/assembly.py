"""How the queue is put together on one store: its operations, and what serves it beside a worker."""

from __future__ import annotations

from typing import Any, cast

from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.errors import InvalidInput
from stepwell.model.ids import NewId, check_key
from stepwell.pipeline.notifications import Notifications
from stepwell.pipeline.operations import AsyncDriver, Operation, read
from stepwell.queue.diagnosis import idleness
from stepwell.queue.dispatcher import Dispatcher
from stepwell.queue.local_engine import LocalEngine
from stepwell.queue.operations import QueueOperations
from stepwell.queue.recovery import QueueRecovery
from stepwell.queue.scheduler import ScheduleOperations, Scheduler
from stepwell.queue.worker_presence import Heartbeat
from stepwell.queue.workspaces import WorkspaceOperations
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.worker import Worker
from stepwell.state.executions import Executions
from stepwell.state.locks import LockOperations

__all__ = ["QueueParts", "check_queues"]


class QueueParts:
    """The queue of one store."""

    def __init__(
        self,
        *,
        store: Store,
        executions: Executions,
        definitions: DefinitionOperations,
        pulse: Notifications,
        clock: Clock,
        locks: LockOperations,
        new_id: NewId,
    ) -> None:
        self._store, self._executions, self._pulse = store, executions, pulse
        self._clock, self._locks, self._new_id = clock, locks, new_id
        self.items = QueueOperations(store, executions, pulse, new_id, definitions)
        self.workspaces = WorkspaceOperations(store)
        self.schedules = ScheduleOperations(store, self.items, new_id, pulse)
        self._dispatcher: Dispatcher | None = None

    def attach(self, worker: Worker, driver: AsyncDriver, concurrency: int, queues: tuple[str, ...]) -> None:
        """Have a worker serve the queue, too. On the worker's loop."""
        if not hasattr(self._store, "lanes"):
            return
        engine = LocalEngine(worker, self._store, self._executions, driver, self._clock, self._new_id)
        dispatcher = Dispatcher(
            engine=engine,
            store=self._store,
            driver=driver,
            pulse=self._pulse,
            clock=self._clock,
            holder=worker.holder,
            lease_seconds=worker.lease_seconds,
            queues=queues,
            patience=worker.services.hand_back_retry,
        )
        self._dispatcher = dispatcher
        worker.companions += [
            dispatcher,
            Scheduler(self.schedules, driver, self._pulse),
            Heartbeat(worker.holder, engine, self._store, driver, queues, concurrency),
            QueueRecovery(self.items, self._locks, driver, worker.lease_seconds),
        ]

    def health(self) -> Operation[str | None]:
        """``ok``, or what is wrong with how this process serves the queue; None if it does not."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            return None
        return (yield from read(lambda: idleness(self._store, dispatcher, self._clock.now_ms())))


def check_queues(queues: object) -> tuple[str, ...]:
    """The names of the queues that a process serves; none: all."""
    if isinstance(queues, str):
        raise InvalidInput(f"queues is a list of names; write queues=[{queues!r}]")
    try:
        names = tuple(cast("Any", queues) or ())
    except TypeError:
        raise InvalidInput(f"queues is a list of names, not {queues!r}") from None
    return tuple(check_key(name, "a queue's name") for name in names)
