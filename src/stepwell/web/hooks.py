"""The address that takes messages of other systems, ``/hooks/{workspace}/{name}``: signed, and enqueued once."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stepwell.clock import from_ms
from stepwell.errors import InvalidInput, LimitExceeded, StepwellError
from stepwell.model.limits import Limits
from stepwell.model.value import parse
from stepwell.state.request_log import AuditEntry
from stepwell.web.dispatch import problem_response, request_id_of
from stepwell.web.problem import HttpProblem
from stepwell.web.request_body import read_body
from stepwell.web.server_state import Server

__all__ = ["HookPage"]

log = logging.getLogger(__name__)

_LONGEST_ID = 200


class HookPage:
    """Takes messages by the rules of Standard Webhooks: their signature is what says who sends them."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def receive(self, request: Request) -> Response:
        """Enqueue a run for a message. The same ``webhook-id`` again is the same item."""
        try:
            return await self._received(request)
        except (HttpProblem, StepwellError) as error:
            return problem_response(request, error)

    async def _received(self, request: Request) -> Response:
        well, limits = self._server.well, self._server.limits
        workspace, name = request.path_params["workspace"], request.path_params["name"]
        body = await read_body(request, limits.body_bytes, limits.body_seconds)
        message_id = request.headers.get("webhook-id", "")
        try:
            receiver = await well.webhooks.within(workspace).verified(
                name,
                message_id=message_id,
                timestamp=request.headers.get("webhook-timestamp", ""),
                signature=request.headers.get("webhook-signature", ""),
                body=body,
            )
        except InvalidInput:  # no such name can exist
            receiver = None
        if receiver is None or not message_id or len(message_id) > _LONGEST_ID or not message_id.isprintable():
            raise HttpProblem(
                "unauthorized", "the signature is wrong, the message is older than five minutes, or nobody receives here"
            )
        value = _value_of(body, limits.body_bytes)
        key = f"webhook:{name}:{message_id}"
        item = await well.enqueue(receiver.workflow, value, workspace=workspace, queue=receiver.queue, key=key)
        if item.is_new:
            await self._note(request, workspace, name)
        return JSONResponse({"item_id": item.item_id, "execution_id": item.execution_id, "is_new": item.is_new}, 202)

    async def _note(self, request: Request, workspace: str, name: str) -> None:
        entry = AuditEntry(
            entry_id="",
            at=from_ms(0),  # the store sets both
            actor=f"webhook {name}",
            action="receive_webhook",
            resource=request.url.path,
            status=202,
            request_id=request_id_of(request),
        )
        try:
            await self._server.well.requests.note(workspace, entry)
        except StepwellError as error:
            log.error("the audit lacks request %s (receive_webhook of %s): %s", entry.request_id, name, error)


def _value_of(body: bytes, most_bytes: int) -> object:
    try:
        return parse(body.decode("utf-8"), Limits(value_bytes=most_bytes), what="the body")
    except UnicodeDecodeError:
        raise HttpProblem("malformed", "the body is not UTF-8") from None
    except LimitExceeded:
        raise
    except StepwellError as error:
        raise HttpProblem("malformed", error.message) from None
