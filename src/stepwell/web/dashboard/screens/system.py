"""The system: this server and its store, the access tokens, and the webhooks of the workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse

from stepwell.model.access import Role
from stepwell.web.dashboard.form_fields import span_ms_field
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]


async def show_system(view: View) -> Shown:
    """Show this server and its store, as far as the caller may see them."""
    values: dict[str, Any] = {
        "system": await view.get("get_system") if view.identity.workspace is None and view.may("admin") else None,
        "tokens": (await view.get("list_tokens", limit=200)).items if view.may("admin") else None,
        "webhooks": (await view.get("list_webhooks")).items if view.may("admin") else None,
        "deliveries": (await view.get("list_deliveries")).items if view.may("admin") else None,
    }
    return Shown(template="system.html", title="System", values=values)


async def create_token_form(view: View) -> Shown:
    """Create an access token, and show it once."""
    form = await view.form()
    body: dict[str, Any] = {"name": form.get("name", "").strip(), "role": form.get("role", "viewer")}
    ttl_ms = span_ms_field(form, "ttl")
    if ttl_ms is not None:
        body["ttl_ms"] = ttl_ms
    made = await view.act("create_token", body=body, reason=form.get("reason"))
    crumbs = (Crumb(label="System", url=view.url("/system")),)
    return Shown(template="token_new.html", title="A new access token", values={"made": made}, crumbs=crumbs)


async def revoke_token_form(view: View) -> Response:
    """Revoke an access token at once, with its sessions."""
    form = await view.form()
    await view.act("revoke_token", reason=form.get("reason"))
    return RedirectResponse(view.url("/system", done="revoked"), 303)


SCREENS = (
    screen("GET /system", show_system),
    screen("POST /system/tokens", create_token_form, Role.ADMIN, rail="/system"),
    screen("POST /system/tokens/{token_id}/revoke", revoke_token_form, Role.ADMIN, rail="/system"),
)
