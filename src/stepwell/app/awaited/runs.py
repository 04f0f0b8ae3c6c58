"""The handle of a run, and the stored definitions of workflows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from stepwell.duration import Span, timeout_seconds
from stepwell.errors import Problem, StepwellError
from stepwell.flow.definition.node import Definition
from stepwell.flow.function import Result_co
from stepwell.model.plain_data import Records
from stepwell.model.receipt import Receipt
from stepwell.model.receipt_chain import Verification
from stepwell.model.status import Status
from stepwell.model.trace import Trace, TraceLevel, trace_of
from stepwell.model.value import Value
from stepwell.name_hints import ATTRIBUTES, missing_attribute
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.definitions import DefinitionOperations, DefinitionSummary
from stepwell.runtime.progress import Progress, WaitingOn
from stepwell.runtime.run_operations import RunOperations
from stepwell.runtime.run_report import PictureFormat
from stepwell.runtime.step_history import StepRecord
from stepwell.state.data_store import DataStore

__all__ = ["AsyncDefinitions", "AsyncRun"]


class AsyncRun(Generic[Result_co]):
    """The handle of one execution of a workflow, as ``start`` and ``run`` return it.

    ``AsyncRun[str]`` is a run of a workflow that returns ``str``: ``start`` knows the type from the function.

    Every call raises ``NotFound`` if the execution does not exist.
    """

    def __init__(self, operations: RunOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver
        self.execution_id = operations.execution_id

    async def result(self, timeout: Span | None = None) -> Result_co:
        """Wait for the end of the execution, and return the workflow's result.

        The result of a workflow function of this process has the annotated type; any other is a plain value.

        - ``timeout``: how long to wait; None without a limit.

        Raise ``ExecutionFailed`` or ``ExecutionCancelled`` if the execution ended so, and ``TimeoutError`` if it did not end
        in time: it continues.
        """
        return await self._driver.run(self._do.result(timeout_seconds(timeout)))

    async def status(self) -> Status:
        """Return the status of the execution.

        ``PENDING``: no worker has it. ``RUNNING``: a worker has it. ``WAITING``: it is suspended. ``COMPLETED``, ``FAILED``
        and ``CANCELLED`` are final.
        """
        return await self._driver.run(self._do.status())

    async def signal(self, name: str, value: Value = None) -> None:
        """Send a signal, which is stored until the execution takes it with ``wait_signal``.

        - ``name``: the signal's name.
        - ``value``: what the wait returns.

        Raise ``ExecutionEnded`` if the execution has ended.
        """
        await self._driver.run(self._do.signal(name, value))

    async def cancel(self, *, scope: str | None = None) -> None:
        """Request the execution and its children to end, or cancel a scope of it.

        Their code gets ``ExecutionCancelled`` at its next call and may clean up.

        - ``scope``: the name of a scope of the definition, for all of its scopes that are open, or the id of one, such as
          ``left[2]``. Everything in it ends in one commit, and late results are discarded; the rest continues.

        Raise ``ExecutionEnded`` if the execution has ended, and ``NotFound`` if no such scope is open.

        Example:

            run.cancel(scope="left")
        """
        await self._driver.run(self._do.cancel(scope))

    async def cancel_step(self, step: str) -> None:
        """Cancel a step of the execution: now if it is under way, else when it begins.

        It is recorded as CANCELLED, and a late result of it is discarded. A declared workflow continues after it with null as
        its output; in a workflow function the call raises ``StepFailed`` with the kind ``StepCancelled``.

        - ``step``: the step's name as ``steps`` gives it, such as ``charge``, ``charge#2`` or ``resize[3]``. In a declared
          workflow it may also be a wait.

        Raise ``ExecutionEnded`` if the execution has ended, ``Conflict`` if the step has, and ``NotFound`` if its definition
        has no such step.
        """
        await self._driver.run(self._do.cancel_step(step))

    async def pause(self, reason: str = "", *, by: str = "") -> Receipt:
        """Let nothing new of the execution begin until ``resume``, and return the receipt of the commit that says so.

        Steps and children that are under way may end, and are recorded. Times go on: what became due, and signals that came, are
        taken after ``resume``. A queue item of the execution keeps its slot. ``cancel`` ends a paused execution at once, and
        ``waiting_on`` says who paused it and why. Pausing it again replaces the reason.

        - ``reason``: why, for people.
        - ``by``: who pauses it.

        Raise ``ExecutionEnded`` if the execution has ended, ``Conflict`` if it is being cancelled, and ``InvalidInput`` for one
        that runs on Temporal or is driven by hand.

        Example:

            run.pause("the bank is down", by="alice")
        """
        return await self._driver.run(self._do.pause(reason, by))

    async def resume(self) -> Receipt:
        """Let a paused execution go on, and return the receipt of the commit that says so.

        Raise ``Conflict`` if the execution is not paused, and ``ExecutionEnded`` if it has ended.
        """
        return await self._driver.run(self._do.resume())

    async def retry(self) -> None:
        """Continue a failed execution at the step or child that failed; completed steps are not run again.

        An execution that came from a queue item waits for a slot in the queue. Raise ``Conflict`` if the execution did not
        fail, was compensated, or if its item was redriven or dropped.
        """
        await self._driver.run(self._do.retry())

    async def obstacle(self) -> str | None:
        """Return why this process cannot run the execution and what to do about it, or None if it can.

        It lacks the workflow, has only an older version of it, or lacks a step.
        """
        return await self._driver.run(self._do.obstacle())

    async def progress(self) -> Progress:
        """Return how far the execution is, what it runs and waits for, and which answers it accepts."""
        return await self._driver.run(self._do.progress())

    async def waiting_on(self) -> WaitingOn | None:
        """Return what the execution waits for if it does not move, or None if it is under way or has ended.

        Its ``kind`` is ``signal``, ``approval``, ``timer``, ``child``, ``retry``, ``paused``, ``capacity``,
        ``worker_missing`` or ``store_away``.

        Example:

            held_up = await run.waiting_on()
            if held_up is not None and held_up.kind == "signal":
                await run.signal(held_up.name, True)
        """
        return await self._driver.run(self._do.waiting_on())

    async def draw(self, format: PictureFormat = "svg", *, links: str | None = None) -> str:
        """Return a picture of the execution: its definition with the progress in it, or the calls that its function has made.

        - ``format``: ``svg`` or ``mermaid``; or ``waterfall``, an SVG of when each step ran. Raise ``InvalidInput`` for another.
        - ``links``: for ``svg``, an address that each node leads to with its name added, such as ``/runs/order-7?step=``.
        """
        return await self._driver.run(self._do.draw(format, links))

    async def check(self) -> tuple[Problem, ...]:
        """Return every fault of the definition that the execution follows, or of the calls that its function made; () if none."""
        return await self._driver.run(self._do.check())

    async def state(self) -> DataStore:
        """Return the execution's trigger, step outputs, variables and loops, read-only.

        A step that failed has no output: see ``steps``.
        """
        return await self._driver.run(self._do.state())

    async def steps(self, at: int | None = None) -> list[StepRecord]:
        """Return every step of the execution with its status, attempts, errors and output, in the order in which they began.

        A step of a workflow function appears when its first attempt has ended.

        - ``at``: a revision, to see the steps as they were then. Raise ``NotFound`` if there is none.
        """
        return Records(await self._driver.run(self._do.steps(at)))

    async def receipts(self) -> list[Receipt]:
        """Return the receipts of all commits of the execution, in order."""
        return await self._driver.run(self._do.receipts())

    async def history(self) -> list[dict[str, Value]]:
        """Return the commits of the execution as plain data: dicts with ``revision``, ``at`` and ``mutations``."""
        receipts = await self.receipts()
        return [
            {"revision": each.revision, "at": each.committed_at.isoformat(), "mutations": list(each.mutations)} for each in receipts
        ]

    async def trace(self, level: TraceLevel = "full") -> Trace:
        """Return what the execution did, in order.

        - ``level``: ``full``; ``min`` without times and values, so that traces can be compared; or ``none``.
        """
        return trace_of(await self.receipts(), level)

    async def verify(self) -> Verification:
        """Verify the execution's whole chain of receipts, and return every problem that was found."""
        return await self._driver.run(self._do.verify())

    def __repr__(self) -> str:
        return f"<AsyncRun {self._do.title}>"

    def _repr_svg_(self) -> str | None:
        """Return the picture that a notebook shows, which cannot await; None if the store cannot be read, as of a closed well."""
        try:
            return self._driver.run_blocking(self._do.draw("svg"))
        except StepwellError:
            return None

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, ATTRIBUTES)


