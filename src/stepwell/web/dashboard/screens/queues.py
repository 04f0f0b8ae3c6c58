"""Queues and tiers: what waits and why, who may use how much, and pausing and overriding it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse

from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.model.queue_item import TIER_LIMITS
from stepwell.web.dashboard.form_fields import field_fault, number_field, span_ms_field
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen, segment
from stepwell.web.filters import filter_text

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]

_LIVE_FOR = "/live"


def _crumbs(view: View) -> tuple[Crumb, ...]:
    return (Crumb(label="Queues", url=view.url("/queues")),)


async def show_queues(view: View) -> Shown:
    """Show what waits and runs in each queue, and what the workspace may use."""
    lanes = (await view.get("list_lanes")).items
    here = {"workspace_id": view.workspace}
    found = await view.reply("get_workspace", here)
    workspace = found.body
    tiers = {each.name: each for each in (await view.get("list_tiers", limit=200)).items}
    values = {
        "lanes": lanes,
        "queues": {each.queue: await view.get("get_queue", {"queue": each.queue}) for each in lanes},
        "reasons": await _reasons(view),
        "space": workspace,
        "etag": found.etag,
        "usage": await view.get("get_usage", here),
        "tier": tiers.get(workspace.tier),
        "tiers": tiers.values(),
        "limit_names": TIER_LIMITS,
        "is_store_wide": view.identity.workspace is None,
        "now_ms": round(view.now.timestamp() * 1000),
    }
    return Shown(template="queues.html", title="Queues", values=values, live=view.url(_LIVE_FOR))


async def _reasons(view: View) -> list[Any]:
    """Return why the item of each queue that waits longest, of the newest ones, is not started."""
    waiting = (await view.get("list_items", filter="status:QUEUED", limit=100)).items
    first = {each.queue: each for each in waiting}  # newest first, so that the last of a queue is the oldest
    found: list[Any] = []
    for item in first.values():
        try:
            found.append((item, await view.get("explain_item", {"item_id": item.item_id})))
        except NotFound:  # removed at this very moment
            continue
    return found


async def show_queue(view: View) -> Shown:
    """Show the settings of a queue and its items."""
    queue = view.path["queue"]
    status = view.query.get("status", "")
    terms = filter_text({"queue": queue, **({"status": status} if status else {})})
    found = await view.reply("get_queue")
    values = {
        "queue": found.body,
        "etag": found.etag,
        "page": await view.get("list_items", filter=terms, cursor=view.query.get("cursor"), limit=50),
        "lanes": [each for each in (await view.get("list_lanes")).items if each.queue == queue],
        "status": status,
        "is_store_wide": view.identity.workspace is None,
    }
    return Shown(template="queue.html", title=queue, values=values, crumbs=_crumbs(view), live=view.url(_LIVE_FOR))


async def show_item(view: View) -> Shown:
    """Show a queue item, and why it waits."""
    item = await view.get("get_item")
    values = {"item": item, "reason": await view.get("explain_item")}
    crumbs = (*_crumbs(view), Crumb(label=item.queue, url=view.url(f"/queues/{segment(item.queue)}")))
    return Shown(template="item.html", title=item.item_id, values=values, crumbs=crumbs, live=view.url(_LIVE_FOR))


async def pause_queue_form(view: View) -> Response:
    """Start no more items of a queue."""
    form = await view.form()
    await view.act("pause_queue", reason=form.get("reason"))
    return _to_queue(view, "paused")


async def resume_queue_form(view: View) -> Response:
    """Start items of a queue again."""
    form = await view.form()
    await view.act("resume_queue", reason=form.get("reason"))
    return _to_queue(view, "resumed")


async def limit_queue_form(view: View) -> Response:
    """Set the limits of a queue."""
    form = await view.form()
    body = {"concurrency": number_field(form, "concurrency"), "rate_per_second": number_field(form, "rate_per_second")}
    await view.act("put_queue", body=body, reason=form.get("reason"), expected=form.get("etag", ""))
    return _to_queue(view, "saved")


def _to_queue(view: View, done: str) -> Response:
    return RedirectResponse(view.url(f"/queues/{segment(view.path['queue'])}", done=done), 303)


async def cancel_item_form(view: View) -> Response:
    """Cancel an item."""
    form = await view.form()
    await view.act("cancel_item", reason=form.get("reason"))
    return RedirectResponse(view.url(f"/items/{segment(view.path['item_id'])}", done="cancelled"), 303)


async def redrive_item_form(view: View) -> Response:
    """Run a failed or cancelled item again."""
    form = await view.form()
    await view.act("redrive_item", reason=form.get("reason"))
    return RedirectResponse(view.url(f"/items/{segment(view.path['item_id'])}", done="redriven"), 303)


async def pause_workspace_form(view: View) -> Response:
    """Start no more items of the workspace."""
    form = await view.form()
    await view.act("pause_workspace", {"workspace_id": view.workspace}, reason=form.get("reason"))
    return RedirectResponse(view.url("/queues", done="paused"), 303)


async def resume_workspace_form(view: View) -> Response:
    """Start items of the workspace again."""
    form = await view.form()
    await view.act("resume_workspace", {"workspace_id": view.workspace}, reason=form.get("reason"))
    return RedirectResponse(view.url("/queues", done="resumed"), 303)


async def put_override_form(view: View) -> Response:
    """Give the workspace another limit for a while."""
    form = await view.form()
    ttl_ms = span_ms_field(form, "for")
    if ttl_ms is None:
        raise field_fault("for", "say for how long, such as 7d: an override ends by itself")
    body = {"value": number_field(form, "value"), "ttl_ms": ttl_ms, "reason": form.get("reason", "")}
    path = {"workspace_id": view.workspace, "limit": form.get("limit", "")}
    await view.act("put_override", path, body=body, reason=form.get("reason"), expected=form.get("etag", ""))
    return RedirectResponse(view.url("/queues", done="saved"), 303)


async def end_override_form(view: View) -> Response:
    """End an override now."""
    form = await view.form()
    path = {"workspace_id": view.workspace, "limit": form.get("limit", "")}
    await view.act("delete_override", path, reason=form.get("reason"), expected=form.get("etag", ""))
    return RedirectResponse(view.url("/queues", done="saved"), 303)


SCREENS = (
    screen("GET /queues", show_queues),
    screen("GET /queues/{queue}", show_queue, rail="/queues"),
    screen("POST /queues/{queue}/pause", pause_queue_form, Role.ADMIN, rail="/queues"),
    screen("POST /queues/{queue}/resume", resume_queue_form, Role.ADMIN, rail="/queues"),
    screen("POST /queues/{queue}/limits", limit_queue_form, Role.ADMIN, rail="/queues"),
    screen("GET /items/{item_id}", show_item, rail="/queues"),
    screen("POST /items/{item_id}/cancel", cancel_item_form, Role.OPERATOR, rail="/queues"),
    screen("POST /items/{item_id}/redrive", redrive_item_form, Role.OPERATOR, rail="/queues"),
    screen("POST /workspace/pause", pause_workspace_form, Role.ADMIN, rail="/queues"),
    screen("POST /workspace/resume", resume_workspace_form, Role.ADMIN, rail="/queues"),
    screen("POST /workspace/override", put_override_form, Role.ADMIN, rail="/queues"),
    screen("POST /workspace/end_override", end_override_form, Role.ADMIN, rail="/queues"),
)
