"""The page of one run: what it does, why it waits, when each step ran, and what can be done with it."""

from __future__ import annotations

import re
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET
from starlette.responses import RedirectResponse

from stepwell.errors import NotFound
from stepwell.flow.drawing.waterfall import (
    MOST_ROWS,
    OVERVIEW_PARTS,
    Axis,
    WaterfallRow,
    axis_of,
    draw_overview,
    draw_waterfall,
    grouped,
    moment,
)
from stepwell.model.access import Role
from stepwell.model.execution_state import Change
from stepwell.model.receipt_chain import Verification
from stepwell.model.status import FINAL, Status
from stepwell.runtime.progress import Progress
from stepwell.runtime.run_report import timeline_of
from stepwell.runtime.step_history import LogLine, StepRecord
from stepwell.web.api.runs import RunView
from stepwell.web.dashboard.form_fields import json_field
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen, segment
from stepwell.web.dashboard.screens.approvals import answer_of
from stepwell.web.problem import HttpProblem

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS", "ForkOrigin", "origin_of", "page_of", "run_crumbs"]

TABS = ("timeline", "graph", "steps", "events", "logs", "io", "raw")
_MOST_LINES = 500
_KINDS = {"failed": "FAILED", "completed": "COMPLETED", "waiting": "WAITING", "running": "RUNNING"}
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def page_of(execution_id: str) -> str:
    """Return the path of the page of a run."""
    return f"/runs/{segment(execution_id)}"


def run_crumbs(view: View, execution_id: str | None = None) -> tuple[Crumb, ...]:
    """Return the breadcrumb of a page under the runs."""
    runs = Crumb(label="Runs", url=view.url("/runs"))
    return (runs,) if execution_id is None else (runs, Crumb(label=execution_id, url=view.url(page_of(execution_id))))


async def show_run(view: View) -> Shown:
    """Show one run: its progress, what it waits for, its steps in time, and its actions."""
    run: RunView = await view.get("get_run")
    progress: Progress = await view.get("get_progress")
    tab = view.query.get("tab", "timeline")
    tab = tab if tab in TABS else "timeline"
    records: list[StepRecord] = (await view.get("list_steps")).items
    values: dict[str, Any] = {
        "run": run,
        "progress": progress,
        "tab": tab,
        "tabs": TABS,
        "records": records,
        "is_over": run.status in FINAL,
        "elapsed_ms": ((run.updated_at if run.status in FINAL else view.now) - run.created_at).total_seconds() * 1000,
        "can_retry": run.status in (Status.FAILED, Status.PARTIALLY_COMPLETED),
        "page": page_of(run.execution_id),
        "waiting_since": _since(progress, records),
        "origin": await origin_of(view, run.execution_id),
        "verified": await _verified(view, run),
        "children": [each for each in progress.waiting if each.kind == "child"],
    }
    match tab:
        case "timeline" | "steps":
            values |= _timeline(view, run, records)
            values["written"] = await _written(view, values["chosen"])
        case "graph":
            values["graph"] = await _graph(view, run)
        case "events":
            values["receipts"] = await view.get("list_receipts", cursor=view.query.get("cursor"), limit=50)
        case "logs":
            values |= _logs(view, records)
        case _:
            values["state"] = await view.get("get_run_state")
    live = None if run.status in FINAL else view.url("/live", run=run.execution_id, after=run.revision)
    title = run.execution_id
    return Shown(template="run.html", title=title, values=values, crumbs=run_crumbs(view), live=live)


class KeptLine(NamedTuple):
    """A line of the log of an attempt at a step."""

    step: str
    attempt: int
    at: datetime
    line: LogLine | None
    """None in place of the lines that were dropped."""
    dropped: int = 0
    is_older: bool = True
    """False if no line of the attempt was kept."""


def _logs(view: View, records: list[StepRecord]) -> dict[str, Any]:
    """Return what the steps have logged, in the order of time, as far as the query asks for it."""
    kept: list[KeptLine] = []
    for name, attempt in [(each.name, attempt) for each in records for attempt in each.attempts]:
        if attempt.log_dropped:
            at = attempt.log[0].at if attempt.log else attempt.started_at
            kept.append(KeptLine(name, attempt.number, at, None, attempt.log_dropped, bool(attempt.log)))
        kept += [KeptLine(name, attempt.number, line.at, line) for line in attempt.log]
    kept.sort(key=attrgetter("at"))
    step, level = view.query.get("step", ""), view.query.get("level", "")
    return {
        "logs": [
            each
            for each in kept
            if each.step == (step or each.step) and (not level or (each.line is not None and each.line.level == level))
        ],
        "log_steps": list(dict.fromkeys(each.step for each in kept)),
        "log_levels": sorted({each.line.level for each in kept if each.line is not None}),
        "most_logs": _MOST_LINES,
    }


def _since(progress: Progress, records: list[StepRecord]) -> datetime | None:
    """Return since when the run waits for what it waits for; None if that is no step of it."""
    held_up = progress.waiting_on
    if held_up is None or not held_up.step:
        return None
    return next((each.started_at for each in records if each.name == held_up.step), None)


