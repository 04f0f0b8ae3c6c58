"""Routes as data: what an address takes, who may call it, what it returns and which function answers.

The dispatcher, the OpenAPI document, the typed client and the tests of access are all made from this table.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, UnsetType

from stepwell.app.awaited import AsyncStepwell
from stepwell.model.access import Identity, Role
from stepwell.state.request_log import RequestKey
from stepwell.web.problem import HttpProblem

if TYPE_CHECKING:
    from starlette.requests import Request

    from stepwell.web.server_state import Server

__all__ = ["Call", "NoQuery", "Page", "PageCount", "Reply", "Route", "RouteTable", "api_route", "quoted_etag"]

T = TypeVar("T")


class Addressed(Protocol):
    """An entry of a table, which is found by the method and path of a request."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        ...

    @property
    def path(self) -> str:
        """The path, with parameters in braces."""
        ...

    @property
    def name(self) -> str:
        """A name of its own in the table."""
        ...


R = TypeVar("R", bound=Addressed)


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a route that takes none."""


class PageCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of items that a list has."""

    value: int
    is_exact: bool
    """False if there are more, which were not counted."""


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list."""

    items: list[T]
    next_cursor: str | None = None
    """Pass it as ``cursor`` for the next page; null on the last one."""
    has_more: bool = False
    count: PageCount | UnsetType = UNSET
    """Of the whole list; only if the query asks for it."""


@dataclass
class Reply:
    """The result of a handler: a body that is encoded as JSON, or bytes of the route's own media type."""

    body: Any = None
    status: int | None = None
    """None: that of the route."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    etag: str | int | None = None
    """The revision of a single resource."""
    about: str = ""
    """What was acted on, for the audit, if the address does not say it."""


@dataclass
class Call:
    """One request, checked: who calls, for which workspace, with which parameters."""

    server: Server
    request: Request
    identity: Identity
    workspace: str
    path: Mapping[str, str]
    query: Any
    body: Any
    request_key: RequestKey | None = None
    """The idempotency key, for a handler that keeps its reply in the commit that does what was requested."""
    reason: str | None = None
    """Why it is done, as the audit keeps it."""
    about: str = ""
    """What was acted on, as the reply says it for the audit."""

    @property
    def well(self) -> AsyncStepwell:
        """The well that the server serves."""
        return self.server.well

    @property
    def base(self) -> str:
        """The path of the API, with the path under which it is mounted."""
        return f"{self.request.scope.get('root_path', '')}/api/v1"


Handler = Callable[[Call], Awaitable[Any]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one address under ``/api/v1``."""

    method: str
    path: str
    """With parameters in braces; each is one segment, percent-encoded."""
    name: str
    """The ``operationId``, which never changes: a verb and a noun, in snake_case."""
    summary: str
    tag: str
    role: Role | None
    """The least role that may call it; None: all callers, also without a token."""
    handler: Handler
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    """The type of the JSON body; None: the route takes none."""
    is_body_optional: bool = False
    reply: Any = None
    """The type of the JSON reply; None: it has no body."""
    status: int = 200
    statuses: Mapping[int, Any] = {}
    """Further statuses of success, each with the type of its reply."""
    is_store_wide: bool = False
    """Whether only a token for all of the store may call it."""
    is_admin_bind: bool = False
    """Whether it is served on loopback only, unless the server was opened for it."""
    needs_if_match: bool = False
    conditions: tuple[str, ...] = ()
    """Conditional headers that it compares, beside those of every GET."""
    media: str = "application/json"
    example: Mapping[str, Any] = {}
    """A body that works on a new store with the workflows of the example; a test sends it."""
    keeps_replies: bool = True
    """Whether a reply is kept under its Idempotency-Key; a start keeps its own."""
    shows_secret: bool = False
    """Whether the reply has a secret that is shown once: under an Idempotency-Key only that it was done is kept, and a repeat says
    so, since a second secret would be one that nobody has asked for."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))


def api_route(where: str, handler: Handler, reply: Any = None, role: Role | None = Role.VIEWER, **more: Any) -> Route:
    """Return a route whose name is that of its handler, and whose summary is the first line of the handler's docstring.

    - ``where``: the method and the path, such as ``GET /runs``.
    - ``more``: further fields of ``Route``.
    """
    method, _, path = where.partition(" ")
    summary = (handler.__doc__ or "").partition("\n")[0].rstrip(".")
    options: dict[str, Any] = {"status": 204 if reply is None and "media" not in more else 200, **more}
    return Route(
        method=method,
        path=path,
        name=handler.__name__,
        summary=summary,
        tag=path.split("/")[1],
        role=role,
        handler=handler,
        reply=reply,
        **options,
    )


class RouteTable(Generic[R]):
    """Finds the route of a request by the still encoded path, so that an id may contain any character."""

    def __init__(self, routes: Sequence[R]) -> None:
        self.routes = tuple(routes)
        self._by_name = {route.name: route for route in self.routes}
        self._by_shape: dict[tuple[str | None, ...], dict[str, R]] = {}
        for route in self.routes:
            shape = tuple(None if part.startswith("{") else part for part in route.path.strip("/").split("/"))
            self._by_shape.setdefault(shape, {})[route.method] = route

    def find(self, method: str, raw_path: str) -> tuple[R, dict[str, str]]:
        """Return the route of a request, and its path parameters.

        Raise ``HttpProblem`` with the statuses 404, 405 and 400.
        """
        segments = raw_path.strip("/").split("/")
        methods = self._methods(segments)
        if not methods:
            raise HttpProblem("no_such_route", f"there is nothing at {raw_path!r}; see the list of addresses in openapi.json")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise HttpProblem("method_not_allowed", headers={"Allow": ", ".join(self.allowed(raw_path))})
        parts = route.path.strip("/").split("/")
        found = {part[1:-1]: _decoded(given) for part, given in zip(parts, segments, strict=True) if part.startswith("{")}
        return route, found

    def named(self, name: str) -> R:
        """Return the route with this name."""
        return self._by_name[name]

    def allowed(self, raw_path: str) -> list[str]:
        """Return the methods that an address takes; empty if there is no such address."""
        methods = set(self._methods(raw_path.strip("/").split("/")))
        methods |= {"HEAD"} if "GET" in methods else set[str]()
        return sorted(methods | {"OPTIONS"}) if methods else []

    def _methods(self, segments: list[str]) -> dict[str, R]:
        # A fixed segment wins over a parameter: `/queue/items` is no item named "items".
        best: tuple[int, dict[str, R]] = (-1, {})
        for shape, methods in self._by_shape.items():
            if len(shape) == len(segments) and all(
                part is None or part == given for part, given in zip(shape, segments, strict=True)
            ):
                fixed = sum(part is not None for part in shape)
                best = max(best, (fixed, methods), key=lambda each: each[0])
        return best[1]


def _decoded(segment: str) -> str:
    try:
        text = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise HttpProblem("malformed", "the path is not UTF-8") from None
    if not text or "\0" in text:
        raise HttpProblem("malformed", "a part of the path is empty or contains NUL")
    return text


def quoted_etag(revision: str | int) -> str:
    """Return the strong ETag of a revision."""
    return f'"{revision}"'
