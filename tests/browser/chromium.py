"""A real Chromium for tests, and visits that notice everything a page does wrong.

Playwright runs on an event loop in a thread of its own: its blocking face would occupy the loop of the main thread, and every
other test of the process that calls `asyncio.run` would fail.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import axe_playwright_python
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright

__all__ = ["DESKTOP", "PHONE", "Chromium", "Visit", "in_browser"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
_TEST_SECONDS = 120
_WAIT_MS = 10_000

_AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

_WATCH = """
document.addEventListener("securitypolicyviolation", e => console.error(`CSP: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
"""


def chromium_path() -> str:
    """The browser of this machine; a failure that says the line to run where there is none."""
    for name in _NAMES:
        if found := shutil.which(name):
            return found
    raise AssertionError(f"none of {', '.join(_NAMES)} is on PATH; run: sudo apt-get install -y chromium")


class Chromium:
    """One browser for all tests of a process."""

    def __init__(self) -> None:
        path = chromium_path()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser", daemon=True)
        self._thread.start()
        self.browser: Browser = self.run(self._start(path))

    async def _start(self, path: str) -> Browser:
        self._playwright = await async_playwright().start()
        flags = [*_FLAGS, "--no-sandbox"] if os.geteuid() == 0 else list(_FLAGS)
        return await self._playwright.chromium.launch(executable_path=path, args=flags)

    def run(self, coroutine: Coroutine[Any, Any, Any], seconds: float = _TEST_SECONDS) -> Any:
        """Run a coroutine on the browser's loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    def close(self) -> None:
        """End the browser."""

        async def stop() -> None:
            await self.browser.close()
            await self._playwright.stop()

        self.run(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    @asynccontextmanager
    async def visit(self, origin: str, session: str | None = None, **options: Any) -> AsyncIterator[Visit]:
        """Open a page of a site in a fresh context, and fail at the end if it complained, or asked anything of elsewhere.

        - ``session``: the secret of a session that is signed in.
        - ``options``: of the context, such as ``viewport``, ``color_scheme`` and ``java_script_enabled``.
        """
        context = await self.browser.new_context(**{"viewport": DESKTOP, "color_scheme": "light", "timezone_id": "UTC", **options})
        context.set_default_timeout(_WAIT_MS)
        if session is not None:
            await context.add_cookies([{"name": "stepwell_session", "value": session, "url": origin}])
        await context.add_init_script(_WATCH)
        visit = Visit(context, await context.new_page(), origin)
        try:
            yield visit
            visit.check()
        finally:
            await context.close()


class Visit:
    """A page that is open, and what it did."""

    def __init__(self, context: BrowserContext, page: Page, origin: str) -> None:
        self.context, self.page, self.origin = context, page, origin
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        context.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        # A page that is itself an error, as a test wants it, is noted by Chromium like a file that failed to load.
        if message.location.get("url") == self.page.url and message.text.startswith("Failed to load resource"):
            return
        self.complaints.append(
            f"{message.type}: {message.text} ({message.location.get('url')}:{message.location.get('lineNumber')})"
        )

    def _on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if f"{url.scheme}://{url.netloc}" != self.origin and url.scheme not in ("data", "blob", "about"):
            self.foreign.append(request.url)

    async def go(self, path: str, *, status: int | None = 200) -> None:
        """Open a path of the site."""
        reply = await self.page.goto(f"{self.origin}{path}", wait_until="load")
        assert reply is not None
        assert status in (None, reply.status), f"{path}: {reply.status} {await self.page.inner_text('body')}"

    async def text(self) -> str:
        """The visible text of the page."""
        return await self.page.inner_text("body")

    async def has_overflow(self) -> bool:
        """Whether the page can be scrolled sideways."""
        return await self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")

    async def axe(self, rules: tuple[str, ...] = ()) -> list[str]:
        """The faults of accessibility that axe-core finds, one line each.

        - ``rules``: only these; empty: all.
        """
        if not await self.page.evaluate("typeof window.axe === 'object'"):
            await self.page.evaluate(_AXE)
        options = {"resultTypes": ["violations"], **({"runOnly": {"type": "rule", "values": list(rules)}} if rules else {})}
        found = await self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{each['id']}: {node['html'][:160]} -- {(node['failureSummary'] or '')[:300]}"
            for each in found["violations"]
            for node in each["nodes"]
        ]

    def check(self) -> None:
        """Fail if the page wrote to the console, broke its content policy, or asked anything of elsewhere."""
        assert self.complaints == []
        assert self.foreign == []


def in_browser(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the browser's loop. It may take the fixture ``chromium`` like any other."""
    given = signature(test)

    @wraps(test)
    def blocking(*, chromium: Chromium, **options: Any) -> None:
        if "chromium" in given.parameters:
            options["chromium"] = chromium
        chromium.run(test(**options))

    parameters = [*given.parameters.values()]
    if "chromium" not in given.parameters:
        parameters.append(Parameter("chromium", Parameter.KEYWORD_ONLY))
    blocking.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    return blocking
