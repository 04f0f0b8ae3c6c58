"""Screens as data, and the request of one: what the dispatcher, the rail and the tests go over.

A screen gets everything from the routes of the API, by `View.get` and `View.act`: with the same checks, filters, pages and audit.
It has no other way to the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from stepwell.model.access import Identity, Role
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.web.dispatch import perform
from stepwell.web.problem import HttpProblem
from stepwell.web.request_body import form_of
from stepwell.web.route import Reply, RouteTable

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from stepwell.web.server_state import Server

__all__ = ["Crumb", "Screen", "ScreenTable", "Shown", "View", "remember", "screen", "segment"]

_YEAR = 31_536_000


def segment(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe="")


def remember(request: Request, response: Response, name: str, value: str) -> None:
    """Keep a preference in a cookie of the browser for a year; an empty value forgets it."""
    response.set_cookie(
        f"stepwell_{name}",
        quote(value, safe=""),
        max_age=_YEAR if value else 0,
        path=request.scope.get("root_path", "") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


@dataclass(frozen=True, kw_only=True)
class Crumb:
    """A link of the breadcrumb."""

    label: str
    url: str


@dataclass(kw_only=True)
class Shown:
    """A page to draw."""

    template: str
    title: str
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    crumbs: tuple[Crumb, ...] = ()
    live: str | None = None
    """The address of the page's stream of events, with which its parts marked by ``live`` are fetched again; None: it has none."""
    status: int = 200


@dataclass(kw_only=True)
class View:
    """One request of a page, checked: who looks, at which workspace, with which parameters."""

    server: Server
    request: Request
    screen: Screen
    identity: Identity
    workspace: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    nonce: str
    now: datetime
    remembered: dict[str, str] = field(default_factory=dict[str, str])
    """Preferences that the response puts into cookies of the browser, by name."""

    def preference(self, name: str) -> str:
        """Return a preference that the browser remembers; empty without one. It comes from outside, so check it."""
        return unquote(self.request.cookies.get(f"stepwell_{name}", ""))

    @property
    def root(self) -> str:
        """The path under which the application is mounted."""
        return self.request.scope.get("root_path", "")

    @property
    def is_fragment(self) -> bool:
        """True if a page that is already open asks for its changed parts."""
        return "hx-request" in self.request.headers

    def url(self, path: str, **query: object) -> str:
        """Return the address of a page of this dashboard.

        - ``path``: with segments quoted by ``segment``.
        - ``query``: parameters; those that are None or empty are left out. The workspace is added for a caller that chooses one.
        """
        asked = {name: str(value) for name, value in query.items() if value not in (None, "")}
        if self.identity.workspace is None and self.workspace != DEFAULT_WORKSPACE:
            asked.setdefault("workspace", self.workspace)
        return f"{self.root}{path}" + (f"?{urlencode(asked)}" if asked else "")

    def here(self, **changes: object) -> str:
        """Return the address of this page with some parameters changed; None removes one."""
        return self.url(self.bare_path, **{**self.query, **changes})

    @property
    def bare_path(self) -> str:
        """The path of this page, without the root."""
        return self.screen.path.format(**{name: segment(value) for name, value in self.path.items()})

    def may(self, role: str) -> bool:
        """Return whether the caller has the rights of a role."""
        return self.identity.role.allows(Role(role))

    async def reply(self, name: str, path: Mapping[str, str] | None = None, **query: object) -> Reply:
        """Return the reply of a route of the API that reads.

        - ``name``: the route's.
        - ``path``: the parameters of its path; those of this page by default.
        - ``query``: its query; what is None or empty is left out.
        """
        given = {key: str(value) for key, value in query.items() if value not in (None, "")}
        return await perform(self.server, self.request, self.identity, self.workspace, name, path or self.path, query=given)

    async def get(self, name: str, path: Mapping[str, str] | None = None, **query: object) -> Any:
        """Return the body of that reply."""
        return (await self.reply(name, path, **query)).body

    async def act(
        self,
        name: str,
        path: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        reason: str | None = None,
        expected: int | str | None = None,
        **query: object,
    ) -> Any:
        """Carry out a route of the API that changes something, with an entry in the audit, and return the body of its reply.

        - ``body``: as a client would send it in JSON.
        - ``reason``: for the audit.
        - ``expected``: the revision or ETag that the resource must have, 0 for one that must not exist; None: not compared.
        """
        request = self.request
        if expected is not None:
            header = (b"if-none-match", b"*") if expected == 0 else (b"if-match", f'"{expected}"'.encode())
            request = type(request)({**request.scope, "headers": [*request.scope["headers"], header]}, request.receive)
        given = {key: str(value) for key, value in query.items() if value not in (None, "")}
        found = await perform(
            self.server, request, self.identity, self.workspace, name, path or self.path, query=given, body=body, reason=reason
        )
        return found.body

    async def form(self) -> dict[str, str]:
        """Return the fields of the form that was sent."""
        return await form_of(self.request)

    def check_role(self) -> None:
        """Raise ``HttpProblem`` (403) unless the caller has the role of the screen."""
        if not self.identity.role.allows(self.screen.role):
            raise HttpProblem("forbidden", f"this needs the role {self.screen.role}, and you have {self.identity.role}")


Handler = Callable[[View], "Awaitable[Shown | Response]"]


@dataclass(frozen=True, kw_only=True)
class Screen:
    """One page, or the form that a page sends."""

    method: str
    path: str
    """Under the application's root, with parameters such as ``{execution_id}``."""
    name: str
    summary: str
    show: Handler
    role: Role = Role.VIEWER
    """The least role that may open it."""
    rail: str = ""
    """The path of the entry of the rail that is marked as current."""
    is_page: bool = True
    """Whether its answer is a page; else it is a file, a stream, or leads elsewhere."""


def screen(where: str, show: Handler, role: Role = Role.VIEWER, *, rail: str = "", is_page: bool = True) -> Screen:
    """Return a screen whose name is that of its handler, and whose summary is the first line of the handler's docstring.

    - ``where``: the method and the path, such as ``GET /runs``.
    """
    method, _, path = where.partition(" ")
    summary = (show.__doc__ or "").partition("\n")[0].rstrip(".")
    return Screen(method=method, path=path, name=show.__name__, summary=summary, show=show, role=role, rail=rail, is_page=is_page)


ScreenTable = RouteTable[Screen]
