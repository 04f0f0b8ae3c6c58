"""Scoped state: scopes, keys and values, and editing a value at the revision that was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from msgspec import UNSET
from starlette.responses import RedirectResponse

from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.web.dashboard.form_fields import field_fault, json_field, span_ms_field
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen, segment
from stepwell.web.dashboard.screens.definitions import line_diff
from stepwell.web.problem import HttpProblem

if TYPE_CHECKING:
    from starlette.responses import Response

    from stepwell.state.request_log import AuditEntry

__all__ = ["SCREENS"]

_SEARCHED = 200
"""The entries of the audit among which changes of a key are looked for."""
_REFUSED = 400


def _crumbs(view: View, scope: str | None = None) -> tuple[Crumb, ...]:
    root = Crumb(label="State", url=view.url("/scopes"))
    return (root,) if scope is None else (root, Crumb(label=scope, url=view.url(f"/scopes/{segment(scope)}")))


async def show_scopes(view: View) -> Shown:
    """Show the scopes of the workspace that hold something."""
    page = await view.get("list_scopes", cursor=view.query.get("cursor"), limit=100)
    usage = await view.get("get_usage", {"workspace_id": view.workspace})
    return Shown(template="scopes.html", title="State", values={"page": page, "usage": usage})


async def show_scope(view: View) -> Shown:
    """Show the keys of a scope."""
    prefix = view.query.get("prefix", "")
    page = await view.get("list_keys", prefix=prefix, cursor=view.query.get("cursor"), limit=100)
    values = {"page": page, "prefix": prefix, "scope": view.path["scope"]}
    return Shown(template="scope.html", title=view.path["scope"], values=values, crumbs=_crumbs(view))


async def show_entry(view: View) -> Shown:
    """Show a value, and the form that changes it."""
    changes = await _changes(view)
    values = {"entry": await view.get("get_entry"), "scope": view.path["scope"], "changes": changes, "searched": _SEARCHED}
    return Shown(template="entry.html", title=view.path["key"], values=values, crumbs=_crumbs(view, view.path["scope"]))


async def _changes(view: View) -> list[AuditEntry] | None:
    """Return who changed the value over HTTP, newest first; None for a caller who may not see the audit."""
    if not view.may(Role.ADMIN):
        return None
    address = f"/state/{segment(view.path['scope'])}/keys/{segment(view.path['key'])}"
    entries: list[AuditEntry] = (await view.get("list_audit", limit=_SEARCHED)).items
    # The address of a client is as it was sent, and may have other characters in percent codes.
    return [each for each in entries if unquote(each.resource).endswith(unquote(address)) and each.status < _REFUSED]


async def edit_entry_form(view: View) -> Shown | Response:
    """Change a value: first show the difference, then write it if it was not changed meanwhile."""
    form = await view.form()
    scope, key = view.path["scope"], view.path["key"]
    value = json_field(form, "value")
    if value is UNSET:
        raise field_fault("value", "give the new value as JSON")
    expected = form.get("revision", "")
    if not expected.isdecimal():
        raise field_fault("revision", "reload the page and edit the value again")
    ttl_ms = span_ms_field(form, "ttl")
    if form.get("confirmed") != "yes":
        return await _difference(view, value, int(expected), form)
    body: dict[str, Any] = {"value": value, "ttl_ms": ttl_ms}
    await view.act("put_entry", body=body, expected=int(expected), reason=form.get("reason"))
    return RedirectResponse(view.url(f"/scopes/{segment(scope)}/{segment(key)}", done="saved"), 303)


async def _difference(view: View, value: object, expected: int, form: dict[str, str]) -> Shown:
    try:
        entry = await view.get("get_entry")
        before, revision = _pretty(entry.value), entry.revision
    except NotFound:
        before, revision = "", 0
    if revision != expected:
        raise HttpProblem("precondition_failed", "the value was changed meanwhile; reload the page and edit it again")
    values = {"diff": line_diff(before, _pretty(value)), "form": form, "scope": view.path["scope"], "key": view.path["key"]}
    crumbs = _crumbs(view, view.path["scope"])
    return Shown(template="entry_diff.html", title=view.path["key"], values=values, crumbs=crumbs)


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


async def new_entry_form(view: View) -> Response:
    """Make a key that does not exist yet."""
    form = await view.form()
    scope, key, value = view.path["scope"], form.get("key", ""), json_field(form, "value")
    if not key:
        raise field_fault("key", "give the key a name")
    if value is UNSET:
        raise field_fault("value", "give the value as JSON")
    path = {"scope": scope, "key": key}
    body = {"value": value, "ttl_ms": span_ms_field(form, "ttl")}
    await view.act("put_entry", path, body=body, expected=0, reason=form.get("reason"))
    return RedirectResponse(view.url(f"/scopes/{segment(scope)}/{segment(key)}", done="saved"), 303)


async def delete_entry_form(view: View) -> Response:
    """Delete a key at the revision that was read."""
    form = await view.form()
    revision = form.get("revision", "")
    if not revision.isdecimal():
        raise field_fault("revision", "reload the page and try again")
    await view.act("delete_entry", expected=int(revision), reason=form.get("reason"))
    return RedirectResponse(view.url(f"/scopes/{segment(view.path['scope'])}", done="removed"), 303)


SCREENS = (
    screen("GET /scopes", show_scopes),
    screen("GET /scopes/{scope}", show_scope, rail="/scopes"),
    screen("POST /scopes/{scope}", new_entry_form, Role.OPERATOR, rail="/scopes"),
    screen("GET /scopes/{scope}/{key}", show_entry, rail="/scopes"),
    screen("POST /scopes/{scope}/{key}", edit_entry_form, Role.OPERATOR, rail="/scopes"),
    screen("POST /scopes/{scope}/{key}/delete", delete_entry_form, Role.OPERATOR, rail="/scopes"),
)
