"""Routes of failed runs in groups."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from stepwell.app.awaited.errors import AsyncErrors
from stepwell.model.access import Role
from stepwell.model.error_group import ErrorGroup, RetriedGroup
from stepwell.web.paging import Count, page_reply
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES"]

Failures = Annotated[int, Meta(ge=1, le=10_000)]
Reason = Annotated[str, Meta(max_length=500)]
Number = Annotated[int, Meta(ge=1, le=10**9)]


class GroupList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which groups to list."""

    status: Literal["open", "resolved", "ignored"] | None = None
    """List only groups with this status."""
    failures: Failures = 1_000
    """How many of the newest failed runs are grouped."""
    limit: Count = 50
    cursor: str | None = None


class GroupQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Among which failed runs to look for a group."""

    failures: Failures = 1_000
    """How many of the newest failed runs are grouped."""


class ResolveGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason why a group is solved."""

    reason: Reason = ""
    """The reason, for people who look later."""


class IgnoreGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Until when to ignore a group; it opens again by whichever comes first."""

    until: datetime | None = None
    """The moment at which it opens again."""
    more: Number | None = None
    """After more than so many further failures."""
    version: Number | None = None
    """With a failure of this version of its workflow, or a newer one."""
    reason: Reason = ""
    """The reason, for people who look later."""


def _errors(call: Call) -> AsyncErrors:
    return call.well.errors.within(call.workspace)


async def list_errors(call: Call) -> Reply:
    """Return the groups of failed runs, the one that failed last first."""
    query: GroupList = call.query
    found = await _errors(call).list(status=query.status, limit=query.failures)
    signer, binding = await call.server.signer(), ["errors", call.workspace, query.status, query.failures]
    start = 0
    if query.cursor is not None:
        after = signer.position(binding, query.cursor)
        start = next((at + 1 for at, group in enumerate(found) if group.fingerprint == after), 0)
    page = found[start : start + query.limit]
    return page_reply(call, page, signer.cursor(binding, page[-1].fingerprint) if start + len(page) < len(found) else None)


async def get_error_group(call: Call) -> Reply:
    """Return a group of failed runs."""
    return Reply(await _errors(call).get(call.path["fingerprint"], limit=call.query.failures))


async def resolve_error_group(call: Call) -> Reply:
    """Call a group solved; the next failure of its kind opens it again."""
    return Reply(await _errors(call).resolve(call.path["fingerprint"], by=call.identity.name, reason=call.body.reason))


async def ignore_error_group(call: Call) -> Reply:
    """Ignore a group until a moment, a number of failures or a version."""
    body: IgnoreGroup = call.body
    group = await _errors(call).ignore(
        call.path["fingerprint"],
        until=body.until,
        more=body.more,
        version=body.version,
        by=call.identity.name,
        reason=body.reason,
    )
    return Reply(group)


async def reopen_error_group(call: Call) -> Reply:
    """Open a group that was resolved or ignored."""
    return Reply(await _errors(call).reopen(call.path["fingerprint"], by=call.identity.name))


async def retry_error_group(call: Call) -> Reply:
    """Retry every run of a group at the step that failed."""
    return Reply(await _errors(call).retry(call.path["fingerprint"]))


ROUTES = (
    api_route("GET /errors", list_errors, Page[ErrorGroup], query=GroupList),
    api_route("GET /errors/{fingerprint}", get_error_group, ErrorGroup, query=GroupQuery),
    api_route(
        "POST /errors/{fingerprint}/resolve",
        resolve_error_group,
        ErrorGroup,
        Role.OPERATOR,
        body=ResolveGroup,
        is_body_optional=True,
    ),
    api_route(
        "POST /errors/{fingerprint}/ignore", ignore_error_group, ErrorGroup, Role.OPERATOR, body=IgnoreGroup, is_body_optional=True
    ),
    api_route("POST /errors/{fingerprint}/reopen", reopen_error_group, ErrorGroup, Role.OPERATOR),
    api_route("POST /errors/{fingerprint}/retry", retry_error_group, RetriedGroup, Role.OPERATOR),
)
