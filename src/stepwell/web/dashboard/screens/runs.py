"""The list of runs."""

from __future__ import annotations

from stepwell.web.dashboard.screen import Shown, View, screen

__all__ = ["SCREENS"]


async def show_runs(view: View) -> Shown:
    """Show the runs that match a filter, newest first."""
    text = view.query.get("filter", "")
    page = await view.get("list_runs", filter=text, cursor=view.query.get("cursor"), limit=50)
    values = {"page": page, "filter": text}
    return Shown(template="runs.html", title="Runs", values=values, live=view.url("/live", filter=text))


SCREENS = (screen("GET /runs", show_runs),)