class AsyncDefinitions:
    """The definitions of declared workflows that are kept in a store: ``well.definitions``."""

    def __init__(self, operations: DefinitionOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def put(self, definition: Definition | str | Path) -> Definition:
        """Store a definition, and return it. Storing the same definition again changes nothing.

        - ``definition``: a ``Definition``, YAML or JSON text, or the path of a file.

        Raise ``InvalidDefinition`` for one with faults, ``AlreadyExists`` if its version is stored with another body, and
        ``NotFound`` if the file cannot be read.
        """
        return await self._driver.run(self._do.put(definition))

    async def get(self, name: str, version: int | None = None) -> Definition:
        """Return a stored definition: this version, or the newest.

        - ``name``: the name of the workflow.
        - ``version``: the version; None for the newest.

        Raise ``NotFound`` if there is none.
        """
        return await self._driver.run(self._do.get(name, version))

    async def list(self) -> list[DefinitionSummary]:
        """Return a summary of each stored workflow, by name."""
        return await self._driver.run(self._do.list())

    async def pause(self, name: str) -> None:
        """Let no version of a workflow be started; its executions continue.

        - ``name``: the name of the workflow.

        Raise ``NotFound`` if there is none.
        """
        await self._driver.run(self._do.pause(name))

    async def activate(self, name: str) -> None:
        """Let a workflow be started again; a newest version that is a draft becomes active.

        - ``name``: the name of the workflow.

        Raise ``NotFound`` if there is none.
        """
        await self._driver.run(self._do.activate(name))
