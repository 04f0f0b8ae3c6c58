"""Servers to test: the ASGI application of a well, called by httpx without a socket, with tokens of two workspaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from inspect import signature
from typing import Any

import httpx

from stepwell import AsyncStepwell, stepwell_app, wait_signal, workflow
from stepwell.web.settings import HttpLimits

__all__ = ["BASE", "Api", "approve", "async_test", "fail", "greet", "served"]

BASE = "http://stepwell.test"


@workflow
async def greet(name: str = "world") -> str:
    """Greet by name."""
    return f"Hello, {name}!"


@workflow
async def approve() -> object:
    """Wait for a signal."""
    return await wait_signal("approve")


@workflow
async def fail() -> None:
    """Fail at once."""
    raise ValueError("no way")


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on an event loop of its own."""

    @wraps(test)
    def blocking(*arguments: Any, **options: Any) -> None:
        asyncio.run(test(*arguments, **options))

    blocking.__signature__ = signature(test)  # type: ignore[attr-defined]
    return blocking


class Api:
    """A server with a client for each role and workspace."""

    def __init__(self, app: Any, well: AsyncStepwell, tokens: dict[str, str]) -> None:
        self.app, self.well, self.tokens = app, well, tokens

    def client(self, token: str | None = "acme", address: str = "203.0.113.9", **options: Any) -> httpx.AsyncClient:
        """Return a client with the token of this name, that calls from an address."""
        headers = {} if token is None else {"Authorization": f"Bearer {self.tokens[token]}"}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(address, 40_000))
        return httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers, **options)


@asynccontextmanager
async def served(url: str = "memory://", *, worker: bool = True, **options: Any) -> AsyncIterator[Api]:
    """Serve a store with the workspaces acme and rival, and tokens for every role."""
    async with AsyncStepwell(url, worker=worker) as well:
        tokens: dict[str, str] = {}
        for workspace in ("acme", "rival"):
            await well.workspaces.put(workspace, tier="enterprise")
        for name, role, workspace in (
            ("acme", "admin", "acme"),
            ("operator", "operator", "acme"),
            ("viewer", "viewer", "acme"),
            ("rival", "admin", "rival"),
            ("store", "admin", None),
        ):
            tokens[name] = (await well.access.create_token(name, role=role, workspace=workspace)).text
        yield Api(stepwell_app(well, **options), well, tokens)


LIMITS = HttpLimits(body_bytes=4_096, body_seconds=0.2)
