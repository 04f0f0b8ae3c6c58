"""Receipts: verify the chain of a run, and take its proof away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from stepwell.model.receipt_chain import Verification
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen, segment

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]


async def show_receipts(view: View) -> Shown | Response:
    """Show the form that verifies a run, and the newest runs."""
    asked = view.query.get("run", "").strip()
    if asked:
        return RedirectResponse(view.url(f"/receipts/{segment(asked)}"), 303)
    page = await view.get("list_runs", limit=50, cursor=view.query.get("cursor"))
    found: dict[str, Verification] = {}
    for each in page.items if "verify" in view.query else ():
        found[each.execution_id] = await view.get("verify_run", {"execution_id": each.execution_id})
    return Shown(template="receipts.html", title="Receipts", values={"page": page, "found": found})


async def show_verification(view: View) -> Shown:
    """Verify every receipt of a run, and show the chain."""
    values = {
        "run": await view.get("get_run"),
        "found": await view.get("verify_run"),
        "page": await view.get("list_receipts", cursor=view.query.get("cursor"), limit=50),
    }
    crumbs = (Crumb(label="Receipts", url=view.url("/receipts")),)
    return Shown(template="verification.html", title=view.path["execution_id"], values=values, crumbs=crumbs)


SCREENS = (
    screen("GET /receipts", show_receipts),
    screen("GET /receipts/{execution_id}", show_verification, rail="/receipts"),
)
