"""A pooler in transaction mode, as PgBouncer is one: a client has a session of the server for one transaction, then any other.

It hands sessions out in turn, so that the next transaction of a client is hardly ever in the session of the last one: what a store
leaves in a session, or expects to find there, shows. Like a PgBouncer before 1.21 it knows nothing of prepared statements.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct

from tests.support.loopback_server import LoopbackServer

__all__ = ["Pooler"]

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_Message = tuple[bytes, bytes]


class _Session:
    """A session of the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.greeting = b""

    async def greet(self, startup: bytes) -> None:
        """Log in as the client would, and keep what the server says about itself."""
        self.writer.write(startup)
        kind = b""
        while kind != b"Z":
            kind, message = await _message(self.reader)
            self.greeting += message
            assert kind != b"E", message


class Pooler(LoopbackServer):
    """Lends out a few sessions of a server on loopback."""

    def __init__(self, server_port: int, size: int = 3) -> None:
        super().__init__(server_port)
        self._size = size
        self._sessions: dict[bytes, asyncio.Queue[_Session]] = {}
        self.moves = 0
        """How often a client's transaction was in another session than its last one."""

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            startup = await _startup(reader, writer)
            if startup is not None:
                await self._transactions(startup, reader, writer)

    async def _pool(self, startup: bytes) -> asyncio.Queue[_Session]:
        """The sessions of a user and database, all made at once."""
        found = self._sessions.get(startup)
        if found is None:
            found = self._sessions[startup] = asyncio.Queue()
            for _ in range(self._size):
                session = _Session(*await asyncio.open_connection("127.0.0.1", self._server_port))
                self._writers.add(session.writer)
                await session.greet(startup)
                found.put_nowait(session)
        return found

    async def _transactions(self, startup: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pool, inbox = await self._pool(startup), asyncio.Queue[_Message]()
        session = await pool.get()
        pool.put_nowait(session)
        writer.write(session.greeting)
        pump = asyncio.ensure_future(_pump(reader, inbox))
        self._tasks.add(pump)
        last: _Session | None = None
        while (message := await inbox.get())[0] != b"X":
            session = await pool.get()
            self.moves += last is not None and session is not last
            last = session
            await _transaction(session, message, inbox, writer)
            pool.put_nowait(session)


async def _transaction(session: _Session, first: _Message, inbox: asyncio.Queue[_Message], writer: asyncio.StreamWriter) -> None:
    """Carry one transaction: until the server has answered all that was asked, and is in none."""
    asked = answered = 0
    is_asking = False  # whether more was sent than a Sync has closed

    def send(message: _Message) -> None:
        nonlocal asked, is_asking
        is_asking = message[0] not in (b"Q", b"S")
        asked += not is_asking
        session.writer.write(message[1])

    async def carry() -> None:
        while True:
            send(await inbox.get())

    send(first)
    requests = asyncio.ensure_future(carry())
    try:
        while True:
            kind, data = await _message(session.reader)
            writer.write(data)
            answered += kind == b"Z"
            if kind == b"Z" and data[-1:] == b"I" and answered == asked and not is_asking:
                return
    finally:
        requests.cancel()
        await asyncio.wait([requests])


async def _pump(reader: asyncio.StreamReader, inbox: asyncio.Queue[_Message]) -> None:
    """Take what a client sends as it comes; at its end, a word of our own says so."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            inbox.put_nowait(await _message(reader))
    inbox.put_nowait((b"X", b""))


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A message as it came, with its kind."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


async def _startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
    """The first message of a client; encryption is declined."""
    while True:
        head = await reader.readexactly(8)
        length, code = struct.unpack("!II", head)
        if code in (_SSL, _GSS):
            writer.write(b"N")
            continue
        return None if code == _CANCEL else head + await reader.readexactly(length - 8)
