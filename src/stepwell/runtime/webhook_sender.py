"""Send webhooks beside a worker: deliveries that are due, each by one worker, to public addresses only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from stepwell.errors import StepwellError
from stepwell.model.webhook import payload_of, signature_of
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.periodic import PeriodicTask
from stepwell.runtime.steps.http_step import Request, send
from stepwell.state.webhooks import ClaimedDelivery, WebhookOperations

__all__ = ["WebhookSender", "post"]

log = logging.getLogger(__name__)

_BUSY_SECONDS, _IDLE_SECONDS = 1.0, 5.0
_AT_ONCE = 20
_TIMEOUT_SECONDS = 15.0
_MOST_BYTES = 64 * 1024
_ANY_STATUS = tuple(range(100, 600))
"""Redirects among them: they are not followed, so that a message goes nowhere else than to its address."""


def post(claimed: ClaimedDelivery) -> str | None:
    """Send a delivery; return why it was not accepted, or None if it was."""
    body, timestamp = payload_of(claimed.delivery), int(time.time())
    headers = {
        "content-type": "application/json",
        "user-agent": "Stepwell",
        "webhook-id": claimed.delivery.delivery_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature_of(claimed.secrets, claimed.delivery.delivery_id, timestamp, body),
    }
    request = Request(claimed.url, "POST", headers, {}, body, _ANY_STATUS, _MOST_BYTES)
    try:
        status = send(request, time.monotonic() + _TIMEOUT_SECONDS)["status"]
    except (StepwellError, OSError) as error:
        return str(error) or type(error).__name__
    return None if 200 <= status < 300 else f"the receiver answered with status {status}"


class WebhookSender(PeriodicTask):
    """Sends what is due. A store without endpoints costs one read every few seconds.

    - ``counted``: where messages are counted, as ``accepted`` or ``refused``.
    """

    name = "the sender of webhooks"

    def __init__(
        self,
        webhooks: WebhookOperations,
        driver: AsyncDriver,
        counted: Counter[str],
        sender: Callable[[ClaimedDelivery], str | None] = post,
    ) -> None:
        super().__init__()
        self._counted = counted
        self._webhooks, self._driver, self._post = webhooks, driver, sender

    async def work(self) -> float | None:
        """Send the deliveries that are due; return the seconds until the next look."""
        await self._driver.run(self._webhooks.load())
        if not self._webhooks.has_endpoints:
            return _IDLE_SECONDS
        claimed = await self._driver.run(self._webhooks.claim_due(_AT_ONCE))
        await asyncio.gather(*map(self._deliver, claimed))
        return None if len(claimed) == _AT_ONCE else _BUSY_SECONDS

    async def _deliver(self, claimed: ClaimedDelivery) -> None:
        error = await asyncio.to_thread(self._post, claimed)
        self._counted["accepted" if error is None else "refused"] += 1
        if error is not None:
            log.warning(
                "webhook %r of workspace %r was not accepted: %s", claimed.delivery.endpoint, claimed.delivery.workspace, error
            )
        await self._driver.run(self._webhooks.settle(claimed, error))
