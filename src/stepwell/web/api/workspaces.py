"""Routes of workspaces, tiers and the access tokens and audit of a workspace."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from stepwell.errors import NotFound
from stepwell.maintenance.usage import Usage
from stepwell.model.access import AccessToken, Role
from stepwell.model.queue_item import Tier, Workspace
from stepwell.queue.workspaces import no_workspace
from stepwell.state.request_log import AuditEntry
from stepwell.web.paging import CountedQuery, PageQuery, page_reply, sorted_page
from stepwell.web.preconditions import check_edit, etag_of
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES"]

Name = Annotated[str, Meta(min_length=1, max_length=512)]
Whole = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]


class WorkspaceBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workspace; what is not given stays, a new one has the tier ``free``."""

    tier: Name | None = None
    """The name of the tier that sets its limits."""
    is_paused: bool | None = None
    """True to start none of its items."""


class TierBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a tier; one that is not given stays, null removes it."""

    concurrency: Whole | UnsetType | None = UNSET
    """How many runs of a workspace run at once."""
    weight: Annotated[float, Meta(ge=0.001, le=1_000_000)] | UnsetType = UNSET
    """The workspace's share when workers are scarce."""
    rate_per_second: Number | UnsetType | None = UNSET
    """How many items of a workspace start per second."""
    queue_depth: Whole | UnsetType | None = UNSET
    """How many items of a workspace may wait."""
    state_bytes: Whole | UnsetType | None = UNSET
    """How large a workspace's scoped state may be."""
    retention_seconds: Number | UnsetType | None = UNSET
    """How long ended items are kept."""
    child_concurrency: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    """How many children run at once below one root."""
    state_keys: Whole | UnsetType | None = UNSET
    """How many keys a workspace's scoped state may have."""
    workflow_state_bytes: Whole | UnsetType | None = UNSET
    """How large the scoped state of each workflow in a workspace may be."""
    workflow_state_keys: Whole | UnsetType | None = UNSET
    """How many keys the scoped state of each workflow in a workspace may have."""


class OverrideBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another value for one limit of a workspace, until it ends by itself."""

    value: Whole | Number | None
    """Null: no limit."""
    ttl_ms: Annotated[int, Meta(ge=1_000, le=31_536_000_000)]
    """How long the override holds."""
    reason: Annotated[str, Meta(max_length=500)] = ""
    """The reason, for people who look at the workspace."""


class CreateToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new access token of the workspace."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    """A name for people, which the audit shows."""
    role: Role = Role.VIEWER
    """What its holder may do."""
    ttl_ms: Annotated[int, Meta(ge=1_000, le=31_536_000_000)] | None = None
    """After this time it is refused; null: it lasts until it is revoked."""


class CreatedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new access token with its secret, which is shown only once."""

    token: AccessToken
    text: str


async def list_workspaces(call: Call) -> Reply:
    """Return the workspaces that the caller reaches."""
    found = await call.well.workspaces.list()
    own = call.identity.workspace
    reached = [each for each in found if own in (None, each.workspace_id)]
    return await sorted_page(call, reached, lambda each: each.workspace_id, "workspaces")


async def get_workspace(call: Call) -> Reply:
    """Return a workspace."""
    found = await call.well.workspaces.get(_reached(call))
    return Reply(found, etag=etag_of(found))


async def _known(call: Call) -> str | None:
    """Return the ETag of the workspace that the address names; None if it does not exist yet."""
    try:
        return etag_of(await call.well.workspaces.get(call.path["workspace_id"]))
    except NotFound:
        return None


def _reached(call: Call) -> str:
    """Return the workspace that the address names; one that the caller does not reach is answered like one that does not exist."""
    workspace_id = call.path["workspace_id"]
    if call.identity.workspace not in (None, workspace_id):
        raise no_workspace(workspace_id)
    return workspace_id


async def put_workspace(call: Call) -> Reply:
    """Create or change a workspace."""
    async with call.server.edits:
        check_edit(call, await _known(call))
        done = await call.well.workspaces.put(call.path["workspace_id"], tier=call.body.tier, is_paused=call.body.is_paused)
    return Reply(done, etag=etag_of(done))


async def pause_workspace(call: Call) -> Reply:
    """Start no more items of a workspace."""
    return Reply(await call.well.workspaces.pause(_reached(call)))


async def resume_workspace(call: Call) -> Reply:
    """Start items of a workspace again."""
    return Reply(await call.well.workspaces.resume(_reached(call)))


async def get_usage(call: Call) -> Reply:
    """Return what a workspace uses of the limits of its tier."""
    return Reply(await call.well.usage.workspace(_reached(call), executions=0))


async def put_override(call: Call) -> Reply:
    """Give a workspace another limit than its tier's for a while; it ends by itself."""
    body: OverrideBody = call.body
    async with call.server.edits:
        check_edit(call, await _known(call))
        done = await call.well.workspaces.override(
            call.path["workspace_id"], call.path["limit"], body.value, span=body.ttl_ms / 1000, reason=body.reason
        )
    return Reply(done, etag=etag_of(done))


