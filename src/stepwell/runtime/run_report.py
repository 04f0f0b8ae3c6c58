"""Reports on runs: a check, a picture and a waterfall of a definition's run or of the calls that a function has made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal, get_args

from stepwell.errors import InvalidDefinition, InvalidInput, Problem
from stepwell.flow.definition.node import Action, Deferred, Definition
from stepwell.flow.definition.outline import Place
from stepwell.flow.drawing import draw_mermaid, draw_svg
from stepwell.flow.drawing.run_diagram import Mark, figure_of
from stepwell.flow.drawing.waterfall import Bar, WaterfallRow, axis_of, draw_waterfall, grouped, moment
from stepwell.flow.function import registered_names, registered_step_names
from stepwell.kernel.plan import Plan
from stepwell.kernel.soundness.explorer import check
from stepwell.kernel.token import ROOT, UNDO
from stepwell.model.execution_state import ExecutionState
from stepwell.model.receipt import Receipt
from stepwell.model.record import Token
from stepwell.model.status import Status, StepStatus
from stepwell.model.trace import trace_of
from stepwell.runtime.step_history import StepRecord

__all__ = []


def problems_of_plan(plan: Plan, known_workflows: Iterable[str]) -> tuple[Problem, ...]:
    """Return every fault of a run's definition."""
    return _checked(plan.definition, known_workflows)


def problems_of_calls(state: ExecutionState, receipts: list[Receipt], known_workflows: Iterable[str]) -> tuple[Problem, ...]:
    """Return every fault of the structure that a function's run shows, checked like a definition, and what it left behind."""
    definition, marks = figure_of(state.identity.workflow_id, trace_of(receipts), is_drawn=False)
    found = _checked(definition, known_workflows)
    # The code started this task and did not wait for it.
    left = [key for key, mark in marks.items() if mark == "waiting"] if state.status is Status.COMPLETED else []
    told = "improper: the run has ended, and call {!r} was still waited for"
    return (*found, *(Problem(InvalidDefinition.code, told.format(key), key) for key in left))


def _checked(definition: Definition, known_workflows: Iterable[str]) -> tuple[Problem, ...]:
    steps, workflows = registered_step_names(), registered_names()
    if not steps and not workflows:
        return check(definition)  # this process has no program, so it cannot tell what is missing
    return check(definition, steps=steps, workflows={*workflows, *known_workflows})


PictureFormat = Literal["svg", "mermaid", "waterfall"]

_MARKS: dict[str, Mark] = {
    StepStatus.COMPLETED: "done",
    StepStatus.FAILED: "failed",
    StepStatus.SKIPPED: "skipped",
    StepStatus.CANCELLED: "skipped",
}


def check_format(format: str) -> None:
    """Raise ``InvalidInput`` for an unknown format."""
    if format not in get_args(PictureFormat):
        raise InvalidInput(f"a picture's format is one of {', '.join(get_args(PictureFormat))}, not {format!r}")


def picture_of_plan(plan: Plan, state: ExecutionState, format: PictureFormat, links: str | None) -> str:
    """Return a picture of a definition with the progress of a run."""
    return _drawn(plan.definition, marks_of(plan, state), format, links)


def picture_of_calls(name: str, receipts: list[Receipt], format: PictureFormat, links: str | None) -> str:
    """Return a picture of the calls that a function has made in a run."""
    return _drawn(*figure_of(name, trace_of(receipts)), format, links)


def _drawn(definition: Definition, marks: dict[str, Mark], format: PictureFormat, links: str | None) -> str:
    return draw_mermaid(definition, marks) if format == "mermaid" else draw_svg(definition, marks, links=links)


def marks_of(plan: Plan, state: ExecutionState) -> dict[str, Mark]:
    """Return the state of each node. Of several iterations, a running one counts most, then a failed one."""
    marks: dict[str, Mark] = {}
    for record in state.steps.values():
        if marks.get(record.node_name) != "failed":
            marks[record.node_name] = _MARKS.get(record.status, "done")
    for token in state.tokens.values():
        if _is_under_way(token) and token.node in plan.places:
            marks[token.node] = "running" if _is_running(plan.places[token.node], token) else "waiting"
    return marks


def _is_running(place: Place, token: Token) -> bool:
    """Return whether something runs there; else it waits for a time, a signal, a child, or a worker that has the step."""
    if isinstance(place.node, Action):
        return not token.value.keys() & {"retries_ms", "child", "missing"}
    return bool(place.children) and (not isinstance(place.node, Deferred) or "chosen" in token.value)


def _is_under_way(token: Token) -> bool:
    """Return whether a token runs or waits; a dormant compensation and a node that has not begun do neither."""
    value = token.value
    is_dormant = value.get("slot") == UNDO and not value.get("is_running")
    return token.token_id != ROOT and not is_dormant and "left" not in value and "begins_ms" not in value


_ENDED = frozenset(StepStatus)


def timeline_of(records: Sequence[StepRecord], created_at: datetime, now: datetime) -> list[WaterfallRow]:
    """Return a row for each step that has begun, in the order in which they began.

    - ``created_at``: when the run was accepted; until its first step it was queued, which the first row shows.
    - ``now``: the end of what has not ended.
    """
    rows = sorted((_row(each, moment(now)) for each in records if each.started_at is not None), key=lambda row: row.begin)
    if rows and rows[0].begin > moment(created_at):
        queued = Bar("queued", moment(created_at), rows[0].begin)
        rows[0] = rows[0]._replace(bars=(queued, *rows[0].bars))
    path = critical_path(rows)
    return [row._replace(is_critical=row.key in path) for row in rows]


def _row(record: StepRecord, now: float) -> WaterfallRow:
    bars: list[Bar] = []
    ends: list[float] = []
    at = None
    for attempt in record.attempts:
        begin, end = moment(attempt.started_at), moment(attempt.ended_at)
        if at is not None and begin > at:
            bars.append(Bar("wait", at, begin))
        bars.append(Bar("work" if attempt.error is None else "failed", begin, end))
        ends.append(end)
        at = end
    is_open = record.status not in _ENDED
    last = now if is_open or record.ended_at is None else moment(record.ended_at)
    if record.started_at is not None and at is None:
        # A call without attempts waited all the time; a step that runs for the first time is at work.
        bars.append(Bar("work" if record.status == "RUNNING" else "wait", moment(record.started_at), last))
    elif is_open and at is not None:
        bars.append(Bar("work" if record.status == "RUNNING" else "wait", at, last))
    commits = tuple(ends) if is_open else (*ends[:-1], last)
    label = record.name if record.summary is None else f"{record.name} · {record.summary}"
    return WaterfallRow(record.name, label, record.status, tuple(bars), is_open=is_open, commits=commits)


def critical_path(rows: Sequence[WaterfallRow]) -> frozenset[str]:
    """Return the keys of the rows that made the run as long as it was: from the last end back, always to what ended last before."""
    path: set[str] = set()
    left = sorted(rows, key=lambda row: row.end)
    reached = float("inf")
    while left:
        row = left.pop()
        if row.end <= reached:
            path.add(row.key)
            reached = min(bar.begin for bar in row.bars if bar.kind != "queued")
    return frozenset(path)


def waterfall_of(name: str, records: Sequence[StepRecord], created_at: datetime, now: datetime) -> str:
    """Return the waterfall of a run as an SVG file."""
    rows = timeline_of(records, created_at, now)
    names = {record.name: record.node for record in records}
    rows = grouped(rows, [names[row.key] for row in rows])
    end = moment(now)
    return draw_waterfall(rows, axis_of(rows, end), end, title=f"Waterfall of {name}")
