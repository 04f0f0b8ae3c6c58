"""The handle of a run, and the stored definitions of workflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.duration import Span, timeout_seconds
from stepwell.errors import Problem
from stepwell.flow.definition.node import Definition
from stepwell.model.receipt import Receipt
from stepwell.model.receipt_chain import Verification
from stepwell.model.status import Status
from stepwell.model.trace import Trace, TraceLevel, trace_of
from stepwell.model.value import Value
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.definitions import DefinitionOperations, DefinitionSummary
from stepwell.runtime.progress import Progress
from stepwell.runtime.run_operations import RunOperations
from stepwell.runtime.run_report import PictureFormat
from stepwell.state.data_store import DataStore

__all__ = ["AsyncDefinitions", "AsyncRun"]


class AsyncRun:
    """A run of a workflow."""

    def __init__(self, operations: RunOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver
        self.execution_id = operations.execution_id

    async def result(self, timeout: Span | None = None) -> Any:
        """Wait for the end of the run; what it gave. ``ExecutionFailed`` or ``ExecutionCancelled`` say how else it ended."""
        return await self._driver.run(self._do.result(timeout_seconds(timeout)))

    async def status(self) -> Status:
        """Where the run stands."""
        return await self._driver.run(self._do.status())

    async def signal(self, name: str, value: Value = None) -> None:
        """Send a signal; it is kept until the run takes it."""
        await self._driver.run(self._do.signal(name, value))

    async def cancel(self) -> None:
        """Ask the run to end. Its code learns of it at its next call and can clean up."""
        await self._driver.run(self._do.cancel())

    async def retry(self) -> None:
        """Run it again after it failed, from the step that failed: what was recorded before is kept. If it came from a queue item,
        that is QUEUED again, and the run goes on when it has its turn; ``Conflict`` if the item was driven again or dropped."""
        await self._driver.run(self._do.retry())

    async def obstacle(self) -> str | None:
        """Why this process does not run it, and what to do: it has no such workflow, or an older version; None if it can."""
        return await self._driver.run(self._do.obstacle())

    async def progress(self) -> Progress:
        """How far the run is, what it does and waits for, and what may be answered."""
        return await self._driver.run(self._do.progress())

    async def draw(self, format: PictureFormat = "svg") -> str:
        """A picture of the run, as SVG or as Mermaid text: its definition with the progress in it, or a function's calls."""
        return await self._driver.run(self._do.draw(format))

    async def check(self) -> tuple[Problem, ...]:
        """Every fault of the definition that the run follows, or of the calls that a function has made; none: it is sound."""
        return await self._driver.run(self._do.check())

    async def state(self) -> DataStore:
        """The run's trigger, steps, variables and loops, read-only."""
        return await self._driver.run(self._do.state())

    async def receipts(self) -> list[Receipt]:
        """The receipts of all commits of the run."""
        return await self._driver.run(self._do.receipts())

    async def history(self) -> list[dict[str, Value]]:
        """What the run did, commit by commit, as plain data."""
        receipts = await self.receipts()
        return [
            {"revision": each.revision, "at": each.committed_at.isoformat(), "mutations": list(each.mutations)} for each in receipts
        ]

    async def trace(self, level: TraceLevel = "full") -> Trace:
        """What the run did, in order: ``full``, or ``min`` without times and values, so that runs can be compared."""
        return trace_of(await self.receipts(), level)

    async def verify(self) -> Verification:
        """Walk the run's receipt chain."""
        return await self._driver.run(self._do.verify())

    def __repr__(self) -> str:
        return f"<AsyncRun {self._do.title}>"


class AsyncDefinitions:
    """The definitions in a store."""

    def __init__(self, operations: DefinitionOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def put(self, definition: Definition | str | Path) -> Definition:
        """Store a definition, given as such, as YAML or JSON text, or as the path of a file. The same again changes nothing;
        ``AlreadyExists`` if its version is stored with another body."""
        return await self._driver.run(self._do.put(definition))

    async def get(self, name: str, version: int | None = None) -> Definition:
        """A stored definition; without a version, the newest."""
        return await self._driver.run(self._do.get(name, version))

    async def list(self) -> list[DefinitionSummary]:
        """All stored workflows, by name."""
        return await self._driver.run(self._do.list())

    async def pause(self, name: str) -> None:
        """Let no version of a workflow be started; runs that have begun go on."""
        await self._driver.run(self._do.pause(name))

    async def activate(self, name: str) -> None:
        """Let a workflow be started; its newest version becomes active, if it was a draft."""
        await self._driver.run(self._do.activate(name))
