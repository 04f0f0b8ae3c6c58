"""Routes of bulk actions: first a dry run that returns a hash, then the action on exactly those runs, followed until its end."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.model.ids import new_id
from stepwell.web.api.runs import RUN_FIELDS, check_owned, find_runs, preferred_wait
from stepwell.web.bulk_operations import BulkFailure, BulkOperation
from stepwell.web.filters import parse_filter
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Reply, api_route

__all__ = ["ROUTES"]

_MOST = 10_000
_SCANNED = 50_000
_EXAMPLES = 10
_MOST_FAILURES = 1_000
_WAIT_SECONDS = 2.0


class BulkAction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An action on the runs that match."""

    action: Literal["cancel", "retry", "pause", "resume", "fork", "delete_payloads", "delete"]
    """What to do with the runs. ``fork`` starts a run from the newest state of each; the two that delete need the role admin."""
    filter: str = ""
    """Terms such as ``status:FAILED workflow:checkout``."""
    ids: Annotated[list[Annotated[str, Meta(min_length=1, max_length=512)]], Meta(max_length=1_000)] = []
    """These runs, instead of those that match a filter."""
    hash: str | None = None
    """What a dry run returned; without it, this is a dry run."""


class BulkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of an action: intended, or carried out."""

    is_dry_run: bool
    count: int
    """How many runs match, at most ten thousand: repeat it for more."""
    has_more: bool
    examples: list[str]
    hash: str
    """Send it to act on exactly these runs."""
    bulk_id: str | None = None
    """Of the operation, for its page and to abort it; null in a dry run."""
    action: str = ""
    done: int = 0
    failures: list[BulkFailure] = []
    """Those that were refused, and why: the first thousand."""
    failed: int = 0
    is_ended: bool = False
    is_aborted: bool = False


async def bulk_runs(call: Call) -> Reply:
    """Act on the runs that match: cancel, retry, pause, resume, fork or delete; without a hash, only say which."""
    body: BulkAction = call.body
    if body.action in ("delete", "delete_payloads") and not call.identity.role.allows(Role.ADMIN):
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
    operation = BulkOperation(call.workspace, body.action, ids)
    call.server.bulk.start(operation, partial(_act, call, body.action))
    await operation.wait(_seconds(call))
    report = _progress(operation, report)
    about = f"{body.action} {len(ids)} runs" + (f" that match {body.filter}" if terms else "")
    if operation.is_ended:
        return Reply(report, about=about)
    return Reply(report, 202, {"Location": f"{call.base}/bulk/{operation.bulk_id}", "Retry-After": "1"}, about=about)


def _seconds(call: Call) -> float:
    """Return how long to wait for the end: what the caller prefers, else a while in which most actions end."""
    preferred = preferred_wait(call)
    return _WAIT_SECONDS if preferred is None else preferred


def _progress(operation: BulkOperation, report: BulkReport) -> BulkReport:
    return msgspec.structs.replace(
        report,
        bulk_id=operation.bulk_id,
        action=operation.action,
        done=operation.done,
        failures=operation.failures[:_MOST_FAILURES],
        failed=len(operation.failures),
        is_ended=operation.is_ended,
        is_aborted=operation.is_aborted,
    )


def _found(call: Call) -> BulkOperation:
    operation = call.server.bulk.get(call.path["bulk_id"], call.workspace)
    if operation is None:
        raise NotFound(f"this server knows no bulk operation {call.path['bulk_id']!r}: it forgets them when it ends")
    return operation


def _report(operation: BulkOperation) -> BulkReport:
    ids = list(operation.ids)
    return _progress(operation, BulkReport(is_dry_run=False, count=len(ids), has_more=False, examples=ids[:_EXAMPLES], hash=""))


async def get_bulk(call: Call) -> Reply:
    """Return how far a bulk action is."""
    return Reply(_report(_found(call)))


async def abort_bulk(call: Call) -> Reply:
    """Begin with no further run of a bulk action; what was done stays done."""
    operation = _found(call)
    operation.abort()
    return Reply(_report(operation), 202)


async def _act(call: Call, action: str, execution_id: str) -> None:
    match action:
        case "cancel":
            await call.well.run(execution_id).cancel()
        case "retry":
            await call.well.run(execution_id).retry()
        case "pause":
            await call.well.run(execution_id).pause(call.reason or "", by=call.identity.name)
        case "resume":
            await call.well.run(execution_id).resume()
        case "fork":
            await call.well.fork(execution_id, new_id())
        case "delete_payloads":
            await call.well.retention.remove_payloads(execution_id)
        case _:
            await call.well.delete(execution_id)


ROUTES = (
    api_route("GET /bulk/{bulk_id}", get_bulk, BulkReport),
    api_route("POST /bulk/{bulk_id}/abort", abort_bulk, BulkReport, Role.OPERATOR, status=202),
    api_route(
        "POST /bulk",
        bulk_runs,
        BulkReport,
        Role.OPERATOR,
        statuses={202: BulkReport},
        body=BulkAction,
        example={"action": "retry", "filter": "status:FAILED"},
    ),
)
