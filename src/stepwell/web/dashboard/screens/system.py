"""The system: this server and its store, its backups, the access tokens, and the webhooks of the workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import RedirectResponse

from stepwell.errors import StepwellError
from stepwell.maintenance.backup import BackupSummary
from stepwell.model.access import Role
from stepwell.model.webhook import EVENTS
from stepwell.web.api.webhooks import ReceiverView, WebhookView
from stepwell.web.dashboard.form_fields import field_fault, span_ms_field
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen
from stepwell.web.problem import HttpProblem
from stepwell.web.request_body import form_fields

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]


async def show_system(view: View) -> Shown:
    """Show this server and its store, as far as the caller may see them."""
    values: dict[str, Any] = {
        "system": await view.get("get_system") if view.identity.workspace is None and view.may("admin") else None,
        "backups": await _backups(view) if view.identity.workspace is None and view.may("admin") else None,
        "check": await view.get("check_backup") if "check" in view.query else None,
        "tokens": (await view.get("list_tokens", limit=200)).items if view.may("admin") else None,
        "webhooks": (await view.get("list_webhooks", limit=200)).items if view.may("admin") else None,
        "deliveries": (await view.get("list_deliveries", limit=200)).items if view.may("admin") else (),
        "receivers": (await view.get("list_receivers", limit=200)).items if view.may("admin") else (),
        "events": EVENTS,
    }
    return Shown(template="system.html", title="System", values=values)


async def _backups(view: View) -> list[BackupSummary] | str:
    """Return the backups of this server, or why they are not shown."""
    try:
        return (await view.get("list_backups", limit=200)).items
    except HttpProblem as error:
        return error.detail
    except StepwellError as error:
        return error.message


async def make_backup_form(view: View) -> Response:
    """Back the store up."""
    form = await view.form()
    await view.act("make_backup", reason=form.get("reason"))
    return RedirectResponse(view.url("/system", done="backed_up"), 303)


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


async def put_webhook_form(view: View) -> Shown | Response:
    """Create or change an endpoint of webhooks, and show the secret of a new one once."""
    form = await view.form()
    name, url = form.get("name", "").strip(), form.get("url", "").strip()
    if not name:
        raise field_fault("name", "give the endpoint a name")
    events = [value for key, value in await form_fields(view.request) if key == "event"]
    if not events:
        raise field_fault("event", "choose at least one")
    made: WebhookView = await view.act("put_webhook", {"webhook": name}, {"url": url, "events": events}, reason=form.get("reason"))
    if made.secret is None:
        return RedirectResponse(view.url("/system", done="saved"), 303)
    return _secret_of(view, made, "A new webhook")


async def rotate_webhook_form(view: View) -> Shown:
    """Give an endpoint a new secret, and show it once."""
    form = await view.form()
    return _secret_of(view, await view.act("rotate_webhook", reason=form.get("reason")), "A new secret")


def _secret_of(view: View, made: WebhookView, title: str) -> Shown:
    crumbs = (Crumb(label="System", url=view.url("/system")),)
    return Shown(template="webhook_secret.html", title=title, values={"made": made}, crumbs=crumbs)


async def delete_webhook_form(view: View) -> Response:
    """Delete an endpoint with what waits for it."""
    form = await view.form()
    await view.act("delete_webhook", reason=form.get("reason"))
    return RedirectResponse(view.url("/system", done="removed"), 303)


async def put_receiver_form(view: View) -> Shown | Response:
    """Create or change an address that takes messages, and show the secret of a new one once."""
    form = await view.form()
    name = form.get("name", "").strip()
    if not name:
        raise field_fault("name", "give the address a name")
    body = {"workflow": form.get("workflow", "").strip(), "queue": form.get("queue", "").strip() or "default"}
    made: ReceiverView = await view.act("put_receiver", {"webhook": name}, body, reason=form.get("reason"))
    if made.secret is None:
        return RedirectResponse(view.url("/system", done="saved"), 303)
    crumbs = (Crumb(label="System", url=view.url("/system")),)
    address = f"{str(view.request.base_url).rstrip('/').removesuffix(view.root)}{made.path}"
    values = {"made": made, "address": address}
    return Shown(template="receiver_secret.html", title="A new address for messages", values=values, crumbs=crumbs)


async def delete_receiver_form(view: View) -> Response:
    """Delete an address that takes messages."""
    form = await view.form()
    await view.act("delete_receiver", reason=form.get("reason"))
    return RedirectResponse(view.url("/system", done="removed"), 303)


async def replay_delivery_form(view: View) -> Response:
    """Send a message again now."""
    form = await view.form()
    await view.act("replay_delivery", reason=form.get("reason"))
    return RedirectResponse(view.url("/system", done="replayed"), 303)


class Operation(NamedTuple):
    """One address of the API, as the page shows it."""

    method: str
    path: str
    about: dict[str, Any]
    """As it stands in the OpenAPI document."""

    @property
    def body(self) -> str:
        """The name of the type of its body; empty without one."""
        content: dict[str, Any] = self.about.get("requestBody", {}).get("content", {})
        return _type_name(content)

    @property
    def reply(self) -> str:
        """The name of the type of its reply; empty if there is none, or none with a name."""
        success = min(status for status in self.about["responses"] if status.isdecimal())
        return _type_name(self.about["responses"][success].get("content", {}))


def _type_name(content: dict[str, Any]) -> str:
    schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).rpartition("/")[2]


_GROUPS = {
    "openapi.json": "server",
    "whoami": "server",
    "system": "server",
    "problems": "server",
    "backups": "server",
    "migrations": "server",
    "run_counts": "runs",
    "run_hours": "runs",
    "events": "runs",
    "bulk": "runs",
    "tombstones": "retention",
    "queues": "queue",
    "workers": "queue",
    "tiers": "workspaces",
    "workflows": "definitions",
    "webhook_deliveries": "webhooks",
    "webhook_receivers": "webhooks",
}
"""Where the page lists addresses whose first word has no section of its own."""


async def show_api(view: View) -> Shown:
    """Show the addresses of the HTTP API: what they take, return and need."""
    document = await view.get("get_openapi")
    groups: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            tag: str = about["tags"][0]
            groups.setdefault(_GROUPS.get(tag, tag.replace("_", " ")), []).append(Operation(method.upper(), path, about))
    values = {"groups": groups, "schemas": dict(sorted(document["components"]["schemas"].items())), "base": f"{view.root}/api/v1"}
    return Shown(template="api.html", title="HTTP API", values=values)


SCREENS = (
    screen("GET /system", show_system),
    screen("GET /api", show_api, rail="/system"),
    screen("POST /system/tokens", create_token_form, Role.ADMIN, rail="/system"),
    screen("POST /system/tokens/{token_id}/revoke", revoke_token_form, Role.ADMIN, rail="/system"),
    screen("POST /system/backups", make_backup_form, Role.ADMIN, rail="/system"),
    screen("POST /system/webhooks", put_webhook_form, Role.ADMIN, rail="/system"),
    screen("POST /system/webhooks/{webhook}/rotate", rotate_webhook_form, Role.ADMIN, rail="/system"),
    screen("POST /system/webhooks/{webhook}/delete", delete_webhook_form, Role.ADMIN, rail="/system"),
    screen("POST /system/receivers", put_receiver_form, Role.ADMIN, rail="/system"),
    screen("POST /system/receivers/{webhook}/delete", delete_receiver_form, Role.ADMIN, rail="/system"),
    screen("POST /system/deliveries/{delivery_id}/replay", replay_delivery_form, Role.ADMIN, rail="/system"),
)
