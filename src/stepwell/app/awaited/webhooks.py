"""Outgoing and incoming webhooks of a workspace."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from stepwell.model.ids import Id, id_text
from stepwell.model.queue_item import DEFAULT_QUEUE
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.webhook import EVENTS, WebhookDelivery, WebhookEndpoint, WebhookReceiver
from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.webhook_receivers import WebhookReceiverOperations
from stepwell.state.webhooks import WebhookOperations

__all__ = ["AsyncWebhooks"]


class AsyncWebhooks:
    """The webhooks of one workspace, outgoing and incoming: ``well.webhooks``.

    A message for each endpoint lands in the commit that ends a run, so it is sent if and only if the run has ended. Workers send
    it, and again after a failure for three days.
    """

    def __init__(
        self,
        operations: WebhookOperations,
        receivers: WebhookReceiverOperations,
        driver: AsyncDriver,
        workspace: str = DEFAULT_WORKSPACE,
    ) -> None:
        self._do, self._receivers, self._driver, self._workspace = operations, receivers, driver, workspace

    def within(self, workspace: Id) -> AsyncWebhooks:
        """Return the webhooks of another workspace.

        - ``workspace``: the id of the workspace.
        """
        return AsyncWebhooks(self._do, self._receivers, self._driver, id_text(workspace))

    async def put(self, name: str, url: str, *, events: Sequence[str] = EVENTS) -> tuple[WebhookEndpoint, str | None]:
        """Create or change an endpoint; return it, and its secret if it is new. A change enables a disabled endpoint.

        - ``name``: its name in the workspace.
        - ``url``: where messages go: an ``https://`` address of a public host.
        - ``events``: some of ``run.completed``, ``run.partially_completed``, ``run.failed`` and ``run.cancelled``.

        Other processes know of it after at most five seconds.

        Raise ``InvalidInput`` for another address or event.
        """
        return await self._driver.run(self._do.put(self._workspace, name, url, tuple(events)))

    async def rotate(self, name: str) -> str:
        """Give an endpoint a new secret, and return it. For a day messages are signed with both.

        - ``name``: the endpoint's name in the workspace.

        Raise ``NotFound`` if there is no such endpoint.
        """
        return await self._driver.run(self._do.rotate(self._workspace, name))

    async def get(self, name: str) -> WebhookEndpoint:
        """Return an endpoint.

        - ``name``: the endpoint's name in the workspace.

        Raise ``NotFound`` if there is none.
        """
        return await self._driver.run(self._do.get(self._workspace, name))

    async def list(self) -> list[WebhookEndpoint]:
        """Return the endpoints of the workspace, sorted by name."""
        return await self._driver.run(self._do.endpoints(self._workspace))

    async def delete(self, name: str) -> bool:
        """Delete an endpoint with what waits for it; return whether it existed.

        - ``name``: the endpoint's name in the workspace.
        """
        return await self._driver.run(self._do.delete(self._workspace, name))

    async def deliveries(self) -> builtins.list[WebhookDelivery]:
        """Return the messages that were not accepted yet, the oldest first; those that were given up are kept for a week."""
        return await self._driver.run(self._do.deliveries(self._workspace))

    async def replay(self, delivery_id: str) -> WebhookDelivery:
        """Send a message again now, and return it.

        - ``delivery_id``: the message's id, as ``deliveries`` lists it.

        Raise ``NotFound`` if it was accepted or dropped.
        """
        return await self._driver.run(self._do.replay(self._workspace, delivery_id))

    async def put_receiver(self, name: str, workflow: str, *, queue: str = DEFAULT_QUEUE) -> tuple[WebhookReceiver, str | None]:
        """Create or change an address of the server that takes messages; return it, and its secret if it is new.

        A message that is signed with the secret, by the rules of Standard Webhooks, is enqueued once, whatever it is sent again.

        - ``name``: its name in the workspace, which is in its address.
        - ``workflow``: the workflow that a message starts, with the body as its input.
        - ``queue``: the named queue of the items.
        """
        return await self._driver.run(self._receivers.put(self._workspace, name, workflow, queue))

    async def receivers(self) -> builtins.list[WebhookReceiver]:
        """Return the addresses that take messages, sorted by name."""
        return await self._driver.run(self._receivers.receivers(self._workspace))

    async def delete_receiver(self, name: str) -> bool:
        """Delete an address that takes messages; return whether it existed.

        - ``name``: its name in the workspace.
        """
        return await self._driver.run(self._receivers.delete(self._workspace, name))

    async def verified(self, name: str, *, message_id: str, timestamp: str, signature: str, body: bytes) -> WebhookReceiver | None:
        """Return the receiver of a message; None for an unknown one, a wrong signature, and a message that is not of now.

        - ``name``: its name in the workspace.
        - ``message_id``, ``timestamp``, ``signature``: the headers ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``.
        - ``body``: the body as it was sent.
        """
        return await self._driver.run(self._receivers.verified(self._workspace, name, message_id, timestamp, signature, body))
