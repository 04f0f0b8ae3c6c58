"""The route of bulk actions: first a dry run that returns a hash, then the action on exactly those runs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from stepwell.errors import StepwellError
from stepwell.model.access import Role
from stepwell.web.api.runs import RUN_FIELDS, check_owned, find_runs
from stepwell.web.filters import parse_filter
from stepwell.web.problem import HttpProblem, kind_of
from stepwell.web.route import Call, Reply, api_route

__all__ = ["ROUTES"]

_MOST = 1_000
_SCANNED = 20_000
_AT_ONCE = 20
_EXAMPLES = 10


class BulkAction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action on the runs that match."""

    action: Literal["cancel", "retry", "delete"]
    """What to do with the runs."""
    filter: str = ""
    """Terms such as ``status:FAILED workflow:checkout``."""
    ids: Annotated[list[Annotated[str, Meta(min_length=1, max_length=512)]], Meta(max_length=1_000)] = []
    """These runs, instead of those that match a filter."""
    hash: str | None = None
    """What a dry run returned; without it, this is a dry run."""


class BulkFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A run for which the action was refused."""

    execution_id: str
    code: str
    detail: str


class BulkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of an action: intended, or carried out."""

    is_dry_run: bool
    count: int
    """How many runs match, at most a thousand: repeat it for more."""
    has_more: bool
    examples: list[str]
    hash: str
    """Send it to act on exactly these runs."""
    done: int = 0
    failures: list[BulkFailure] = []


async def bulk_runs(call: Call) -> Reply:
    """Cancel, retry or delete the runs that match; without a hash, only say which."""
    body: BulkAction = call.body
    if body.action == "delete" and not call.identity.role.allows(Role.ADMIN):
        raise HttpProblem("forbidden", f"deleting needs the role {Role.ADMIN}, and the token has {call.identity.role}")
    terms = parse_filter(body.filter, RUN_FIELDS)
    if bool(terms) is bool(body.ids):
        raise HttpProblem("invalid", "a bulk action needs a filter, such as status:FAILED, or ids, and not both")
    if terms.get("tenant", call.workspace) != call.workspace:
        raise HttpProblem(
            "invalid", "a bulk action is of one workspace: name it as the parameter workspace, not as tenant in the filter"
        )
    if body.ids:
        ids, has_more = list(dict.fromkeys(body.ids)), False
        for execution_id in ids:
            await check_owned(call, execution_id)
    else:
        found = await find_runs(call, terms, None, _MOST, _SCANNED)
        ids, has_more = [each.execution_id for each in found.items], found.next_after is not None
    digest = (await call.server.signer()).sign(["bulk", call.workspace, body.action, terms, sorted(ids)])
    report = BulkReport(is_dry_run=body.hash is None, count=len(ids), has_more=has_more, examples=ids[:_EXAMPLES], hash=digest)
    if body.hash is None:
        return Reply(report)
    if body.hash != digest:
        raise HttpProblem(
            "precondition_failed", "other runs match now than in the dry run; look again", hash=digest, count=len(ids)
        )
    gate = asyncio.Semaphore(_AT_ONCE)

    async def act(execution_id: str) -> BulkFailure | None:
        async with gate:
            try:
                await _act(call, body.action, execution_id)
            except StepwellError as error:
                return BulkFailure(execution_id=execution_id, code=kind_of(error).code, detail=error.message)
        return None

    failures = [each for each in await asyncio.gather(*map(act, ids)) if each is not None]
    return Reply(msgspec.structs.replace(report, done=len(ids) - len(failures), failures=failures))


async def _act(call: Call, action: str, execution_id: str) -> None:
    match action:
        case "cancel":
            await call.well.run(execution_id).cancel()
        case "retry":
            await call.well.run(execution_id).retry()
        case _:
            await call.well.delete(execution_id)


ROUTES = (
    api_route(
        "POST /bulk",
        bulk_runs,
        BulkReport,
        Role.OPERATOR,
        body=BulkAction,
        example={"action": "retry", "filter": "status:FAILED"},
    ),
)
