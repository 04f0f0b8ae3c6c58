"""Approvals: the answers that waiting runs accept now, and links with which a person without an account gives one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from starlette.responses import RedirectResponse

from stepwell.model.access import Role
from stepwell.web.dashboard.form_fields import field_fault, json_field, span_ms_field
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS", "answer_of"]


def answer_of(form: dict[str, str], by: str) -> Any:
    """Return the value of the signal that a form answers with: a decision on an approval, or the JSON value of the form.

    - ``by``: who answers.
    """
    decision = form.get("decision", "")
    if decision not in ("approve", "reject", ""):
        raise field_fault("decision", "approve or reject")
    if not decision:
        value = json_field(form, "value")
        return None if value is UNSET else value
    answer: dict[str, Any] = {"by": by, "is_approved": decision == "approve"}
    if form.get("comment", "").strip():
        answer["comment"] = form["comment"].strip()[:2_000]
    return answer


async def show_approvals(view: View) -> Shown:
    """Show what waits for a person."""
    page = await view.get("list_approvals", cursor=view.query.get("cursor"), limit=50)
    return Shown(template="approvals.html", title="Approvals", values={"page": page}, live=view.url("/live"))


async def answer_form(view: View) -> Response:
    """Answer an approval or a signal."""
    form = await view.form()
    body = {"name": form.get("name", ""), "value": answer_of(form, form.get("by", "").strip() or view.identity.name)}
    await view.act("signal_run", {"execution_id": form.get("run", "")}, body=body, reason=form.get("comment") or form.get("reason"))
    return RedirectResponse(view.url("/approvals", done="signalled"), 303)


async def link_form(view: View) -> Shown:
    """Create a link with which a person without an account answers once."""
    form = await view.form()
    body: dict[str, Any] = {"signal": form.get("name", "")}
    if form.get("by", "").strip():
        body["by"] = form["by"].strip()
    ttl_ms = span_ms_field(form, "for")
    if ttl_ms is not None:
        body["ttl_ms"] = ttl_ms
    link = await view.act("create_link", {"execution_id": form.get("run", "")}, body=body, reason=form.get("reason"))
    crumbs = (Crumb(label="Approvals", url=view.url("/approvals")),)
    return Shown(template="approval_link.html", title="A link to answer", values={"link": link, "form": form}, crumbs=crumbs)


SCREENS = (
    screen("GET /approvals", show_approvals),
    screen("POST /approvals/answer", answer_form, Role.OPERATOR, rail="/approvals"),
    screen("POST /approvals/link", link_form, Role.OPERATOR, rail="/approvals"),
)
