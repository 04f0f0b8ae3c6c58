"""People who look at the dashboard: httpx clients with a session, and the facts of a page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tests.web.servers import Api, served

from stepwell.web.authentication import csrf_token

__all__ = ["Person", "browsing", "text_of"]


def text_of(page: httpx.Response) -> str:
    """Return the words of a page's content, without its frame."""
    content = page.text.partition('<main id="content"')[2].partition("</main>")[0]
    content = re.sub(r"<style.*?</style>", " ", content, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", content).split())


class Person:
    """A person who has signed in with a token."""

    def __init__(self, api: Api, client: httpx.AsyncClient) -> None:
        self.api, self.client, self.well = api, client, api.well

    async def open(self, path: str, **options: Any) -> httpx.Response:
        """Open a page."""
        return await self.client.get(path, **options)

    async def send(self, path: str, **fields: str) -> httpx.Response:
        """Send a form with the session's CSRF token, without following where it leads."""
        secret = self.client.cookies.get("stepwell_session") or ""
        return await self.client.post(path, data={"csrf": csrf_token(secret), **fields})


@asynccontextmanager
async def browsing(who: str = "acme", *, url: str = "memory://", **options: Any) -> AsyncIterator[Person]:
    """Sign in with the token of this name, on a server with the workspaces acme and rival."""
    async with served(url, **options) as api, api.client(None) as client:
        entered = await client.post("/login", data={"token": api.tokens[who]})
        assert entered.status_code == 303
        yield Person(api, client)
