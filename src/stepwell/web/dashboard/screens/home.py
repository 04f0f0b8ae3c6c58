"""Home, and the search for a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import RedirectResponse

from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.model.error_group import ErrorGroup
from stepwell.queue.statistics import LaneStats
from stepwell.web.api.approvals import OpenOffer
from stepwell.web.dashboard.screen import Shown, View, screen, segment
from stepwell.web.dashboard.screens.run import page_of

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]

_SHOWN = 5


class Need(NamedTuple):
    """A line of what needs somebody."""

    icon: str
    text: str
    url: str
    detail: str = ""


async def show_home(view: View) -> Shown:
    """Show what runs, what waits, what failed, and what needs somebody."""
    recent = (await view.get("list_runs", limit=10)).items
    if not recent:
        startable = (await view.get("list_workflows", limit=_SHOWN)).items
        return Shown(template="home.html", title="Home", values={"recent": [], "startable": startable}, live=view.url("/live"))
    counts = (await view.get("count_runs")).items
    groups: list[ErrorGroup] = (await view.get("list_errors", limit=200)).items
    lanes: list[LaneStats] = (await view.get("list_lanes")).items
    hours = [sum(each) for each in zip(*(group.hours for group in groups), strict=True)] or [0] * 24
    values: dict[str, Any] = {
        "recent": recent,
        "counts": {str(each.status): f"{each.count:,}{'' if each.is_exact else '+'}" for each in counts},
        "hours": hours,
        "failed_hour": hours[-1],
        "oldest_ms": 1000 * max((lane.oldest_seconds for lane in lanes if lane.ready), default=0),
        "needs": await _needs(view, groups),
    }
    return Shown(template="home.html", title="Home", values=values, live=view.url("/live"))


async def _needs(view: View, groups: Sequence[ErrorGroup]) -> list[Need]:
    """Return what needs somebody: answers that runs wait for, open groups of errors, dead items."""
    offers: list[OpenOffer] = (await view.get("list_approvals", limit=_SHOWN)).items
    needs = [
        Need("approvals", f"{each.title or each.name} for {each.workflow_id}", view.url(page_of(each.execution_id)), each.kind)
        for each in offers
    ]
    for group in [group for group in groups if group.status == "open"][:_SHOWN]:
        where = f" in {group.step}" if group.step else ""
        needs.append(Need("errors", f"{group.kind}{where}", view.url(f"/errors/{group.fingerprint}"), f"{group.count} runs"))
    dead = (await view.get("list_items", filter="status:FAILED", limit=_SHOWN)).items
    if dead:
        more = "+" if len(dead) == _SHOWN else ""
        needs.append(Need("queues", f"{len(dead)}{more} dead items", view.url("/queues"), "redrive or drop them"))
    return needs


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
    screen("GET /search", search, is_page=False),
)
