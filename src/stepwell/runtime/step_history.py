"""The steps of a run with all their attempts, read from its receipts and its state.

A failed attempt that is retried is a change of the step's token; the last attempt is in the step's record. The receipts have both,
also of a step that was recorded again after the run was retried. Steps whose receipts are not here (of a fork, or archived) are
read from the state, which has their last attempt only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self, cast

import msgspec

from stepwell.clock import from_ms
from stepwell.flow.definition.node import Action
from stepwell.kernel.plan import Plan
from stepwell.model.execution_state import ExecutionState
from stepwell.model.plain_data import PlainRecord
from stepwell.model.receipt import Receipt
from stepwell.model.record import StepOutput
from stepwell.model.status import FINAL, StepStatus
from stepwell.model.value import Value
from stepwell.runtime.progress import progress_of
from stepwell.runtime.steps.late_results import LateResult

__all__ = ["AttemptRecord", "ErrorRecord", "LogLine", "StepRecord", "steps_of"]


class ErrorRecord(PlainRecord, frozen=True):
    """An error as it was recorded."""

    kind: str
    """The name of its class."""
    message: str
    code: str | None = None
    """The code of an error of Stepwell; None for any other."""
    error_class: str | None = None
    """The error class, such as ``network`` or ``validation``."""
    is_retryable: bool | None = None
    suggestion: str | None = None

    @classmethod
    def of(cls, error: Mapping[str, Any]) -> Self:
        """Return a recorded error, as the record of a step or the result of a run has it."""
        return cls(
            str(error.get("kind")),
            str(error.get("message")),
            error.get("code"),
            error.get("class"),
            error.get("is_retryable"),
            error.get("suggestion"),
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class LogLine(PlainRecord, frozen=True):
    """One line that a step logged with ``current().logger``."""

    at: datetime
    level: str
    """Its name, such as ``INFO``."""
    text: str


class AttemptRecord(PlainRecord, frozen=True):
    """One try at a step."""

    number: int
    """From 1; a run that was retried counts from 1 again."""
    started_at: datetime
    ended_at: datetime
    error: ErrorRecord | None = None
    """None for the attempt that gave the output."""
    traceback: str | None = None
    """Where in the user's code the error was raised."""
    log: tuple[LogLine, ...] = ()
    """What it logged with ``current().logger`` at INFO or above: its last 50 lines.

    None of an attempt that was retried, from the eleventh on."""
    log_dropped: int = 0
    """How many lines were dropped: older ones, or all of an attempt that was retried as the eleventh or later."""


class StepRecord(PlainRecord, frozen=True):
    """One step of a run: a step, a wait, a child or a part of a definition."""

    name: str
    """The key of the call, such as ``charge``, ``charge#2`` for the second call, or ``charge[3]`` in a loop."""
    node: str
    """The name of the step or node without the number of the call."""
    status: str
    """A ``StepStatus``; ``RUNNING`` or ``WAITING`` for one that has not ended."""
    output: Value = None
    """None unless the status is ``COMPLETED``: errors are no outputs."""
    error: ErrorRecord | None = None
    """Why it failed, or that a call of a function was cancelled; None for any other."""
    attempts: tuple[AttemptRecord, ...] = ()
    """All tries, the first one first; empty for what is not tried, such as a wait."""
    started_at: datetime | None = None
    """When the first attempt or the wait began."""
    ended_at: datetime | None = None
    duration_ms: int | None = None
    """How long the last attempt took."""
    revision: int | None = None
    """The commit that recorded its end; None if it has not ended, or if the receipt is not here (of a fork, or archived)."""
    late_results: tuple[LateResult, ...] = ()
    """The results that came after the call, or one of its attempts, had been given up. They were discarded."""
    summary: str | None = None
    """One line about the call, if the workflow gives one."""
    input: Value = None
    """What an ended step was called with: its arguments by name, or what a definition passes.

    None if it is larger than 16 KiB or does not become JSON, if it may hold a secret, and if the receipt is not here."""


