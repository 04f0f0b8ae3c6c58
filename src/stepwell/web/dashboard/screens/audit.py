"""The audit: who changed what, when and why."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from starlette.responses import Response

from stepwell.model.access import Role
from stepwell.web.dashboard.screen import Shown, View, screen

if TYPE_CHECKING:
    from stepwell.state.request_log import AuditEntry

__all__ = ["SCREENS", "cell"]

_COLUMNS = ("at", "actor", "token_id", "action", "resource", "status", "reason", "request_id")
_MOST_EXPORTED = 10_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def cell(value: object) -> str:
    """Return a cell of a CSV file that no spreadsheet takes for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


async def show_audit(view: View) -> Shown:
    """Show the newest changes that were requested over HTTP."""
    page = await view.get("list_audit", cursor=view.query.get("cursor"), limit=50)
    return Shown(template="audit.html", title="Audit", values={"page": page})


async def export_audit(view: View) -> Response:
    """Return the audit as a CSV file, newest entries first."""
    text, cursor, count = io.StringIO(), None, 0
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    while count < _MOST_EXPORTED:
        page = await view.get("list_audit", limit=200, cursor=cursor)
        for entry in page.items:
            writer.writerow(_row(entry))
        count += len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            break
    headers = {"content-disposition": 'attachment; filename="audit.csv"', "cache-control": "no-store"}
    return Response(text.getvalue(), 200, headers, "text/csv; charset=utf-8")


def _row(entry: AuditEntry) -> list[str]:
    return [entry.at.isoformat(), *(cell(getattr(entry, name)) for name in _COLUMNS[1:])]


SCREENS = (
    screen("GET /audit", show_audit, Role.ADMIN),
    screen("GET /audit/export", export_audit, Role.ADMIN, rail="/audit", is_page=False),
)
