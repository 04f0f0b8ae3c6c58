"""The rows of a run's waterfall, from its steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from stepwell.flow.drawing.waterfall import Bar, WaterfallRow, axis_of, draw_waterfall, grouped, moment
from stepwell.model.status import StepStatus
from stepwell.runtime.step_history import StepRecord

__all__ = ["critical_path", "timeline_of", "waterfall_of"]

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
