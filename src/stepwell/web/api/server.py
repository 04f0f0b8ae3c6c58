"""Routes about the server itself: who calls, and the list of errors."""

from __future__ import annotations

from typing import Any

import msgspec

from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.web.openapi import document_of
from stepwell.web.problem import KINDS, ProblemKind
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES", "CallerInfo"]


class CallerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a request."""

    name: str
    role: Role
    workspace: str | None
    """The only workspace that the caller reaches; null for all of the store."""


async def get_openapi(call: Call) -> Reply:
    """Return the OpenAPI document of this API."""
    root = call.request.scope.get("root_path", "")
    return Reply(document_of(call.server.table, root))


async def get_caller(call: Call) -> Reply:
    """Return who the token stands for."""
    who = call.identity
    return Reply(CallerInfo(name=who.name, role=who.role, workspace=who.workspace))


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
    api_route("GET /openapi.json", get_openapi, dict[str, Any], None),
    api_route("GET /whoami", get_caller, CallerInfo),
    api_route("GET /problems", list_problems, Page[ProblemKind], None),
    api_route("GET /problems/{code}", get_problem, ProblemKind, None),
)
