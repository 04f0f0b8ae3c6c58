"""Routes about the server itself: who calls, and the list of errors."""

from __future__ import annotations

import msgspec

from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.web.problem import KINDS, ProblemKind
from stepwell.web.route import Call, Page, Reply, Route

__all__ = ["ROUTES", "Caller"]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls."""

    name: str
    role: Role
    workspace: str | None
    """The only workspace that the caller reaches; null for all of the store."""


async def get_caller(call: Call) -> Reply:
    """Return who the token stands for."""
    who = call.identity
    return Reply(Caller(name=who.name, role=who.role, workspace=who.workspace))


async def list_problems(_: Call) -> Reply:
    """Return every kind of error."""
    return Reply(Page(items=sorted(KINDS.values(), key=lambda each: each.code)))


async def get_problem(call: Call) -> Reply:
    """Return one kind of error."""
    code = call.path["code"]
    if code not in KINDS:
        raise NotFound(f"there is no error with the code {code!r}")
    return Reply(KINDS[code])


ROUTES = (
    Route(
        method="GET",
        path="/whoami",
        name="get_caller",
        summary="Return who the token stands for",
        tag="server",
        role=Role.VIEWER,
        handler=get_caller,
        reply=Caller,
    ),
    Route(
        method="GET",
        path="/problems",
        name="list_problems",
        summary="List the kinds of errors",
        tag="server",
        role=None,
        handler=list_problems,
        reply=Page[ProblemKind],
    ),
    Route(
        method="GET",
        path="/problems/{code}",
        name="get_problem",
        summary="Explain a kind of error",
        tag="server",
        role=None,
        handler=get_problem,
        reply=ProblemKind,
    ),
)