async def _verified(view: View, run: RunView) -> Verification | None:
    """Return what verifying the receipts gave, if the query asks for it at this revision: an open page verifies once."""
    return await view.get("verify_run") if view.query.get("verified") == str(run.revision) else None


class ForkOrigin(msgspec.Struct, frozen=True):
    """The run and revision that a fork began with."""

    execution_id: str
    revision: int


async def origin_of(view: View, execution_id: str) -> ForkOrigin | None:
    """Return what a run is a fork of; None if it is none."""
    for receipt in (await view.get("list_receipts", {"execution_id": execution_id}, limit=1)).items:
        for mutation in receipt.mutations:
            if mutation.get("type") == "restore" and mutation.get("source") != execution_id:
                return ForkOrigin(mutation["source"], mutation["revision"])
    return None


def _timeline(view: View, run: RunView, records: list[StepRecord]) -> dict[str, Any]:
    """Return the waterfall: the steps that the query asks for, grouped if they are many, a window of them at a time."""
    now = run.updated_at if run.status in FINAL else view.now
    by_name = {record.name: record for record in records}
    chosen = by_name.get(view.query.get("step", ""))
    rows = timeline_of(records, run.created_at, now)
    found = _filtered(view, rows, by_name)
    whole = axis_of(found, moment(now))
    begin, end = _range(view, whole)
    found = [row for row in found if (row.end >= begin and row.begin <= end) or row.is_open]
    group = view.query.get("group", "")
    if group:
        found = [row for row in found if by_name[row.key].node == group]
    is_grouped = len(found) > MOST_ROWS and not group
    shown = grouped(found, [by_name[row.key].node for row in found]) if is_grouped else found
    start = int(view.query["row"]) if view.query.get("row", "").isdecimal() else 0
    start = max(0, min(start, len(shown) - 1))
    window = shown[start : start + MOST_ROWS]
    has_folds = view.query.get("gaps") != "shown"
    axis = axis_of(window, moment(now), whole=whole, part=(begin, end), has_folds=has_folds)
    overview = ""
    if whole.end - whole.begin >= OVERVIEW_PARTS:  # its parts are whole milliseconds
        overview = draw_overview(found, whole, moment(now), _links(view, whole), begin, end)
    title = f"Waterfall of {run.workflow_id}: {len(window)} rows"
    failed = [row.key for row in rows if row.status == "FAILED"]
    return {
        "rows": window,
        "row_count": len(shown),
        "step_count": len(records),
        "start": start,
        "has_more": start + MOST_ROWS < len(shown),
        "most": MOST_ROWS,
        "nodes": {row.key: by_name[row.key].node for row in window if row.key in by_name},
        "by_name": by_name,
        "group": group,
        "has_folds": has_folds,
        "fold_count": len(axis.folds),
        "waterfall": draw_waterfall(
            window, axis, moment(now), title=title, selected="" if chosen is None else chosen.name, is_embedded=True
        ),
        "overview": overview,
        "is_zoomed": (begin, end) != (whole.begin, whole.end),
        "chosen": chosen,
        "missing_step": view.query.get("step", "") if chosen is None else "",
        "failed": failed,
        "before_failed": _beside(failed, chosen, -1),
        "after_failed": _beside(failed, chosen, 1),
    }


def _range(view: View, whole: Axis) -> tuple[float, float]:
    """Return the part of the time that the query asks for, as milliseconds since the beginning of the run."""
    texts = view.query.get("from", ""), view.query.get("to", "")
    if not all(text.isascii() and text.isdecimal() and len(text) < 15 for text in texts):
        return whole.begin, whole.end
    begin, end = (whole.begin + int(text) for text in texts)
    return (begin, min(end, whole.end)) if begin < min(end, whole.end) else (whole.begin, whole.end)


def _links(view: View, whole: Axis) -> list[str]:
    """Return the addresses of the parts of the overview."""
    bounds = [round(whole.moment(100 * number / OVERVIEW_PARTS) - whole.begin) for number in range(OVERVIEW_PARTS + 1)]
    return [
        view.here(**{"from": bounds[at], "to": max(bounds[at + 1], bounds[at] + 1), "row": None}) for at in range(OVERVIEW_PARTS)
    ]


async def _written(view: View, step: StepRecord | None) -> list[Change]:
    """Return what the commit of a step changed beside the step's own record; nothing if its receipt is archived."""
    if step is None or not step.revision:
        return []
    try:
        changes: list[Change] = (await view.get("diff_run", a=step.revision - 1, b=step.revision)).items
    except NotFound:
        return []
    return [each for each in changes if each.section in ("variables", "context")]


def _filtered(view: View, rows: list[WaterfallRow], by_name: dict[str, StepRecord]) -> list[WaterfallRow]:
    status, text = _KINDS.get(view.query.get("only", "")), view.query.get("name", "").casefold()
    return [
        row
        for row in rows
        if (status is None or row.status == status)
        and (not text or text in row.key.casefold() or text in by_name[row.key].node.casefold())
    ]


