"""A TCP proxy that stands between a client and a server, and misbehaves as it is told: delays, cuts, swallows replies.

It runs in a thread of its own. What a client sends is shown to ``on_request`` first, whose verdict decides what becomes of it;
what a server sends back goes through ``on_reply``. A test sets these before it provokes what they wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from enum import Enum

from tests.support.loopback_server import LoopbackServer

__all__ = ["Proxy", "Verdict", "at_match"]

_CHUNK = 65_536


class Verdict(Enum):
    """The fate of a packet from a client."""

    PASS = "it goes to the server"
    CUT = "it does not reach the server, and both sides see the connection end"
    SWALLOW = "it goes to the server, whose reply is dropped; then both sides see the connection end"
    HOLD = "it goes to the server, and nothing comes back any more, without an end"


class Proxy(LoopbackServer):
    """Forwards to a server on loopback."""

    def __init__(self, server_port: int) -> None:
        super().__init__(server_port)
        self.on_request: Callable[[bytes], Verdict] = lambda _: Verdict.PASS
        self.on_reply: Callable[[bytes], bytes] = lambda data: data
        self.delay_seconds = 0.0
        self.acted = threading.Event()
        """Set when a verdict other than PASS has been carried out: a swallowed reply has come by then."""

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            self._writers.add(server_writer)
            try:
                await _Pair(self, reader, writer, server_reader, server_writer).run()
            finally:
                self._writers.discard(server_writer)
                server_writer.transport.abort()


class _Pair:
    """One client's connection and the one to the server that stands for it."""

    def __init__(
        self,
        proxy: Proxy,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client_reader, self._client_writer = client_reader, client_writer
        self._server_reader, self._server_writer = server_reader, server_writer
        self._verdict = Verdict.PASS

    async def run(self) -> None:
        """Carry bytes both ways until one of the ways ends."""
        ways = [asyncio.ensure_future(self._carry_requests()), asyncio.ensure_future(self._carry_replies())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry_requests(self) -> None:
        while data := await self._client_reader.read(_CHUNK):
            verdict = self._proxy.on_request(data)
            if verdict is Verdict.CUT:
                self._proxy.acted.set()
                return
            if verdict is not Verdict.PASS:
                self._verdict = verdict
            await asyncio.sleep(self._proxy.delay_seconds)
            self._server_writer.write(data)
            await self._server_writer.drain()

    async def _carry_replies(self) -> None:
        while data := await self._server_reader.read(_CHUNK):
            if self._verdict is not Verdict.PASS:
                self._proxy.acted.set()
                if self._verdict is Verdict.SWALLOW:
                    return
                continue
            self._client_writer.write(self._proxy.on_reply(data))
            await self._client_writer.drain()


def at_match(pattern: bytes, verdict: Verdict, *, after: int = 0) -> Callable[[bytes], Verdict]:
    """A verdict for the first request that contains a pattern, or for a later one; all others pass."""
    seen = 0

    def judge(data: bytes) -> Verdict:
        nonlocal seen
        if pattern not in data:
            return Verdict.PASS
        seen += 1
        return verdict if seen == after + 1 else Verdict.PASS

    return judge
