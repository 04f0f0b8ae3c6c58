"""Failed runs in groups: what went wrong, how often, and what was decided about it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse

from stepwell.model.access import Role
from stepwell.model.error_group import ErrorGroup, RetriedGroup
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen, segment
from stepwell.web.problem import HttpProblem

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]

_STATUSES = ("open", "resolved", "ignored")


async def show_errors(view: View) -> Shown:
    """Show the groups of failed runs, the one that failed last first."""
    status = view.query.get("status", "open")
    status = status if status in _STATUSES else None
    failures = view.query.get("failures", "1000")
    page = await view.get("list_errors", status=status, failures=failures, cursor=view.query.get("cursor"), limit=50)
    values: dict[str, Any] = {"page": page, "status": status or "all", "statuses": (*_STATUSES, "all"), "failures": int(failures)}
    return Shown(template="errors.html", title="Errors", values=values, live=view.url("/live", filter="status:FAILED"))


async def show_error_group(view: View) -> Shown:
    """Show one group of failed runs, with its newest ones."""
    group: ErrorGroup = await view.get("get_error_group")
    crumbs = (Crumb(label="Errors", url=view.url("/errors")),)
    values: dict[str, Any] = {"group": group, "page": f"/errors/{segment(group.fingerprint)}"}
    return Shown(template="error_group.html", title=group.kind, values=values, crumbs=crumbs)


async def resolve_error_group_form(view: View) -> Response:
    """Call a group solved."""
    form = await view.form()
    await view.act("resolve_error_group", body={"reason": form.get("reason", "")}, reason=form.get("reason"))
    return _back(view, "resolved")


async def ignore_error_group_form(view: View) -> Response:
    """Ignore a group until something happens."""
    form = await view.form()
    body: dict[str, Any] = {"reason": form.get("reason", "")}
    for name in ("more", "version"):
        text = form.get(name, "").strip()
        if text:
            if not (text.isascii() and text.isdecimal() and len(text) < 10):
                raise HttpProblem("invalid", f"{name} is a whole number from 1, not {text!r}")
            body[name] = int(text)
    if form.get("until", "").strip():
        try:
            until = datetime.fromisoformat(form["until"].strip())
        except ValueError:
            raise HttpProblem("invalid", "until is a date and a time, such as 2026-12-24T18:00") from None
        body["until"] = (until if until.tzinfo else until.replace(tzinfo=UTC)).isoformat()
    await view.act("ignore_error_group", body=body, reason=form.get("reason"))
    return _back(view, "ignored")


async def reopen_error_group_form(view: View) -> Response:
    """Open a group again."""
    await view.act("reopen_error_group")
    return _back(view, "reopened")


async def retry_error_group_form(view: View) -> Shown:
    """Retry every run of a group, and show which continue."""
    form = await view.form()
    group: ErrorGroup = await view.get("get_error_group")
    if group.count > 100 and form.get("count", "").strip() != str(group.count):
        raise HttpProblem("invalid", f"type the number {group.count} to retry so many runs")
    done: RetriedGroup = await view.act("retry_error_group", reason=form.get("reason"))
    crumbs = (Crumb(label="Errors", url=view.url("/errors")),)
    return Shown(template="error_retried.html", title="Retried", values={"done": done, "group": group}, crumbs=crumbs)


def _back(view: View, done: str) -> Response:
    return RedirectResponse(view.url(f"/errors/{segment(view.path['fingerprint'])}", done=done), 303)


SCREENS = (
    screen("GET /errors", show_errors),
    screen("GET /errors/{fingerprint}", show_error_group, rail="/errors"),
    screen("POST /errors/{fingerprint}/resolve", resolve_error_group_form, Role.OPERATOR, rail="/errors"),
    screen("POST /errors/{fingerprint}/ignore", ignore_error_group_form, Role.OPERATOR, rail="/errors"),
    screen("POST /errors/{fingerprint}/reopen", reopen_error_group_form, Role.OPERATOR, rail="/errors"),
    screen("POST /errors/{fingerprint}/retry", retry_error_group_form, Role.OPERATOR, rail="/errors"),
)
