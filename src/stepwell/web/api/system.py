"""Routes about the server itself: who calls, and the list of errors."""

from __future__ import annotations

import platform
from typing import Any

import msgspec

import stepwell
from stepwell.errors import NotFound, StepwellError
from stepwell.model.access import Role
from stepwell.model.limits import Limits
from stepwell.web.openapi import document_of
from stepwell.web.problem import KINDS, ProblemKind
from stepwell.web.route import Call, Page, Reply, api_route
from stepwell.web.settings import HttpLimits

__all__ = ["ROUTES", "CallerInfo"]


class CallerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a request."""

    name: str
    role: Role
    workspace: str | None
    """The only workspace that the caller reaches; null for all of the store."""


class SystemInfo(msgspec.Struct, frozen=True, kw_only=True):
    """This server and its store."""

    version: str
    python: str
    store: str
    """Its address, without a password."""
    is_ok: bool
    parts: dict[str, str]
    """Each part of the well: ``ok``, or what is wrong with it."""
    clock_skew_ms: int
    """How far the store's clock is ahead of this machine's. Durable times go by the store's."""
    workers: int
    """Workers that serve the queue, in all processes."""
    event_streams: int
    """Streams that are open on this server."""
    is_admin_open: bool
    """Whether metrics and details of health answer other machines, too."""
    limits: dict[str, int]
    """The maximum sizes of values, names and commits."""
    http_limits: dict[str, float]
    origins: dict[str, str]
    """What named each setting that has not its default, such as ``store`` or ``http_limits.page_items``.

    ``the argument`` of the program or the command line, or an environment variable."""


_DEFAULT = "the default"


def _origins(call: Call) -> dict[str, str]:
    """Return what named each setting, without those that have their default."""
    given = {"store": call.well.address_origin}
    for what, limits, plain in (("limits", call.well.limits, Limits()), ("http_limits", call.server.limits, HttpLimits())):
        changed = (name for name in plain.__struct_fields__ if getattr(limits, name) != getattr(plain, name))
        given |= {f"{what}.{name}": "the argument" for name in changed}
    return {name: origin for name, origin in given.items() if origin != _DEFAULT}


async def get_system(call: Call) -> Reply:
    """Return the state of this server and its store."""
    health = await call.well.health()
    try:
        workers = len(await call.well.queue.workers())
    except StepwellError:  # the parts say that the store is away
        workers = 0
    found = SystemInfo(
        version=stepwell.__version__,
        python=platform.python_version(),
        store=call.well.address,
        is_ok=health.is_ok,
        parts=health.parts,
        clock_skew_ms=health.clock_skew_ms,
        workers=workers,
        event_streams=call.server.hub.clients,
        is_admin_open=call.server.is_admin_open,
        limits=msgspec.structs.asdict(call.well.limits),
        http_limits=msgspec.structs.asdict(call.server.limits),
        origins=_origins(call),
    )
    return Reply(found)


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
    api_route("GET /system", get_system, SystemInfo, Role.ADMIN, is_store_wide=True),
    api_route("GET /problems", list_problems, Page[ProblemKind], None),
    api_route("GET /problems/{code}", get_problem, ProblemKind, None),
)
