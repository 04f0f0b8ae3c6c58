"""Home, and the search for a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import RedirectResponse

from stepwell.errors import NotFound
from stepwell.maintenance.usage import Usage
from stepwell.model.access import Role
from stepwell.model.error_group import ErrorGroup
from stepwell.model.status import Status
from stepwell.queue.statistics import LaneStats
from stepwell.queue.worker_presence import LATE_SECONDS, WorkerPresence
from stepwell.web.api.approvals import OpenOffer
from stepwell.web.api.runs import RunHours
from stepwell.web.dashboard.screen import Shown, View, screen, segment
from stepwell.web.dashboard.screens.run import page_of

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]

_SHOWN = 5
_FULL = 0.9
"""The share of its depth from which on a queue is listed as nearly full."""


class Need(NamedTuple):
    """A line of the list of what needs attention."""

    icon: str
    text: str
    url: str
    detail: str = ""


async def show_home(view: View) -> Shown:
    """Show what runs, what waits, what failed, and what needs attention."""
    recent = (await view.get("list_runs", limit=10)).items
    if not recent:
        startable = (await view.get("list_workflows", limit=_SHOWN)).items
        return Shown(template="home.html", title="Home", values={"recent": [], "startable": startable}, live=view.url("/live"))
    counts = (await view.get("count_runs")).items
    groups: list[ErrorGroup] = (await view.get("list_errors", limit=200)).items
    lanes: list[LaneStats] = (await view.get("list_lanes")).items
    begun: RunHours = await view.get("count_hours")
    hours = [sum(each) for each in zip(*(group.hours for group in groups), strict=True)] or [0] * 24
    values: dict[str, Any] = {
        "recent": recent,
        "counts": {str(each.status): f"{each.count:,}{'' if each.is_exact else '+'}" for each in counts},
        "hours": hours,
        "begun": [sum(each) for each in zip(*begun.counts.values(), strict=True)],
        "waiting_hours": begun.counts[Status.WAITING],
        "pending_hours": begun.counts[Status.PENDING],
        "are_hours_exact": begun.is_exact,
        "failed_hour": hours[-1],
        "oldest_ms": 1000 * max((lane.oldest_seconds for lane in lanes if lane.ready), default=0),
        "needs": await _needs(view, groups, lanes),
    }
    return Shown(template="home.html", title="Home", values=values, live=view.url("/live"))


async def _needs(view: View, groups: Sequence[ErrorGroup], lanes: Sequence[LaneStats]) -> list[Need]:
    """Return what needs attention: answers that runs wait for, open groups of errors, dead items, full queues, lost workers."""
    offers: list[OpenOffer] = (await view.get("list_approvals", limit=_SHOWN)).items
    needs = [
        Need(
            "approvals",
            each.title or each.name,
            view.url(page_of(each.execution_id)),
            f"{each.kind} for {each.execution_id} of {each.workflow_id}",
        )
        for each in offers
    ]
    for group in [group for group in groups if group.status == "open"][:_SHOWN]:
        where = f" in {group.step}" if group.step else ""
        needs.append(
            Need(
                "errors",
                f"{group.kind}{where}",
                view.url(f"/errors/{group.fingerprint}"),
                f"{group.count} run{'' if group.count == 1 else 's'}",
            )
        )
    dead = (await view.get("list_items", filter="status:FAILED", limit=_SHOWN)).items
    if dead:
        more = "+" if len(dead) == _SHOWN else ""
        needs.append(Need("queues", f"{len(dead)}{more} dead items", view.url("/queues"), "redrive or drop them"))
    return [*needs, *await _full(view, lanes), *await _lost(view)]


async def _full(view: View, lanes: Sequence[LaneStats]) -> list[Need]:
    """Return the queue of the workspace if it has hardly any room left: what comes when it is full is refused."""
    depth = sum(lane.depth for lane in lanes if lane.workspace_id == view.workspace)
    if not depth:
        return []
    try:
        usage: Usage = await view.get("get_usage", {"workspace_id": view.workspace})
    except NotFound:  # a workspace that was never put has no limits
        return []
    most = usage.amounts["queue_depth"].maximum
    if most is None or depth < _FULL * most:
        return []
    return [Need("queues", f"{depth:,} of {most:,.0f} items wait", view.url("/queues"), "a full queue refuses more")]


async def _lost(view: View) -> list[Need]:
    """Return the workers whose heartbeat is late, for those who may see workers."""
    if view.identity.workspace is not None or not view.may(Role.ADMIN):
        return []
    workers: list[WorkerPresence] = (await view.get("list_workers")).items
    late = [each for each in workers if (view.now - each.seen_at).total_seconds() > LATE_SECONDS]
    return [
        Need("workers", f"worker {each.name}", view.url("/workers"), f"not seen since {each.seen_at:%H:%M:%S} UTC") for each in late
    ]


_DEMO = """
name: demo
description: Make breakfast, and ask whether it is good.
do:
  - parallel:
      tea: {wait: 1s}
      toast: {wait: 2s}
    name: prepare
  - approval: Is breakfast ready?
    name: taste
    timeout_seconds: 1d
  - wait: 1s
    name: serve
"""
"""What the button of the empty home runs: it needs no code of its own, and shows a picture, a timeline and an approval."""


async def run_demo(view: View) -> Response:
    """Store the demonstration as a definition, and run it."""
    form = await view.form()
    await view.act("put_definition", {"name": "demo"}, {"document": _DEMO}, reason=form.get("reason"))
    started = await view.act("start_run", body={"workflow": "demo"})
    return RedirectResponse(view.url(page_of(started.execution_id), done="started"), 303)


async def run_first(view: View) -> Response:
    """Start a workflow without an input, from the empty home."""
    form = await view.form()
    started = await view.act("start_run", body={"workflow": form.get("workflow", "")})
    return RedirectResponse(view.url(page_of(started.execution_id), done="started"), 303)


async def search(view: View) -> Response:
    """Find a run by its id or a part of it."""
    asked = view.query.get("q", "").strip()
    if not asked:
        return RedirectResponse(view.url("/runs"), 303)
    try:
        await view.get("get_run", {"execution_id": asked})
    except NotFound:
        part = asked.replace('"', "")
        return RedirectResponse(view.url("/runs", filter=f'id:"{part}"'), 303)
    return RedirectResponse(view.url(f"/runs/{segment(asked)}"), 303)


SCREENS = (
    screen("GET /", show_home),
    screen("POST /", run_first, Role.OPERATOR),
    screen("POST /demo", run_demo, Role.ADMIN, rail="/"),
    screen("GET /search", search, is_page=False),
)