def _beside(failed: list[str], chosen: StepRecord | None, by: int) -> str | None:
    """Return the failed step before or after the chosen one."""
    if not failed:
        return None
    if chosen is None or chosen.name not in failed:
        return failed[0]
    at = failed.index(chosen.name) + by
    return failed[at] if 0 <= at < len(failed) else None


async def _graph(view: View, run: RunView) -> str:
    """Return the picture of the run for the page, which has the style itself. Its names were escaped when it was drawn."""
    links = view.url(page_of(run.execution_id)) + ("&" if "?" in view.url("/") else "?") + "step="
    drawn = await view.server.well.run(run.execution_id).draw("svg", links=links)
    return _STYLE.sub("", drawn).replace("<svg ", '<svg class="graph" ', 1)


async def _back(view: View, done: str) -> Response:
    return RedirectResponse(view.url(page_of(view.path["execution_id"]), done=done), 303)


async def cancel_run_form(view: View) -> Response:
    """Cancel a run."""
    form = await view.form()
    await view.act("cancel_run", body={}, reason=form.get("reason"))
    return await _back(view, "cancelled")


async def cancel_step_form(view: View) -> Response:
    """Cancel a step of a run."""
    form = await view.form()
    await view.act("cancel_step", body={"step": form.get("step", "")}, reason=form.get("reason"))
    return await _back(view, "cancel_step")


async def pause_run_form(view: View) -> Response:
    """Pause a run."""
    reason = (await view.form()).get("reason", "").strip()
    await view.act("pause_run", body={"reason": reason}, reason=reason)
    return await _back(view, "run_paused")


async def resume_run_form(view: View) -> Response:
    """Resume a paused run."""
    form = await view.form()
    await view.act("resume_run", reason=form.get("reason"))
    return await _back(view, "run_resumed")


async def retry_run_form(view: View) -> Response:
    """Continue a failed run at the step that failed."""
    form = await view.form()
    await view.act("retry_run", reason=form.get("reason"))
    return await _back(view, "retried")


async def signal_run_form(view: View) -> Response:
    """Send a signal to a run."""
    form = await view.form()
    body = {"name": form.get("name", ""), "value": answer_of(form, form.get("by", "").strip() or view.identity.name)}
    await view.act("signal_run", body=body, reason=form.get("reason"))
    return await _back(view, "signalled")


async def delete_run_form(view: View) -> Response:
    """Delete a run with its history."""
    form = await view.form()
    execution_id = view.path["execution_id"]
    if form.get("confirm", "") != execution_id:
        raise HttpProblem("invalid", f"type the id {execution_id!r} to delete the run")
    await view.act("delete_run", reason=form.get("reason"))
    return RedirectResponse(view.url("/runs", done="deleted"), 303)


async def show_rerun(view: View) -> Shown:
    """Show the form that starts the workflow of a run again."""
    run: RunView = await view.get("get_run")
    crumbs = run_crumbs(view, run.execution_id)
    return Shown(template="rerun.html", title="Run again", values={"run": run, "page": page_of(run.execution_id)}, crumbs=crumbs)


async def rerun_form(view: View) -> Response:
    """Start the workflow of a run again, with the input of the form."""
    form = await view.form()
    run: RunView = await view.get("get_run")
    body: dict[str, Any] = {"workflow": run.workflow_id}
    value = json_field(form, "input")
    if value is not UNSET:
        body["input"] = value
    if form.get("execution_id", "").strip():
        body["execution_id"] = form["execution_id"].strip()
    started = await view.act("start_run", body=body, reason=form.get("reason"))
    return RedirectResponse(view.url(page_of(started.execution_id), done="started"), 303)


SCREENS = (
    screen("GET /runs/{execution_id}", show_run, rail="/runs"),
    screen("POST /runs/{execution_id}/cancel", cancel_run_form, Role.OPERATOR, rail="/runs"),
    screen("POST /runs/{execution_id}/cancel_step", cancel_step_form, Role.OPERATOR, rail="/runs"),
    screen("POST /runs/{execution_id}/pause", pause_run_form, Role.OPERATOR, rail="/runs"),
    screen("POST /runs/{execution_id}/resume", resume_run_form, Role.OPERATOR, rail="/runs"),
    screen("POST /runs/{execution_id}/retry", retry_run_form, Role.OPERATOR, rail="/runs"),
    screen("POST /runs/{execution_id}/signal", signal_run_form, Role.OPERATOR, rail="/runs"),
    screen("POST /runs/{execution_id}/delete", delete_run_form, Role.ADMIN, rail="/runs"),
    screen("GET /runs/{execution_id}/rerun", show_rerun, Role.OPERATOR, rail="/runs"),
    screen("POST /runs/{execution_id}/rerun", rerun_form, Role.OPERATOR, rail="/runs"),
)
