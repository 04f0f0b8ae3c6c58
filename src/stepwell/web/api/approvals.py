"""Routes of what waits for people: answers that runs accept now, and links with which a person without an account gives one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from stepwell.app.awaited import AsyncStepwell
from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.model.status import Status
from stepwell.model.value import Value
from stepwell.runtime.progress import Offer
from stepwell.state.history import ExecutionSummary
from stepwell.web.api.runs import Accepted, owned_run
from stepwell.web.hiding import hider_of, without_secrets
from stepwell.web.paging import PageQuery, page_reply
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES", "OpenOffer", "offer_of"]

Name = Annotated[str, Meta(min_length=1, max_length=512)]


class OpenOffer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that a run accepts now: send it as a signal."""

    execution_id: str
    workflow_id: str
    since: datetime
    """The run's last commit."""
    until: datetime | None = None
    """When the wait ends by itself."""
    name: str
    """Of the signal to send."""
    kind: str
    """``signal``, ``choice`` or ``approval``."""
    title: str = ""
    approvers: list[str] = []
    """The people who may answer; empty: all."""
    details: Value = None


class ApproveRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision on an approval."""

    name: Name
    """Of the approval, as ``GET /approvals`` has it."""
    is_approved: bool = True
    """Whether it is approved, or rejected."""
    comment: Annotated[str, Meta(max_length=2_000)] = ""
    """A word about the decision, for whoever reads its result."""
    by: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """The person who decides; null: the name of the token."""


class CreateLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link that sends one signal, once, without an account."""

    signal: Name
    """The name of an answer that the run accepts now."""
    by: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """The person to whom it is given; null: the person who opens it gives a name."""
    ttl_ms: Annotated[int, Meta(ge=60_000, le=31_536_000_000)] = 259_200_000
    """After this time the link is refused."""


class CreatedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link; it is shown only once."""

    url: str
    expires_at: datetime


async def offers_of(well: AsyncStepwell, summary: ExecutionSummary) -> list[OpenOffer]:
    """Return the answers that a run accepts now."""
    progress = await well.run(summary.execution_id).progress()
    until = {each.name: each.until for each in progress.waiting}
    hide = await hider_of(well, summary.execution_id)
    return [without_secrets(_open(summary, offer, until.get(offer.name)), hide) for offer in progress.offers]


def _open(summary: ExecutionSummary, offer: Offer, until: datetime | None) -> OpenOffer:
    return OpenOffer(
        execution_id=summary.execution_id,
        workflow_id=summary.workflow_id,
        since=summary.updated_at,
        until=until,
        name=offer.name,
        kind=offer.kind,
        title=offer.title,
        approvers=list(offer.approvers),
        details=offer.details,
    )


async def offer_of(well: AsyncStepwell, summary: ExecutionSummary, name: str) -> OpenOffer:
    """Return the answer of this name. Raise ``NotFound`` if the run does not accept it now."""
    for each in await offers_of(well, summary):
        if each.name == name:
            return each
    raise NotFound(f"execution {summary.execution_id!r} waits for no {name!r} now")


async def list_approvals(call: Call) -> Reply:
    """Return the answers that waiting runs accept now, newest runs first."""
    query: PageQuery = call.query
    signer, binding = await call.server.signer(), ["approvals", call.workspace]
    after = None
    if query.cursor is not None:
        after = msgspec.convert(signer.position(binding, query.cursor), ExecutionSummary)
    runs = await call.well.executions.list(workspace=call.workspace, status=str(Status.WAITING), after=after, limit=query.limit + 1)
    page = runs[: query.limit]
    found: list[OpenOffer] = []
    for each in page:
        try:
            found += await offers_of(call.well, each)
        except NotFound:  # deleted at this very moment
            continue
    return page_reply(call, found, signer.cursor(binding, page[-1]) if len(runs) > len(page) else None)


async def approve_run(call: Call) -> Reply:
    """Approve or reject what a run waits for."""
    summary, body = await owned_run(call), call.body
    offer = await offer_of(call.well, summary, body.name)
    if offer.kind != "approval":
        raise HttpProblem("invalid", f"{body.name!r} is no approval; send it as a signal")
    by = body.by or call.identity.name
    if offer.approvers and by not in offer.approvers:
        raise HttpProblem("invalid", f"only {', '.join(offer.approvers)} may answer; name one of them in `by`")
    answer: dict[str, Value] = {"by": by, "is_approved": body.is_approved}
    if body.comment:
        answer["comment"] = body.comment
    await call.well.run(summary.execution_id).signal(offer.name, answer)
    return Reply(Accepted(execution_id=summary.execution_id, action="approve"), 202)


async def create_link(call: Call) -> Reply:
    """Create a link that sends one signal, once."""
    summary, body = await owned_run(call), call.body
    offer = await offer_of(call.well, summary, body.signal)
    if offer.approvers and body.by not in offer.approvers:
        # The run ignores answers of others, so that the link would be used up for nothing; and a person must not name himself.
        raise HttpProblem("invalid", f"only {', '.join(offer.approvers)} may answer; give the link to one of them, by name in `by`")
    secret, link = await call.well.access.create_link(
        summary.execution_id,
        offer.name,
        workspace=call.workspace,
        by=body.by,
        created_by=call.identity.name,
        ttl=body.ttl_ms / 1000,
    )
    base = str(call.request.base_url).rstrip("/").removesuffix("/api/v1")
    return Reply(CreatedLink(url=f"{base}/links/{secret}", expires_at=link.expires_at), 201)


ROUTES = (
    api_route("GET /approvals", list_approvals, Page[OpenOffer], query=PageQuery),
    api_route(
        "POST /runs/{execution_id}/approve",
        approve_run,
        Accepted,
        Role.OPERATOR,
        body=ApproveRun,
        status=202,
        example={"name": "release", "is_approved": True, "comment": "fine"},
    ),
    api_route(
        "POST /runs/{execution_id}/links",
        create_link,
        CreatedLink,
        Role.OPERATOR,
        body=CreateLink,
        status=201,
        example={"signal": "approve", "by": "ann", "ttl_ms": 86400000},
        shows_secret=True,
    ),
)
