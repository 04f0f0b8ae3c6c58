"""The list of runs: filter, columns, pages, export, and actions on many at once."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from starlette.responses import RedirectResponse, StreamingResponse

from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.model.status import FINAL, Status
from stepwell.runtime.progress import Progress
from stepwell.runtime.step_history import StepRecord
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
_SHORT = 500
"""The commits of a run whose attempts are read for a list."""
_LONGEST_NAME = 60
_MOST_VIEWS = 3_000
"""The bytes of all saved views: browsers drop a cookie of more than four thousand."""
COLUMNS = {
    "started": "Started",
    "updated": "Last commit",
    "duration": "Duration",
    "commits": "Commits",
    "workspace": "Workspace",
    "parent": "Parent",
    "attempts": "Attempts",
    "now": "Step now",
    "waiting": "Waiting on",
}
"""The columns to choose from, beside status, workflow and id."""
_DEFAULT_COLUMNS = "started,duration,commits"
AGES = {"15m": "15 minutes", "1h": "1 hour", "24h": "24 hours", "7d": "7 days", "": "Any time"}
_ACTIONS = {
    "cancel": "They are asked to end, with their children; their code may clean up first.",
    "retry": "Each continues at the step that failed: its effects since then are made again.",
    "pause": "What is under way may end, and nothing new of them begins until they are resumed.",
    "resume": "Those that are paused go on; signals and times that came meanwhile are taken.",
    "fork": "Each gets a copy with an id of its own, which goes on from its newest state. The runs stay as they are.",
    "delete_payloads": "What those that have ended were given, did and returned is gone for good; that they ran stays known.",
    "delete": "They and their history are gone for good. Their ids are never used again.",
}


class SavedView(msgspec.Struct, frozen=True):
    """A saved view of the list of runs: a name, with its filter and columns."""

    filter: str = ""
    columns: str = ""


async def show_runs(view: View) -> Shown | Response:
    """Show the runs that match a filter, newest first."""
    if "range" in view.query or "younger" in view.query:
        return _choose_range(view)
    if "filter" not in view.query and (remembered := _remembered_range(view)):
        view.query = {**view.query, "filter": remembered}
    text = view.query.get("filter", "")
    terms = _terms(view, text)
    cursor = view.query.get("cursor")
    anchor, new = view.query.get("anchor", ""), 0
    if anchor and not cursor:
        # The page was opened when this run was the newest: it keeps its rows, and says how many are newer.
        cursor, new = await _anchored(view, text, anchor)
    page = await view.get("list_runs", filter=text, cursor=cursor, limit=_PAGE)
    items: list[ExecutionSummary] = page.items
    asked = view.query.get("columns") or view.preference("columns") or _DEFAULT_COLUMNS
    columns = [name for name in COLUMNS if name in asked.split(",")]
    if "columns" in view.query:
        view.remembered["columns"] = ",".join(columns)
    values: dict[str, Any] = {
        "page": page,
        "filter": text,
        "terms": {key: filter_text({name: value for name, value in terms.items() if name != key}) for key in terms},
        "written": {key: filter_text({key: value}) for key, value in terms.items()},
        "without_status": filter_text({name: value for name, value in terms.items() if name != "status"}),
        "tab": terms.get("status", ""),
        "younger": terms.get("age<", ""),
        "older": terms.get("age>", ""),
        "age_names": AGES,
        "views": _views(view),
        "written_columns": ",".join(columns),
        "columns": columns,
        "all_columns": COLUMNS,
        "progress": await _progress(view, items) if {"now", "waiting"} & set(columns) else {},
        "attempts": await _attempts(view, items) if "attempts" in columns else {},
        "new": new,
        "most_new": _NEW,
        "anchor": anchor or (items[0].execution_id if items and not view.query.get("cursor") else ""),
        "names": sorted({each.workflow_id for each in items}),
    }
    stream = filter_text({name: value for name, value in terms.items() if name in ("status", "workflow")})
    return Shown(template="runs.html", title="Runs", values=values, live=view.url("/live", filter=stream))


_RANGE = ("age<", "age>")


def _choose_range(view: View) -> Response:
    """Put a range of time into the filter, and remember it for the next time that the runs are opened without one."""
    terms = {name: value for name, value in _terms(view, view.query.get("filter", "")).items() if name not in _RANGE}
    chosen = view.query.get("younger", "") or view.query.get("range", "")
    given = {"age<": chosen.strip(), "age>": view.query.get("older", "").strip()}
    asked = filter_text({name: value for name, value in given.items() if value not in ("", "any")})
    parse_filter(asked, RUN_FIELDS)
    view.remembered["range"] = asked
    text = " ".join(filter(None, (filter_text(terms), asked)))
    kept = view.url("/runs", columns=view.query.get("columns"), filter=text)
    return RedirectResponse(kept, 303)


def _remembered_range(view: View) -> str:
    """Return the terms of the remembered range; empty for none, and for a cookie that was changed."""
    try:
        terms = parse_filter(view.preference("range"), RUN_FIELDS)
    except HttpProblem:
        return ""
    return filter_text({name: value for name, value in terms.items() if name in _RANGE})


def _views(view: View) -> dict[str, SavedView]:
    """Return the saved views by name."""
    try:
        return msgspec.json.decode(view.preference("views") or "{}", type=dict[str, SavedView])
    except msgspec.MsgspecError:  # the cookie was changed
        return {}


async def save_view(view: View) -> Response:
    """Keep the filter and columns of the list of runs under a name in the browser, or forget them."""
    form = await view.form()
    name, kept = form.get("name", "").strip(), _views(view)
    if not name or len(name) > _LONGEST_NAME:
        raise HttpProblem("invalid", f"give the view a name of at most {_LONGEST_NAME} characters")
    shown = SavedView(form.get("filter", ""), form.get("columns", ""))
    if form.get("action") == "forget":
        kept.pop(name, None)
    else:
        parse_filter(shown.filter, RUN_FIELDS)
        kept[name] = shown
    text = msgspec.json.encode(kept).decode()
    if len(quote(text)) > _MOST_VIEWS:
        raise HttpProblem("invalid", "the browser keeps no more views: forget one first")
    view.remembered["views"] = "" if not kept else text
    return RedirectResponse(view.url("/runs", filter=shown.filter, columns=shown.columns), 303)


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
    try:
        summary = await view.get("get_run", {"execution_id": anchor})
    except NotFound:
        return None, 0
    # It matches the filter no longer, or more than a page is newer: its place in time is where the page begins.
    at = summary.created_at + timedelta(milliseconds=1)
    count = sum(each.created_at >= at for each in newer)
    return signer.cursor(binding, ExecutionSummary("", "", "", 0, Status.PENDING, 0, at, at)), count


async def _progress(view: View, items: list[ExecutionSummary]) -> dict[str, Progress]:
    """Return the progress of each run that has not ended."""
    going = [each.execution_id for each in items if each.status not in FINAL]
    return {each: await view.get("get_progress", {"execution_id": each}) for each in going}


async def _attempts(view: View, items: list[ExecutionSummary]) -> dict[str, int]:
    """Return the most attempts that a step of each run has had; nothing for a run too long to be read for a list."""
    found: dict[str, int] = {}
    for each in items:
        if each.revision <= _SHORT:
            steps: list[StepRecord] = (await view.get("list_steps", {"execution_id": each.execution_id})).items
            found[each.execution_id] = max((len(step.attempts) for step in steps), default=0)
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


def _words(action: str) -> str:
    """Return an action as the begin of a title."""
    return {"delete_payloads": "Delete the payloads of"}.get(action, action.capitalize())


async def plan_bulk(view: View) -> Shown:
    """Show what an action on many runs would do, before it is done."""
    ids, form = await _many(view)
    action = form.get("action", "")
    if action not in _ACTIONS:
        raise HttpProblem("invalid", f"the action is one of {', '.join(_ACTIONS)}")
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
        "words": _words(action),
        "body": body,
    }
    return Shown(
        template="bulk.html",
        title=f"{_words(action)} {report.count} run{'' if report.count == 1 else 's'}",
        values=values,
        crumbs=run_crumbs(view),
    )


async def run_bulk(view: View) -> Response:
    """Carry out an action on many runs, and lead to how far it is."""
    ids, form = await _many(view)
    action, reason = form.get("action", ""), form.get("reason", "").strip()
    if not reason:
        raise HttpProblem("invalid", "say why: the audit keeps the reason")
    if form.get("count", "").isdecimal() and int(form["count"]) > 100 and form.get("typed", "").strip() != form["count"]:
        raise HttpProblem("invalid", f"type the number {form['count']} to act on so many runs")
    body: dict[str, Any] = {"action": action, "hash": form.get("hash", "")}
    body |= {"ids": ids} if ids else {"filter": form.get("filter", "")}
    report: BulkReport = await view.act("bulk_runs", body=body, reason=reason)
    return RedirectResponse(view.url(f"/bulk/{report.bulk_id}"), 303)


async def show_bulk(view: View) -> Shown:
    """Show how far an action on many runs is, and which were refused."""
    report: BulkReport = await view.get("get_bulk")
    values = {
        "report": report,
        "words": _words(report.action),
        "skipped": report.count - report.done - report.failed if report.is_ended else 0,
    }
    return Shown(
        template="bulk_done.html",
        title=f"{_words(report.action)} {report.count} run{'' if report.count == 1 else 's'}",
        values=values,
        crumbs=run_crumbs(view),
    )


async def abort_bulk_form(view: View) -> Response:
    """Begin with no further run."""
    form = await view.form()
    await view.act("abort_bulk", reason=form.get("reason"))
    return RedirectResponse(view.url(f"/bulk/{view.path['bulk_id']}"), 303)


async def _many(view: View) -> tuple[list[str], dict[str, str]]:
    """Return the ids of the selected runs, unless all that match are chosen, and the other fields of the form."""
    form = await view.form()
    ids = [value for name, value in await form_fields(view.request) if name == "id"]
    return ([] if form.get("all") == "all" else ids), form


SCREENS = (
    screen("GET /runs", show_runs),
    screen("GET /run-counts", show_run_counts, rail="/runs"),
    screen("GET /run-export", export_runs, rail="/runs", is_page=False),
    screen("POST /run-views", save_view, rail="/runs", is_page=False),
    screen("POST /bulk", plan_bulk, Role.OPERATOR, rail="/runs"),
    screen("POST /bulk/run", run_bulk, Role.OPERATOR, rail="/runs"),
    screen("GET /bulk/{bulk_id}", show_bulk, rail="/runs"),
    screen("POST /bulk/{bulk_id}/abort", abort_bulk_form, Role.OPERATOR, rail="/runs"),
)
