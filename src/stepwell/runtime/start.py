"""Starting an execution of a workflow: its input is checked, then its first commit makes it, and whoever has room runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from stepwell.clock import Clock
from stepwell.flow.program import Workflow
from stepwell.model.commit import Creation, Lease
from stepwell.model.draft import Planned
from stepwell.model.mutation import Create, SetStatus, SetTrigger
from stepwell.model.record import Metadata, encode_record, encode_trigger
from stepwell.model.status import Status
from stepwell.model.value import Value, decode
from stepwell.state.executions import Executions
from stepwell.state.operation import Operation

__all__ = ["Starting", "TakesOn"]


class TakesOn(Protocol):
    """A worker of this process, that may run a new execution at once."""

    holder: str

    @property
    def has_room(self) -> bool:
        """Whether it can run another one now."""
        ...

    @property
    def lease_seconds(self) -> float:
        """How long its leases last."""
        ...

    def take_on(self, lease: Lease) -> None:
        """Run it."""
        ...


class Starting:
    """Starts executions."""

    def __init__(self, executions: Executions, clock: Clock) -> None:
        self._executions, self._clock = executions, clock

    def start(
        self,
        workflow: Workflow[..., Any],
        value: Value,
        execution_id: str,
        workspace: str,
        *,
        parent_id: str | None = None,
        worker: TakesOn | None = None,
    ) -> Operation[None]:
        """Create an execution; a worker of this process with room gets it under a lease, else it is due for any."""
        data = workflow.encode_input(value)
        identity = Metadata(
            execution_id,
            workspace,
            workflow.name,
            workflow.version,
            self._clock.now(),
            parent_id=parent_id,
            is_child=parent_id is not None,
        )
        mine = worker if worker is not None and worker.has_room else None
        creation = Creation(
            workflow.name,
            workflow.version,
            parent_id,
            holder=None if mine is None else mine.holder,
            lease_seconds=0 if mine is None else mine.lease_seconds,
            is_runnable=True,
        )
        raw = msgspec.Raw
        batch: Sequence[Planned] = [
            Create(raw(encode_record(identity)), raw(b"{}")),
            SetTrigger(raw(encode_trigger(decode(data)))),
            *([SetStatus(Status.RUNNING)] if mine is not None else []),
        ]
        yield from self._executions.begin_history(identity, batch, creation)
        if mine is not None:
            mine.take_on(Lease(execution_id, mine.holder, 1, self._clock.now_ms() + round(mine.lease_seconds * 1000)))
