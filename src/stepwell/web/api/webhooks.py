"""Routes of outgoing and incoming webhooks."""

from __future__ import annotations

from typing import Annotated, Literal, get_args
from urllib.parse import quote

import msgspec
from msgspec import Meta

from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.model.queue_item import DEFAULT_QUEUE
from stepwell.model.webhook import WebhookDelivery, WebhookEndpoint, WebhookReceiver
from stepwell.web.paging import CountedQuery, sorted_page
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES", "ReceiverView", "WebhookView"]

EventName = Literal["run.completed", "run.partially_completed", "run.failed", "run.cancelled"]


class PutWebhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The address of messages, and their events."""

    url: Annotated[str, Meta(max_length=2_000)]
    """Where messages go: an ``https://`` address of a public host."""
    events: tuple[EventName, ...] = get_args(EventName)
    """The endings that send a message."""


class PutReceiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workflow that messages start."""

    workflow: Annotated[str, Meta(min_length=1, max_length=512)]
    """It gets the body of a message as its input."""
    queue: Annotated[str, Meta(min_length=1, max_length=512)] = DEFAULT_QUEUE
    """The named queue of its items."""


class ReceiverView(msgspec.Struct, frozen=True, kw_only=True):
    """An address that takes messages; its secret is shown only when it is new."""

    receiver: WebhookReceiver
    path: str
    """Where messages are sent on this server."""
    secret: str | None = None


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint; its secret is shown only when it is new."""

    endpoint: WebhookEndpoint
    secret: str | None = None


async def list_webhooks(call: Call) -> Reply:
    """Return the endpoints of the workspace."""
    return await sorted_page(call, await call.well.webhooks.within(call.workspace).list(), lambda each: each.name, "webhooks")


async def get_webhook(call: Call) -> Reply:
    """Return an endpoint."""
    return Reply(await call.well.webhooks.within(call.workspace).get(call.path["webhook"]))


async def put_webhook(call: Call) -> Reply:
    """Create or change an endpoint; a change enables a disabled one."""
    body: PutWebhook = call.body
    endpoint, secret = await call.well.webhooks.within(call.workspace).put(call.path["webhook"], body.url, events=body.events)
    return Reply(WebhookView(endpoint=endpoint, secret=secret))


async def rotate_webhook(call: Call) -> Reply:
    """Give an endpoint a new secret; for a day messages are signed with both."""
    webhooks, name = call.well.webhooks.within(call.workspace), call.path["webhook"]
    secret = await webhooks.rotate(name)
    return Reply(WebhookView(endpoint=await webhooks.get(name), secret=secret))


async def delete_webhook(call: Call) -> Reply:
    """Delete an endpoint with what waits for it."""
    if not await call.well.webhooks.within(call.workspace).delete(call.path["webhook"]):
        raise NotFound(f"there is no webhook {call.path['webhook']!r}")
    return Reply()


async def list_receivers(call: Call) -> Reply:
    """Return the addresses of the workspace that take messages."""
    return await sorted_page(call, await call.well.webhooks.within(call.workspace).receivers(), lambda each: each.name, "receivers")


async def put_receiver(call: Call) -> Reply:
    """Create or change an address that takes messages, each a request for a run."""
    body: PutReceiver = call.body
    name = call.path["webhook"]
    receiver, secret = await call.well.webhooks.within(call.workspace).put_receiver(name, body.workflow, queue=body.queue)
    root = call.request.scope.get("root_path", "")
    address = f"{root}/hooks/{quote(call.workspace, safe='')}/{quote(name, safe='')}"
    return Reply(ReceiverView(receiver=receiver, path=address, secret=secret))


async def delete_receiver(call: Call) -> Reply:
    """Delete an address that takes messages."""
    if not await call.well.webhooks.within(call.workspace).delete_receiver(call.path["webhook"]):
        raise NotFound(f"there is no receiver {call.path['webhook']!r}")
    return Reply()


async def list_deliveries(call: Call) -> Reply:
    """Return the messages that were not accepted yet."""
    found = await call.well.webhooks.within(call.workspace).deliveries()
    return await sorted_page(call, found, lambda each: each.delivery_id, "deliveries")


async def replay_delivery(call: Call) -> Reply:
    """Send a message again now."""
    return Reply(await call.well.webhooks.within(call.workspace).replay(call.path["delivery_id"]), 202)


ROUTES = (
    api_route("GET /webhooks", list_webhooks, Page[WebhookEndpoint], Role.ADMIN, query=CountedQuery),
    api_route("GET /webhooks/{webhook}", get_webhook, WebhookEndpoint, Role.ADMIN),
    api_route(
        "PUT /webhooks/{webhook}",
        put_webhook,
        WebhookView,
        Role.ADMIN,
        body=PutWebhook,
        example={"url": "https://shop.example.org/hooks"},
    ),
    api_route("POST /webhooks/{webhook}/rotate", rotate_webhook, WebhookView, Role.ADMIN, shows_secret=True),
    api_route("DELETE /webhooks/{webhook}", delete_webhook, None, Role.ADMIN),
    api_route("GET /webhook_receivers", list_receivers, Page[WebhookReceiver], Role.ADMIN, query=CountedQuery),
    api_route(
        "PUT /webhook_receivers/{webhook}",
        put_receiver,
        ReceiverView,
        Role.ADMIN,
        body=PutReceiver,
        example={"workflow": "greet"},
    ),
    api_route("DELETE /webhook_receivers/{webhook}", delete_receiver, None, Role.ADMIN),
    api_route("GET /webhook_deliveries", list_deliveries, Page[WebhookDelivery], Role.ADMIN, query=CountedQuery),
    api_route("POST /webhook_deliveries/{delivery_id}/replay", replay_delivery, WebhookDelivery, Role.ADMIN, status=202),
)
