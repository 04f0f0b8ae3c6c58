"""What the parameters of the API mean, with an example of each: for the OpenAPI document and the docstrings of the typed client.

A field of a query says what it means in its docstring, which wins. Here are the parameters that are no such field, those of paths,
headers and pages, and an example for each name.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PARAMETERS", "PATH_PARAMETERS", "Parameter"]


class Parameter(NamedTuple):
    """The meaning of a parameter, and a value that it may have."""

    example: object
    about: str = ""


PARAMETERS = {
    "a": Parameter(3),
    "after": Parameter(12),
    "at": Parameter(4),
    "b": Parameter(5),
    "bulk_id": Parameter("01JD2Q7YB3", "The bulk operation."),
    "code": Parameter("SW-200", "The code of the error, such as ``precondition_failed`` or ``SW-200``."),
    "conversation_id": Parameter("chat-42", "The conversation."),
    "count": Parameter("estimate"),
    "cursor": Parameter("c2lnbmVkLWN1cnNvcg", "The ``next_cursor`` of the page before; null for the first page."),
    "delivery_id": Parameter("msg_01JD2Q7YB3", "The id of the message."),
    "end": Parameter("2026-12-01T00:00:00Z"),
    "execution_id": Parameter("order-7", "The run."),
    "expand": Parameter("progress"),
    "failures": Parameter(1_000),
    "fields": Parameter("execution_id,status", "Only these fields of the reply, or of each item of a list, with commas."),
    "filter": Parameter("status:FAILED"),
    "fingerprint": Parameter("5f2b9c0a7d31", "The fingerprint of the group."),
    "idempotency_key": Parameter("order-7-start", "A text of your own, which makes a retry safe: the request is done once."),
    "if_match": Parameter('"7"', "The ``ETag`` that a GET returned, with its double quotes, or ``*`` for any."),
    "if_none_match": Parameter("*", "``*`` to do it only if there is none yet."),
    "item_id": Parameter("01JD2Q7YB3", "The item."),
    "key": Parameter("seats", "The key."),
    "level": Parameter("min"),
    "limit": Parameter(50, "The size of a page, 1 to 200."),
    "lock": Parameter("nightly-report", "The name of the lock."),
    "name": Parameter("nightly", "The name of what the call is about."),
    "prefer": Parameter("wait=10", "``wait=10`` to wait up to ten seconds for the result."),
    "prefix": Parameter("seat-"),
    "queue": Parameter("mail", "The name of the queue."),
    "scope": Parameter(
        "workflow:checkout",
        "The kind and the names of the scope, such as ``workspace`` or ``custom:prices``.",
    ),
    "start": Parameter("2026-11-01T00:00:00Z"),
    "status": Parameter("open"),
    "ticket": Parameter("Zm9yLW9uZS1zdHJlYW0"),
    "tier": Parameter("scale", "The name of the tier."),
    "token_id": Parameter("9f86d081884c7d65", "The id of the token."),
    "user": Parameter("user-42"),
    "version": Parameter(2),
    "wait": Parameter(10),
    "webhook": Parameter("shop", "The name of the endpoint."),
    "within_ms": Parameter(86_400_000),
    "worker": Parameter("host-1:4711:01JD2Q7YB3", "The worker, as the list of workers names it."),
    "workflow": Parameter("checkout"),
    "workspace": Parameter("acme", "The workspace, with a token for all of the store."),
    "workspace_id": Parameter("acme", "The workspace."),
}
"""By name; a header is named as an argument of the client: ``if_match``."""

PATH_PARAMETERS = PARAMETERS | {"limit": Parameter("concurrency", "The name of the limit.")}
"""The same for parts of a path, which may have the name of something else."""
