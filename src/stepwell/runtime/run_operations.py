"""Operations on one run: result, status, signals, progress, pictures and retry; and why this process cannot run it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from stepwell.clock import from_ms
from stepwell.errors import (
    Conflict,
    ExecutionCancelled,
    ExecutionEnded,
    ExecutionFailed,
    InvalidInput,
    NotFound,
    Problem,
    StepwellError,
    StoreUnavailable,
)
from stepwell.flow.function import Workflow, registered, registered_names, registered_step, registered_versions
from stepwell.kernel.nodes.scopes import CANCELLABLE
from stepwell.kernel.plan import Plan
from stepwell.kernel.token import ROOT
from stepwell.model.commit import Head
from stepwell.model.execution_state import ExecutionState
from stepwell.model.external_engines import TEMPORAL
from stepwell.model.ids import NewId, check_key
from stepwell.model.receipt import Receipt
from stepwell.model.receipt_chain import Verification
from stepwell.model.record import not_undone
from stepwell.model.retention import check_has_payloads, removal_of
from stepwell.model.status import FINAL, Status
from stepwell.model.value import Value, canonical, decode, recode
from stepwell.pipeline.completions import Completion
from stepwell.pipeline.notifications import Notifications
from stepwell.pipeline.operations import Operation, write_or_raise
from stepwell.runtime.cancellation import cancellation_of, is_cancelling
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.inbox import CANCEL, CANCEL_SCOPE, CANCEL_STEP, SIGNAL, delivery, fresh_key, messages, path_of, pause_in
from stepwell.runtime.progress import HeldBy, Progress, WaitingOn, away, paused, progress_of, waiting_on
from stepwell.runtime.run_end import run_end
from stepwell.runtime.run_pause import RunPause
from stepwell.runtime.run_report import (
    PictureFormat,
    check_format,
    picture_of_calls,
    picture_of_plan,
    problems_of_calls,
    problems_of_plan,
    waterfall_of,
)
from stepwell.runtime.run_retry import RunRetry
from stepwell.runtime.step_history import StepRecord, steps_of
from stepwell.runtime.steps.late_results import late_results
from stepwell.runtime.steps.late_results import path_of as late_results_path
from stepwell.state.data_store import DataStore
from stepwell.state.executions import Executions, is_driven_by_engine

__all__ = [
    "RunOperations",
    "missing_steps",
    "obstacle_of",
]


def obstacle_of(head: Head) -> str | None:
    """Return why no worker of this process takes an execution, and what to do; None if one does, or the execution has ended."""
    if head.status in FINAL:
        return None
    newest = registered_versions().get(head.workflow_id)
    if newest is None:
        return f"this process has no workflow {head.workflow_id!r}; import the module that defines it"
    if head.version > newest:
        return (
            f"it was started by version {head.version} of workflow {head.workflow_id!r}, and this process has version {newest}; "
            "it waits for a worker with the newer code"
        )
    return None


def missing_steps(state: ExecutionState) -> str | None:
    """Return which steps an execution of a definition waits for that this process lacks; None if it has all."""
    values = [cast("dict[str, Any]", token.value) for token in state.tokens.values() if isinstance(token.value, dict)]
    asked: set[str] = {value["missing"] for value in values if "missing" in value}
    names = sorted(name for name in asked if registered_step(name) is None)
    if not names:
        return None
    return f"it waits for a worker that has step {', '.join(map(repr, names))}; import the module that defines it"


class RunOperations:
    """Operations on one execution of a workflow."""

    def __init__(
        self,
        executions: Executions,
        notifications: Notifications,
        new_id: NewId,
        execution_id: str,
        workflow: Workflow[..., Any] | None,
        definitions: DefinitionOperations | None = None,
    ) -> None:
        self._executions, self._notifications, self._new_id, self._definitions = executions, notifications, new_id, definitions
        self.execution_id, self._workflow = execution_id, workflow

    def result(self, timeout: float | None, given: float | None = None) -> Operation[Any]:
        """Wait for the end of the execution; return its result, or raise how else it ended.

        Args:
            given: the timeout that the caller gave, if a part of it was spent before.
        """
        try:
            ending = yield from run_end(self._executions, self._notifications, self.execution_id, timeout)
        except (KeyboardInterrupt, asyncio.CancelledError) as interrupt:
            if isinstance(interrupt, KeyboardInterrupt) or _is_interrupted():  # Ctrl-C in a script
                interrupt.add_note((yield from self._interrupted()))
            raise
        if isinstance(ending, Completion):
            return (yield from self.outcome(ending))
        hint = yield from self._hint()
        waited = timeout if given is None else given
        raise TimeoutError(f"execution {self.execution_id!r} is still {ending} after timeout={waited:g} s; {hint}")

    def _hint(self) -> Operation[str]:
        """Return why the execution has not ended in time, as far as its record can be read."""
        try:
            on = (yield from self.progress()).waiting_on
            is_held = on is not None and on.kind == "paused"
            obstacle = on.message if on is not None and is_held else (yield from self.obstacle())
        except StepwellError as error:
            return f"what it waits for cannot be read: {error}"
        return "it goes on, ask again later" if obstacle is None else obstacle

    def _interrupted(self) -> Operation[str]:
        """Return what an interrupted caller waited for, and how to go on."""
        kept = f"it is kept, and continues when a worker runs; follow it with: stepwell watch {self.execution_id}"
        try:
            progress = yield from self.progress()
        except StepwellError:
            return f"execution {self.execution_id!r} was waited for; {kept}"
        doing = f", at {', '.join(progress.current[:3])}" if progress.current else ""
        on = "" if progress.waiting_on is None else f": {progress.waiting_on.message}"
        return f"execution {self.execution_id!r} is {progress.status}{doing}{on}; {kept}"

    def outcome(self, ending: Completion) -> Operation[Any]:
        """Return the result of an ended execution, or raise how else it ended."""
        if removal_of(ending.result) is not None:
            check_has_payloads((yield from self._executions.newest(self.execution_id)).state)
        result: dict[str, Any] = (None if ending.result is None else decode(ending.result)) or {}
        if ending.status is Status.COMPLETED and "output" in result:
            workflow = yield from self._known()
            return result["output"] if workflow is None else workflow.decode(recode(result["output"]))
        left = not_undone(result)
        error: dict[str, Any] = result.get("error", {})
        if ending.status is Status.CANCELLED:
            raise ExecutionCancelled(f"execution {self.execution_id!r} was cancelled{_reason(error)}{left}")
        failure = ExecutionFailed(f"execution {self.execution_id!r} failed: {error.get('kind')}: {error.get('message')}{left}")
        if error.get("traceback"):
            failure.add_note(error["traceback"])
        raise failure

    def _known(self) -> Operation[Workflow[..., Any] | None]:
        """Return the workflow if it is a function of this process: its annotation gives the type of the result."""
        if self._workflow is not None:
            return self._workflow
        name = (yield from self._executions.head(self.execution_id)).workflow_id
        return registered(name) if name in registered_names() else None

    @property
    def title(self) -> str:
        """Return the id of the execution, with its workflow if that is known."""
        return f"{self.execution_id!r}" if self._workflow is None else f"{self.execution_id!r} of {self._workflow.name!r}"

    def status(self) -> Operation[Status]:
        """Return the status of the execution."""
        head = yield from self._executions.head(self.execution_id)
        return Status(head.status)

    def signal(self, name: str, value: Value) -> Operation[None]:
        """Send a signal, which is stored until the execution takes it."""
        check_key(name, "a signal's name")
        yield from self._deliver(SIGNAL, name, value)

    def cancel(self, scope: str | None = None) -> Operation[None]:
        """Request the execution to end, or cancel open scopes of it: those of a node, or the one with this id."""
        if scope is None:
            yield from self._deliver(CANCEL, "", None)
            return
        check_key(scope, "a scope's name")
        state = yield from self._executions.load(self.execution_id)
        self._check_running(state, "scopes")
        opened = [name for name in state.scopes if name != "root"]
        if not any(scope in (name, name.partition("[")[0]) for name in opened):
            known = f"open are {', '.join(map(repr, sorted(opened)))}" if opened else "none is open now"
            raise NotFound(f"execution {self.execution_id!r} has no open scope {scope!r}; {known}")
        yield from self._deliver(CANCEL_SCOPE, scope, None)

    def cancel_step(self, step: str) -> Operation[None]:
        """Cancel a step, given its name in ``steps``: now, or when it begins."""
        check_key(step, "a step's name")
        state = yield from self._executions.load(self.execution_id)
        self._check_running(state, "steps")
        if step in state.steps:
            raise Conflict(f"step {step!r} of execution {self.execution_id!r} has ended as {state.steps[step].status}")
        plan = yield from self._plan(state)
        waiting = state.tokens.get(step)
        if plan is None and ROOT not in state.tokens and waiting is not None and waiting.node not in ("retry", "step"):
            raise InvalidInput(f"{step!r} is no step; of a function only steps can be cancelled alone")
        place = None if plan is None else plan.places.get(step.partition("[")[0])
        if plan is not None and place is None:
            raise NotFound(f"the definition of execution {self.execution_id!r} has no step {step!r}; run.steps() lists them")
        if place is not None and not isinstance(place.node, CANCELLABLE):
            raise InvalidInput(f"{step!r} is no step or wait; cancel what is inside it, or a scope by run.cancel(scope=...)")
        yield from self._deliver(CANCEL_STEP, step, None)

    def pause(self, reason: str, by: str) -> Operation[Receipt]:
        """Let nothing new of the execution begin until it is resumed."""
        return (yield from RunPause(self._executions, self.execution_id).pause(reason, by))

    def resume(self) -> Operation[Receipt]:
        """Let a paused execution go on."""
        return (yield from RunPause(self._executions, self.execution_id).resume())

    def _check_running(self, state: ExecutionState, what: str) -> None:
        if state.status in FINAL:
            raise ExecutionEnded(f"execution {self.execution_id!r} has ended as {state.status}; its {what} cannot be cancelled")
        if not is_driven_by_engine(state.identity):
            raise InvalidInput(f"execution {self.execution_id!r} is driven by hand; cancel its {what} in a transaction")

    def _deliver(self, kind: str, name: str, value: Value) -> Operation[None]:
        head = yield from self._executions.head(self.execution_id)
        if head.status in FINAL:
            raise ExecutionEnded(f"execution {self.execution_id!r} has ended as {head.status}; it accepts no {kind}")
        key = fresh_key(self._new_id())
        canonical(value, self._executions.limits, what=f"the value of {kind} {name!r}")
        yield from write_or_raise(delivery(self.execution_id, head.workspace_id, kind, name, value, key))

    def obstacle(self) -> Operation[str | None]:
        """Return why this process cannot run the execution, and what to do; None if it can."""
        head = yield from self._executions.head(self.execution_id)
        if head.holder == TEMPORAL and (found := (yield from self._engine_obstacle(head))) is not None:
            return found
        stored = () if self._definitions is None else (yield from self._definitions.names())
        if head.workflow_id not in stored:
            return None if head.holder == TEMPORAL else obstacle_of(head)
        return missing_steps((yield from self._executions.load(self.execution_id)))

    def _engine_obstacle(self, head: Head) -> Operation[str | None]:
        """Return why an execution that Temporal has does not move there, as far as its record says."""
        if head.status in FINAL:
            return None
        record = yield from self._executions.engine_record(TEMPORAL, self.execution_id)
        if record is None:
            return None
        if not record.is_started:
            return "no worker has started it on Temporal yet; run one with stepwell worker --engine temporal"
        return record.obstacle or None

    def retry(self) -> Operation[None]:
        """Continue a failed execution at the call that failed. If it came from a queue item, it waits for a slot."""
        check_has_payloads((yield from self._executions.newest(self.execution_id)).state)
        yield from RunRetry(self._executions, self._new_id, self._definitions).retry(self.execution_id)

    def progress(self) -> Operation[Progress]:
        """Return how far the execution is, what it runs and waits for, and which answers it accepts."""
        state = yield from self._executions.load(self.execution_id)
        progress = progress_of(state, (yield from self._plan(state)))
        head, now_ms = yield from self._executions.head_now(self.execution_id)
        waiting = messages((yield from self._executions.scan(path_of(self.execution_id, head.workspace_id))))
        pause = None if head.status in FINAL else pause_in(waiting)
        on = waiting_on(head, progress, (yield from self.obstacle()), now_ms) if pause is None else paused(pause)
        receipts = (yield from self.receipts()) if is_cancelling(state) else ()
        return msgspec.structs.replace(
            progress,
            waiting_on=on,
            untaken=tuple(each.name for each in waiting if each.kind == SIGNAL),
            held_by=_held_by(head, now_ms),
            pause=pause,
            cancellation=cancellation_of(waiting, receipts),
        )

    def waiting_on(self) -> Operation[WaitingOn | None]:
        """Return what the execution waits for, if it does not move."""
        try:
            return (yield from self.progress()).waiting_on
        except StoreUnavailable as error:
            return away(error)

    def steps(self, at: int | None = None) -> Operation[list[StepRecord]]:
        """Return every step with its attempts, now or at a revision."""
        newest = (yield from self._executions.newest(self.execution_id)).state
        check_has_payloads(newest)
        state = yield from self._executions.load(self.execution_id, at)
        plan = yield from self._plan(state)
        receipts = yield from self.receipts()
        path = late_results_path(self.execution_id, state.identity.workspace_id)
        late = late_results((yield from self._executions.scan(path))) if state.revision >= newest.revision else {}
        return steps_of(state, [each for each in receipts if each.revision <= state.revision], plan, late)

    def draw(self, format: PictureFormat, links: str | None = None) -> Operation[str]:
        """Return a picture of the definition with the progress in it, of the calls that a function has made, or of the times."""
        check_format(format)
        if format == "waterfall":
            head, now_ms = yield from self._executions.head_now(self.execution_id)
            records = yield from self.steps()
            return waterfall_of(head.workflow_id, records, from_ms(head.created_ms), from_ms(now_ms))
        state = yield from self._executions.load(self.execution_id)
        plan = yield from self._plan(state)
        if plan is not None:
            return picture_of_plan(plan, state, format, links)
        return picture_of_calls(state.identity.workflow_id, (yield from self.receipts()), format, links)

    def check(self) -> Operation[tuple[Problem, ...]]:
        """Return every fault of the definition, or of the calls that a function has made."""
        state = yield from self._executions.load(self.execution_id)
        plan = yield from self._plan(state)
        stored = () if self._definitions is None else (yield from self._definitions.names())
        if plan is not None:
            return problems_of_plan(plan, stored)
        return problems_of_calls(state, (yield from self.receipts()), stored)

    def _plan(self, state: ExecutionState) -> Operation[Plan | None]:
        who = state.identity
        if self._definitions is None or who.workflow_id in registered_names():
            return None
        try:
            return self._definitions.plan((yield from self._definitions.load(who.workflow_id, who.version)))
        except NotFound:
            return None  # this process does not have the function

    def state(self) -> Operation[DataStore]:
        """Return the trigger, steps, variables and loops, read-only."""
        state = yield from self._executions.load(self.execution_id)
        return DataStore.of(state)

    def receipts(self) -> Operation[list[Receipt]]:
        """Return the receipts of all commits."""
        return (yield from self._executions.receipts(self.execution_id, -1, None))

    def verify(self) -> Operation[Verification]:
        """Verify the chain of receipts."""
        return (yield from self._executions.verify(self.execution_id))


def _is_interrupted() -> bool:
    """Return whether Ctrl-C cancels the main task of ``asyncio.run``, which raises ``KeyboardInterrupt`` once it has ended."""
    runner: object = getattr(getattr(signal.getsignal(signal.SIGINT), "func", None), "__self__", None)
    return isinstance(runner, asyncio.Runner) and getattr(runner, "_interrupt_count", 0) > 0


def _held_by(head: Head, now_ms: int) -> HeldBy | None:
    until = head.lease_until_ms or 0
    if head.holder in (None, TEMPORAL) or until <= now_ms or head.status in FINAL:
        return None
    return HeldBy(head.holder, from_ms(until))


def _reason(error: Mapping[str, Any]) -> str:
    """Return why an execution was cancelled unless by a plain request, such as an approval that did not come in time."""
    message = str(error.get("message") or "")
    return f": {message}" if message and message.rstrip(".").lower() != "the execution was cancelled" else ""