def steps_of(
    state: ExecutionState, receipts: Sequence[Receipt], plan: Plan | None, late: Mapping[str, tuple[LateResult, ...]]
) -> list[StepRecord]:
    """Return all steps of a run, in the order in which they were first recorded or tried.

    - ``late``: the results that were discarded, by the names of their steps.
    """
    history = _History(plan)
    for receipt in receipts:
        for mutation in receipt.mutations:
            history.add(mutation, receipt.committed_at, receipt.revision)
        history.attach_logs()
    records = state.steps
    for name, record in records.items():
        history.add_record(name, record, is_in_receipts=False)
    progress = progress_of(state, plan)
    live = dict.fromkeys((each.step for each in progress.waiting), "WAITING") | dict.fromkeys(progress.current, "RUNNING")
    for name in live.keys() - records.keys():
        history.steps.setdefault(name, _Step(name))
    is_over = state.status in FINAL
    found = [
        history.record_of(name, records.get(name), live.get(name, "RUNNING"))
        for name in history.steps
        if name in records or name in live or not is_over
    ]
    # The run may have ended before the cancelled call that gave a late result could be recorded.
    found += [StepRecord(name, name, StepStatus.CANCELLED) for name in late.keys() - {each.name for each in found} if is_over]
    return [msgspec.structs.replace(each, late_results=late[each.name]) if each.name in late else each for each in found]