async def delete_override(call: Call) -> Reply:
    """End the override of a limit now."""
    async with call.server.edits:
        check_edit(call, await _known(call))
        done = await call.well.workspaces.end_override(call.path["workspace_id"], call.path["limit"])
    return Reply(done, etag=etag_of(done))


async def list_tiers(call: Call) -> Reply:
    """Return the tiers."""
    return await sorted_page(call, await call.well.workspaces.tiers(), lambda each: each.name, "tiers")


async def get_tier(call: Call) -> Reply:
    """Return a tier."""
    found = await _tier(call)
    if found is None:
        raise NotFound(f"there is no tier {call.path['tier']!r}")
    return Reply(found, etag=etag_of(found))


async def _tier(call: Call) -> Tier | None:
    name = call.path["tier"].lower()
    return next((each for each in await call.well.workspaces.tiers() if each.name == name), None)


async def put_tier(call: Call) -> Reply:
    """Create or change a tier."""
    body: TierBody = call.body
    given: dict[str, Any] = {name: getattr(body, name) for name in body.__struct_fields__}
    async with call.server.edits:
        known = await _tier(call)
        check_edit(call, None if known is None else etag_of(known))
        done = await call.well.workspaces.put_tier(call.path["tier"], **given)
    return Reply(done, etag=etag_of(done))


async def list_tokens(call: Call) -> Reply:
    """Return the access tokens of the workspace."""
    found = [each for each in await call.well.access.tokens() if each.workspace == call.workspace]
    return await sorted_page(call, found, lambda each: each.token_id, "tokens")


async def create_token(call: Call) -> Reply:
    """Create an access token of the workspace."""
    body: CreateToken = call.body
    if not call.identity.role.allows(body.role):
        raise HttpProblem(
            "forbidden", f"a caller with the role {call.identity.role} cannot create a token with the role {body.role}"
        )
    ttl = None if body.ttl_ms is None else body.ttl_ms / 1000
    issued = await call.well.access.create_token(body.name, role=body.role, workspace=call.workspace, ttl=ttl)
    return Reply(CreatedToken(token=issued.token, text=issued.text), 201)


async def revoke_token(call: Call) -> Reply:
    """Revoke an access token of the workspace."""
    token_id = call.path["token_id"]
    own = {each.token_id for each in await call.well.access.tokens() if each.workspace == call.workspace}
    if token_id not in own or not await call.well.access.revoke_token(token_id):
        raise NotFound(f"there is no access token {token_id!r}")
    return Reply()


async def list_audit(call: Call) -> Reply:
    """Return a page of the audit, newest first."""
    query: PageQuery = call.query
    signer, binding = await call.server.signer(), ["audit", call.workspace]
    before = None if query.cursor is None else signer.position(binding, query.cursor)
    found = await call.well.requests.audit(call.workspace, before=before, limit=query.limit + 1)
    page = found[: query.limit]
    return page_reply(call, page, signer.cursor(binding, page[-1].entry_id) if len(found) > len(page) else None)


ROUTES = (
    api_route("GET /workspaces", list_workspaces, Page[Workspace], query=CountedQuery),
    api_route("GET /workspaces/{workspace_id}", get_workspace, Workspace),
    api_route(
        "PUT /workspaces/{workspace_id}",
        put_workspace,
        Workspace,
        Role.ADMIN,
        body=WorkspaceBody,
        conditions=("If-Match", "If-None-Match"),
        is_store_wide=True,
        example={"tier": "scale"},
    ),
    api_route("POST /workspaces/{workspace_id}/pause", pause_workspace, Workspace, Role.ADMIN),
    api_route("POST /workspaces/{workspace_id}/resume", resume_workspace, Workspace, Role.ADMIN),
    api_route("GET /workspaces/{workspace_id}/usage", get_usage, Usage),
    api_route(
        "PUT /workspaces/{workspace_id}/overrides/{limit}",
        put_override,
        Workspace,
        Role.ADMIN,
        body=OverrideBody,
        conditions=("If-Match",),
        is_store_wide=True,
        example={"value": 20, "ttl_ms": 604800000, "reason": "import of May"},
    ),
    api_route(
        "DELETE /workspaces/{workspace_id}/overrides/{limit}",
        delete_override,
        Workspace,
        Role.ADMIN,
        is_store_wide=True,
        conditions=("If-Match",),
    ),
    api_route("GET /tiers", list_tiers, Page[Tier], query=CountedQuery),
    api_route("GET /tiers/{tier}", get_tier, Tier),
    api_route(
        "PUT /tiers/{tier}",
        put_tier,
        Tier,
        Role.ADMIN,
        body=TierBody,
        is_store_wide=True,
        conditions=("If-Match", "If-None-Match"),
        example={"concurrency": 8},
    ),
    api_route("GET /access_tokens", list_tokens, Page[AccessToken], Role.ADMIN, query=CountedQuery),
    api_route(
        "POST /access_tokens",
        create_token,
        CreatedToken,
        Role.ADMIN,
        body=CreateToken,
        status=201,
        example={"name": "ci", "role": "operator"},
        shows_secret=True,
    ),
    api_route("DELETE /access_tokens/{token_id}", revoke_token, None, Role.ADMIN),
    api_route("GET /audit", list_audit, Page[AuditEntry], Role.ADMIN, query=PageQuery),
)
