"""The list of runs: filter, columns, pages, export, and actions on many at once."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import StreamingResponse

from stepwell.model.access import Role
from stepwell.model.status import FINAL, Status
from stepwell.runtime.progress import Progress
from stepwell.state.history import ExecutionSummary
from stepwell.web.api.bulk import BulkReport
from stepwell.web.api.runs import RUN_FIELDS
from stepwell.web.authentication import workspace_of
from stepwell.web.dashboard.screen import Shown, View, screen
from stepwell.web.dashboard.screens.run import run_crumbs
from stepwell.web.filters import filter_text, parse_filter
from stepwell.web.problem import HttpProblem
from stepwell.web.request_body import form_fields

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]

_PAGE = 50
_NEW = 100
"""How many new runs are counted; of more it says so."""
_EXPORTED = 10_000
COLUMNS = {
    "started": "Started",
    "updated": "Last commit",
    "duration": "Duration",
    "commits": "Commits",
    "parent": "Parent",
    "now": "Now",
}
"""The columns to choose from, beside status, workflow and id."""
_DEFAULT_COLUMNS = "started,duration,commits"
AGES = {"15m": "15 minutes", "1h": "1 hour", "24h": "24 hours", "7d": "7 days", "": "Any time"}
_ACTIONS = {
    "cancel": "They are asked to end, with their children; their code may clean up first.",
    "retry": "Each continues at the step that failed: its effects since then are made again.",
    "delete": "They and their history are gone for good. Their ids are never used again.",
}


async def show_runs(view: View) -> Shown:
    """Show the runs that match a filter, newest first."""
    text = view.query.get("filter", "")
    terms = _terms(view, text)
    cursor = view.query.get("cursor")
    anchor, new = view.query.get("anchor", ""), 0
    if anchor and not cursor:
        # The page was opened when this run was the newest: it keeps its rows, and says how many are newer.
        cursor, new = await _anchored(view, text, anchor)
    page = await view.get("list_runs", filter=text, cursor=cursor, limit=_PAGE)
    items: list[ExecutionSummary] = page.items
    asked = view.query.get("columns") or _DEFAULT_COLUMNS
    columns = [name for name in COLUMNS if name in asked.split(",")]
    values: dict[str, Any] = {
        "page": page,
        "filter": text,
        "terms": {key: filter_text({name: value for name, value in terms.items() if name != key}) for key in terms},
        "written": {key: filter_text({key: value}) for key, value in terms.items()},
        "without_status": filter_text({name: value for name, value in terms.items() if name != "status"}),
        "tab": terms.get("status", ""),
        "age": terms.get("age<", ""),
        "ages": {age: filter_text(_with_age(terms, age)) for age in AGES},
        "age_names": AGES,
        "columns": columns,
        "all_columns": COLUMNS,
        "now_by_run": await _now(view, items) if "now" in columns else {},
        "new": new,
        "most_new": _NEW,
        "anchor": anchor or (items[0].execution_id if items and not view.query.get("cursor") else ""),
        "names": sorted({each.workflow_id for each in items}),
    }
    stream = filter_text({name: value for name, value in terms.items() if name in ("status", "workflow")})
    return Shown(template="runs.html", title="Runs", values=values, live=view.url("/live", filter=stream))


def _with_age(terms: dict[str, str], age: str) -> dict[str, str]:
    rest = {name: value for name, value in terms.items() if name != "age<"}
    return rest | {"age<": age} if age else rest


def _terms(view: View, text: str) -> dict[str, str]:
    """Return the terms of a filter. A tenant in it is the workspace that the page shows, for a caller that chooses one."""
    terms = parse_filter(text, RUN_FIELDS)
    if view.identity.workspace is None and "tenant" in terms:
        view.workspace = workspace_of(view.identity, terms["tenant"])
    return terms


async def _anchored(view: View, text: str, anchor: str) -> tuple[str | None, int]:
    """Return the cursor of the page that begins with a run, and how many runs are newer."""
    newer: list[ExecutionSummary] = (await view.get("list_runs", filter=text, limit=_NEW)).items
    ids = [each.execution_id for each in newer]
    if not ids or ids[0] == anchor:
        return None, 0
    binding = ["runs", view.workspace, parse_filter(text, RUN_FIELDS)]
    signer = await view.server.signer()
    if anchor in ids:
        at = ids.index(anchor)
        return signer.cursor(binding, newer[at - 1]), at
    summary = await view.get("get_run", {"execution_id": anchor})
    at = summary.created_at + timedelta(milliseconds=1)
    return signer.cursor(binding, ExecutionSummary("", "", "", 0, Status.PENDING, 0, at, at)), _NEW


async def _now(view: View, items: list[ExecutionSummary]) -> dict[str, str]:
    """Return what each run that has not ended does or waits for."""
    found: dict[str, str] = {}
    for each in items:
        if each.status not in FINAL:
            progress: Progress = await view.get("get_progress", {"execution_id": each.execution_id})
            held_up = progress.waiting_on
            found[each.execution_id] = ", ".join(progress.current) or ("" if held_up is None else held_up.message)
    return found


async def show_run_counts(view: View) -> Shown:
    """Show how many runs have each status, as tabs above the list."""
    terms = _terms(view, view.query.get("filter", ""))
    counts = (await view.get("count_runs", workflow=terms.get("workflow"))).items
    values: dict[str, Any] = {
        "counts": {str(each.status): f"{each.count:,}{'' if each.is_exact else '+'}" for each in counts},
        "without_status": filter_text({name: value for name, value in terms.items() if name != "status"}),
        "tab": terms.get("status", ""),
    }
    return Shown(template="run_counts.html", title="Runs by status", values=values, crumbs=run_crumbs(view))


async def export_runs(view: View) -> Response:
    """Download the runs that match a filter, as CSV or as JSON lines."""
    kind = view.query.get("format", "csv")
    if kind not in ("csv", "jsonl"):
        raise HttpProblem("malformed", "the parameter `format` is csv or jsonl")
    _terms(view, view.query.get("filter", ""))
    media = "text/csv; charset=utf-8" if kind == "csv" else "application/x-ndjson"
    headers = {"content-disposition": f'attachment; filename="runs.{kind}"', "cache-control": "no-store"}
    # The first page is read before anything is sent, so that an error is a page that says so.
    first = await view.get("list_runs", filter=view.query.get("filter"), limit=200)
    return StreamingResponse(_lines(view, kind, first), headers=headers, media_type=media)


async def _lines(view: View, kind: str, page: Any) -> AsyncIterator[str]:
    names = ExecutionSummary.__struct_fields__
    if kind == "csv":
        yield _csv_line(names)
    sent = 0
    while True:
        for each in page.items:
            row: dict[str, Any] = msgspec.to_builtins(each)
            yield msgspec.json.encode(row).decode() + "\n" if kind == "jsonl" else _csv_line([row[name] for name in names])
        sent += len(page.items)
        if page.next_cursor is None or sent >= _EXPORTED:
            return
        page = await view.get("list_runs", filter=view.query.get("filter"), cursor=page.next_cursor, limit=200)


_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def _csv_line(cells: Any) -> str:
    """Return a line of CSV. A cell that a spreadsheet would take for a formula begins with an apostrophe."""
    texts = ["" if each is None else str(each) for each in cells]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([f"'{each}" if each.startswith(_FORMULAS) else each for each in texts])
    return out.getvalue()


async def plan_bulk(view: View) -> Shown:
    """Show what an action on many runs would do, before it is done."""
    ids, form = await _many(view)
    action = form.get("action", "")
    text = "" if ids else form.get("filter", "").strip()
    if not ids and form.get("all") != "all":
        raise HttpProblem("invalid", "no run is selected; select some, or choose all that match")
    body: dict[str, Any] = {"action": action} | ({"ids": ids} if ids else {"filter": text})
    report: BulkReport = await view.act("bulk_runs", body=body)
    values: dict[str, Any] = {
        "report": report,
        "action": action,
        "filter": text,
        "ids": ids,
        "effect": _ACTIONS[action],
        "body": body,
    }
    return Shown(template="bulk.html", title=f"{action.capitalize()} {report.count} runs", values=values, crumbs=run_crumbs(view))


async def run_bulk(view: View) -> Shown:
    """Carry out an action on many runs, and show what was done."""
    ids, form = await _many(view)
    action, reason = form.get("action", ""), form.get("reason", "").strip()
    if not reason:
        raise HttpProblem("invalid", "say why: the audit keeps the reason")
    if form.get("count", "").isdecimal() and int(form["count"]) > 100 and form.get("typed", "").strip() != form["count"]:
        raise HttpProblem("invalid", f"type the number {form['count']} to act on so many runs")
    body: dict[str, Any] = {"action": action, "hash": form.get("hash", "")}
    body |= {"ids": ids} if ids else {"filter": form.get("filter", "")}
    report: BulkReport = await view.act("bulk_runs", body=body, reason=reason)
    values = {"report": report, "action": action}
    return Shown(template="bulk_done.html", title="Done", values=values, crumbs=run_crumbs(view))


async def _many(view: View) -> tuple[list[str], dict[str, str]]:
    """Return the ids of the selected runs, unless all that match are chosen, and the other fields of the form."""
    form = await view.form()
    ids = [value for name, value in await form_fields(view.request) if name == "id"]
    return ([] if form.get("all") == "all" else ids), form


SCREENS = (
    screen("GET /runs", show_runs),
    screen("GET /run-counts", show_run_counts, rail="/runs"),
    screen("GET /run-export", export_runs, rail="/runs", is_page=False),
    screen("POST /bulk", plan_bulk, Role.OPERATOR, rail="/runs"),
    screen("POST /bulk/run", run_bulk, Role.OPERATOR, rail="/runs"),
)
