"""The frame around every page: rail, workspaces, preferences, keys, and how a page becomes a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.errors import StepwellError
from stepwell.model.access import Role
from stepwell.queue.workspaces import Workspace
from stepwell.web.dashboard.rendering import html_page
from stepwell.web.dashboard.screen import Shown, View
from stepwell.web.problem import HttpProblem, problem_of

if TYPE_CHECKING:
    from starlette.responses import Response

    from stepwell.web.route import RouteTable

__all__ = ["KEYS", "NOTICES", "RAIL", "error_response", "page_response"]


class RailEntry(NamedTuple):
    """An entry of the rail."""

    path: str
    label: str
    icon: str
    key: str
    """Pressed after ``g``."""


RAIL = (
    RailEntry("/", "Home", "home", "h"),
    RailEntry("/runs", "Runs", "runs", "r"),
    RailEntry("/errors", "Errors", "errors", "e"),
    RailEntry("/approvals", "Approvals", "approvals", "p"),
    RailEntry("/queues", "Queues", "queues", "q"),
    RailEntry("/schedules", "Schedules", "schedules", "s"),
    RailEntry("/workers", "Workers", "workers", "w"),
    RailEntry("/definitions", "Definitions", "definitions", "d"),
    RailEntry("/scopes", "State", "scopes", "t"),
    RailEntry("/receipts", "Receipts", "receipts", "v"),
    RailEntry("/audit", "Audit", "audit", "a"),
    RailEntry("/system", "System", "system", "y"),
)
"""The entries of the rail. One is shown once a screen answers at its path."""

KEYS = (
    ("/", "Filter, or search"),
    ("g then a letter", "Go: h home, r runs, e errors, q queues, s schedules, w workers, d definitions"),
    ("j  k", "Next or previous row"),
    ("Enter", "Open the row"),
    ("x", "Select the row; X: all from the last one selected"),
    (".", "The actions of the page"),
    ("a", "Select all that match"),
    ("c", "Cancel"),
    ("p", "Pause the run"),
    ("R", "Retry"),
    ("F", "Fork or rewind"),
    ("l", "Live updates on or off"),
    ("[  ]", "Previous or next failed step"),
    ("t", "Timeline"),
    ("s", "State"),
    ("v", "Table of the timeline"),
    ("f", "Failed only"),
    ("z", "Fold or show idle gaps"),
    ("y", "Copy the id"),
    ("Esc", "Back, or close"),
    ("?", "These keys"),
)
"""The keys that the page listens to."""

NOTICES = {
    "started": "The run was started.",
    "cancelled": "Cancellation was requested. It is acknowledged when the run's code or worker takes it.",
    "cancel_step": "The step was cancelled.",
    "run_paused": "The run is paused: what is under way may end, and nothing new begins.",
    "run_resumed": "The run goes on.",
    "drained": "The worker takes nothing more from its next heartbeat on, within 20 seconds, and hands back what it runs.",
    "undrained": "The worker takes work again from its next heartbeat on, within 20 seconds.",
    "released": "Other workers take its runs now.",
    "retried": "The run continues at the step that failed.",
    "signalled": "The signal was sent.",
    "forked": "The fork was made.",
    "deleted": "The run was deleted with its history.",
    "saved": "The change was saved.",
    "resolved": "The group is resolved. It opens again with the next failure of its kind.",
    "ignored": "The group is ignored until then.",
    "reopened": "The group is open.",
    "paused": "It is paused.",
    "resumed": "It goes on.",
    "revoked": "It was revoked.",
    "redriven": "The item runs again.",
    "enqueued": "It was enqueued.",
    "removed": "It was deleted.",
    "backed_up": "The store was backed up.",
    "replayed": "The message is sent again now.",
}
"""What a page says after an action, by the parameter ``done`` of its address: never a text from the address itself."""


async def page_response(view: View, shown: Shown, table: RouteTable[Any]) -> Response:
    """Return a page in its frame."""
    values = {**await _frame(view, table), **shown.values}
    values |= {
        "title": shown.title,
        "crumbs": shown.crumbs,
        "live": shown.live,
        "notice": NOTICES.get(view.query.get("done", "")),
    }
    return html_page(view.request, shown.template, values, status=shown.status, nonce=view.nonce)


async def error_response(view: View, error: HttpProblem | StepwellError, table: RouteTable[Any], request_id: str) -> Response:
    """Return the page for an error: what happened, and what to do."""
    status, problem, headers = problem_of(error, instance=view.request.url.path, request_id=request_id, root=view.root)
    values: dict[str, Any] = {
        **await _frame(view, table),
        "title": "Gone" if status == 410 else "Not found" if status == 404 else "Not allowed" if status == 403 else "Error",
        "crumbs": (),
        "live": None,
        "notice": None,
        "problem": problem,
        "is_form": view.request.method == "POST",
    }
    response = html_page(view.request, "error.html", values, status=status, nonce=view.nonce)
    for name, value in headers.items():
        response.headers.setdefault(name, value)
    return response


async def _frame(view: View, table: RouteTable[Any]) -> Mapping[str, Any]:
    paths = {screen.path for screen in table.routes if screen.method == "GET"}
    return {
        "view": view,
        "url": view.url,
        "here": view.here,
        "may": view.may,
        "rail": [entry for entry in RAIL if entry.path in paths],
        "current": view.screen.rail or view.screen.path,
        "workspaces": await _workspaces(view),
        "keys": KEYS,
        "roles": tuple(map(str, Role)),
        "has_session": bool(view.request.cookies),
    }


async def _workspaces(view: View) -> list[str]:
    """Return the workspaces that the caller may look at; its own, if it has only one or the store is away."""
    if view.identity.workspace is not None:
        return [view.workspace]
    try:
        found: list[Workspace] = await view.server.well.workspaces.list()
    except StepwellError:
        return [view.workspace]
    return sorted({view.workspace, *(each.workspace_id for each in found)})