class _Step:
    """The history of one step, from the receipts."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.attempts: list[AttemptRecord] = []
        self.last = 0
        """The newest attempt since the run was last retried."""
        self.summary: str | None = None
        self.wait = ""
        """``signal``, ``sleep`` or ``child`` for a call of a function that is no step."""
        self.is_recorded = False
        self.revision: int | None = None
        """The commit of its record."""
        self.input: Value = None


class _History:
    def __init__(self, plan: Plan | None) -> None:
        self._plan = plan
        self.steps: dict[str, _Step] = {}
        self._logs: list[Mapping[str, Any]] = []
        """What attempts that end with the commit being read have logged."""
        self._began: dict[str, datetime] = {}
        """When the token of each call or node was first written: the begin of what has no attempts, such as a wait."""

    def add(self, mutation: Mapping[str, Any], at: datetime, revision: int) -> None:
        """Note one change of a commit."""
        match mutation:
            case {"type": "add_token" | "update_token", "token_id": token_id, "token": {"node": node, "value": value}}:
                self._add_token(token_id, node, cast("dict[str, Any]", value if isinstance(value, dict) else {}), at)
            case {"type": "record_step", "name": name, "step": step}:
                self.add_record(name, msgspec.convert(step, StepOutput), is_in_receipts=True)
                self.steps[name].revision, self.steps[name].input = revision, mutation.get("input")
            case {"type": "keep_log"}:
                self._logs.append(mutation)
            case {"type": "reopen_step", "name": name} if name in self.steps:
                self.steps[name].last, self.steps[name].is_recorded = 0, False
            case {"type": "restore"}:
                self.steps.clear()
                self._began.clear()
            case _:
                pass

    def attach_logs(self) -> None:
        """Give the attempts that ended with a commit what they have logged, when all of the commit is read."""
        for each in self._logs:
            step = self.steps.get(each["step"])
            if step is not None and step.attempts:
                lines = tuple(LogLine(from_ms(at_ms), level, text) for at_ms, level, text in each["lines"])
                step.attempts[-1] = msgspec.structs.replace(step.attempts[-1], log=lines, log_dropped=each.get("dropped", 0))
        self._logs.clear()

    def _add_token(self, token_id: str, node: str, value: dict[str, Any], at: datetime) -> None:
        name = token_id if self._plan is None else node + "".join(f"[{index}]" for index in value.get("at", ()))
        self._began.setdefault(name, at)
        if (told := value.get("summary")) is not None and (self._plan is not None or node in ("retry", "step")):
            self._step(name, node).summary = told
        if self._plan is None and node in ("signal", "sleep", "child"):
            self._step(name, node).wait = node
            return
        match value:
            case {"attempt": int() as number, "error": {"kind": _}}:
                self._failed(self._step(name, node), number, value["error"], value.get("took_ms", 0), at)
            case _:
                pass

    def add_record(self, name: str, record: StepOutput, *, is_in_receipts: bool) -> None:
        """Note the end of a step."""
        step = self._step(name, record.node_name)
        if not is_in_receipts and step.is_recorded:
            return
        step.node, step.is_recorded = record.node_name, True
        if record.status == StepStatus.FAILED and _failure(record):
            failure = cast("dict[str, Any]", record.output)
            if failure.get("attempts"):
                self._failed(step, failure["attempts"], failure["error"], record.duration_ms, record.executed_at)
        elif record.status == StepStatus.COMPLETED and self._is_tried(step):
            started_at = record.executed_at - timedelta(milliseconds=record.duration_ms)
            step.attempts.append(AttemptRecord(step.last + 1, started_at, record.executed_at))

    def _failed(self, step: _Step, number: int, error: dict[str, Any], took_ms: int, at: datetime) -> None:
        if number <= step.last:
            return  # the token was rewritten for another reason
        step.last = number
        started_at = at - timedelta(milliseconds=took_ms)
        step.attempts.append(AttemptRecord(number, started_at, at, ErrorRecord.of(error), error.get("traceback")))

    def _is_tried(self, step: _Step) -> bool:
        """Return whether the end of a step is the end of an attempt."""
        place = None if self._plan is None else self._plan.places.get(step.node)
        return not step.wait if place is None else isinstance(place.node, Action)

    def _step(self, name: str, node: str) -> _Step:
        return self.steps.setdefault(name, _Step(node))

    def record_of(self, name: str, record: StepOutput | None, live: str) -> StepRecord:
        """Return the record of a step."""
        step = self.steps[name]
        attempts = tuple(step.attempts)
        started_at = attempts[0].started_at if attempts else self._began.get(name)
        if record is None:
            return StepRecord(name, step.node, live, attempts=attempts, started_at=started_at, summary=step.summary)
        output, error = _READERS.get(step.wait, _read)(record)
        first = started_at or record.executed_at - timedelta(milliseconds=record.duration_ms)
        return StepRecord(
            name,
            step.node,
            record.status,
            output,
            error,
            attempts,
            first,
            record.executed_at,
            record.duration_ms,
            step.revision,
            summary=record.summary,
            input=step.input,
        )


def _failure(record: StepOutput) -> dict[str, Any] | None:
    """Return the recorded error of a failed step; None for one that was recorded by hand."""
    match record.output:
        case {"error": {"kind": _}}:
            return cast("dict[str, Any]", record.output)["error"]
        case _:
            return None


def _read(record: StepOutput) -> tuple[Value, ErrorRecord | None]:
    if record.status in (StepStatus.FAILED, StepStatus.CANCELLED):
        error = _failure(record)
        return None, None if error is None else ErrorRecord.of(error)
    return record.output, None


def _read_signal(record: StepOutput) -> tuple[Value, ErrorRecord | None]:
    return cast("dict[str, Any]", record.output or {}).get("value"), None


def _read_child(record: StepOutput) -> tuple[Value, ErrorRecord | None]:
    """Return the result in the message that a child sent at its end."""
    match record.output:
        case {"result": {"output": output}}:
            return output, None
        case {"result": {"error": {"kind": _}}} if record.status == StepStatus.FAILED:
            return None, ErrorRecord.of(cast("dict[str, Any]", record.output)["result"]["error"])
        case _:
            return None, None


_READERS: dict[str, Callable[[StepOutput], tuple[Value, ErrorRecord | None]]] = {
    "signal": _read_signal,
    "child": _read_child,
}
"""The names under which outcomes of a function's other calls are recorded."""
