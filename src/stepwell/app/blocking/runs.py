# Generated from app/awaited/runs.py by `make blocking`. Do not edit: change that module and generate again.
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
from stepwell.pipeline.operations import Driver
from stepwell.runtime.definitions import DefinitionOperations, DefinitionSummary
from stepwell.runtime.progress import Progress
from stepwell.runtime.run_operations import RunOperations
from stepwell.runtime.run_report import PictureFormat
from stepwell.state.data_store import DataStore

__all__ = ["Definitions", "Run"]


class Run:
    """A run of a workflow."""

    def __init__(self, operations: RunOperations, driver: Driver) -> None:
        self._do, self._driver = operations, driver
        self.execution_id = operations.execution_id

    def result(self, timeout: Span | None = None) -> Any:
        """Wait for the end of the run; what it gave. ``ExecutionFailed`` or ``ExecutionCancelled`` say how else it ended."""
        return self._driver.run(self._do.result(timeout_seconds(timeout)))

    def status(self) -> Status:
        """Where the run stands."""
        return self._driver.run(self._do.status())

    def signal(self, name: str, value: Value = None) -> None:
        """Send a signal; it is kept until the run takes it."""
        self._driver.run(self._do.signal(name, value))

    def cancel(self) -> None:
        """Ask the run to end. Its code learns of it at its next call and can clean up."""
        self._driver.run(self._do.cancel())

    def retry(self) -> None:
        """Run it again after it failed, from the step that failed: what was recorded before is kept. If it came from a queue item,
        that is QUEUED again, and the run goes on when it has its turn; ``Conflict`` if the item was driven again or dropped."""
        self._driver.run(self._do.retry())

    def obstacle(self) -> str | None:
        """Why this process does not run it, and what to do: it has no such workflow, or an older version; None if it can."""
        return self._driver.run(self._do.obstacle())

    def progress(self) -> Progress:
        """How far the run is, what it does and waits for, and what may be answered."""
        return self._driver.run(self._do.progress())

    def draw(self, format: PictureFormat = "svg") -> str:
        """A picture of the run, as SVG or as Mermaid text: its definition with the progress in it, or a function's calls."""
        return self._driver.run(self._do.draw(format))

    def check(self) -> tuple[Problem, ...]:
        """Every fault of the definition that the run follows, or of the calls that a function has made; none: it is sound."""
        return self._driver.run(self._do.check())

    def state(self) -> DataStore:
        """The run's trigger, steps, variables and loops, read-only."""
        return self._driver.run(self._do.state())

    def receipts(self) -> list[Receipt]:
        """The receipts of all commits of the run."""
        return self._driver.run(self._do.receipts())

    def history(self) -> list[dict[str, Value]]:
        """What the run did, commit by commit, as plain data."""
        receipts = self.receipts()
        return [
            {"revision": each.revision, "at": each.committed_at.isoformat(), "mutations": list(each.mutations)} for each in receipts
        ]

    def trace(self, level: TraceLevel = "full") -> Trace:
        """What the run did, in order: ``full``, or ``min`` without times and values, so that runs can be compared."""
        return trace_of(self.receipts(), level)

    def verify(self) -> Verification:
        """Walk the run's receipt chain."""
        return self._driver.run(self._do.verify())

    def __repr__(self) -> str:
        return f"<Run {self._do.title}>"


class Definitions:
    """The definitions in a store."""

    def __init__(self, operations: DefinitionOperations, driver: Driver) -> None:
        self._do, self._driver = operations, driver

    def put(self, definition: Definition | str | Path) -> Definition:
        """Store a definition, given as such, as YAML or JSON text, or as the path of a file. The same again changes nothing;
        ``AlreadyExists`` if its version is stored with another body."""
        return self._driver.run(self._do.put(definition))

    def get(self, name: str, version: int | None = None) -> Definition:
        """A stored definition; without a version, the newest."""
        return self._driver.run(self._do.get(name, version))

    def list(self) -> list[DefinitionSummary]:
        """All stored workflows, by name."""
        return self._driver.run(self._do.list())

    def pause(self, name: str) -> None:
        """Let no version of a workflow be started; runs that have begun go on."""
        self._driver.run(self._do.pause(name))

    def activate(self, name: str) -> None:
        """Let a workflow be started; its newest version becomes active, if it was a draft."""
        self._driver.run(self._do.activate(name))
