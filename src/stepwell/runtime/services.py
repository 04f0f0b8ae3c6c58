"""What a session needs of the worker that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

from stepwell.clock import Clock
from stepwell.flow.function import Workflow
from stepwell.flow.language.template import StateKey
from stepwell.model.limits import Limits
from stepwell.model.record import Metadata
from stepwell.model.value import Value
from stepwell.runtime.inbox import Letter
from stepwell.runtime.shutdown import HandBackRetry
from stepwell.runtime.start import Seed
from stepwell.runtime.steps.process_pool import ProcessPool
from stepwell.runtime.steps.scoped_state import StateReading

__all__ = ["DeclaredSurroundings", "WorkerServices"]


class WorkerServices(Protocol):
    """What a session needs of its worker."""

    clock: Clock
    limits: Limits
    threads: Executor
    code_threads: Executor
    reading: StateReading
    patience: HandBackRetry

    @property
    def processes(self) -> ProcessPool:
        """Processes for steps that ask for one."""
        ...

    def new_id(self) -> str:
        """A fresh id."""
        ...

    async def letters(self, execution_id: str, workspace_id: str) -> list[Letter]:
        """The messages in an execution's inbox."""
        ...

    async def start_child(
        self, workflow: Workflow[..., Any], value: Value, child_id: str, parent: Metadata, seed: Seed | None = None
    ) -> Value:
        """Start an execution for another one, unless it was started before: then what it told, if it has ended, else None.
        ``AlreadyExists`` if the id is that of an execution which is no child of this parent."""
        ...


class DeclaredSurroundings(WorkerServices, Protocol):
    """What the session of a declared workflow needs beyond that."""

    async def find_workflow(self, name: str, version: int | None) -> Workflow[..., Any]:
        """The workflow that a subworkflow names: a function of this process, or a stored definition that is active."""
        ...

    async def read_state(self, keys: Sequence[StateKey], identity: Metadata) -> Value:
        """Scoped state as templates see it: by scope, for some scopes by name, and by key."""
        ...
