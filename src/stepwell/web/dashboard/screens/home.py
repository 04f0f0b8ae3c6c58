"""The screens that need no subject: home, and the search for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from stepwell.errors import NotFound
from stepwell.web.dashboard.screen import Shown, View, screen, segment

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]


async def show_home(view: View) -> Shown:
    """Show what runs, what waits, what failed and what needs somebody."""
    recent = (await view.get("list_runs", limit=10)).items
    return Shown(template="home.html", title="Home", values={"recent": recent}, live=view.url("/live"))


async def search(view: View) -> Response:
    """Find a run by its id, or else the runs of a workflow."""
    asked = view.query.get("q", "").strip()
    if not asked:
        return RedirectResponse(view.url("/runs"), 303)
    try:
        await view.get("get_run", {"execution_id": asked})
    except NotFound:
        return RedirectResponse(view.url("/runs", filter=f'workflow:"{asked}"'), 303)
    return RedirectResponse(view.url(f"/runs/{segment(asked)}"), 303)


SCREENS = (
    screen("GET /", show_home),
    screen("GET /search", search),
)
