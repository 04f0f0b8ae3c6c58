"""Connections to a Redis server: commands go out in one packet, replies come back in order, and a doubtful connection is closed.

A connection is lent to one thread at a time. Whatever goes wrong between the first byte sent and the last reply read, be it an
error, a timeout or an interrupt, ends the connection: what is left in it could only be taken for somebody else's reply.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import hiredis
from redis import exceptions
from redis.connection import Connection, SSLConnection

from stepwell.errors import StoreUnavailable
from stepwell.stores.redis.failure import translate
from stepwell.stores.redis.settings import Settings

__all__ = ["Command", "Link", "Lost", "Reply", "Unsent", "Wire"]

Command = tuple[bytes | str | int, ...]
Reply = Any
"""What the server answered: bytes, a number, a list or None; or an error, as a value."""

# Its stub knows commands of one word only.
_pack = cast("Callable[[Command], bytes]", hiredis.pack_command)

_MOST_IDLE = 16

# A connection that was in use a moment ago is not looked at again before the next use: that would cost a tenth of a commit.
_FRESH_SECONDS = 0.05


class Wire(Protocol):
    """What is used of the driver's connection."""

    def send_packed_command(self, command: Sequence[bytes], check_health: bool = ...) -> None: ...
    def read_response(self) -> Reply: ...
    def can_read(self, timeout: float = ...) -> bool: ...
    def disconnect(self) -> None: ...


class Unsent:
    """In place of a reply: the command never left this process, or the server refused it unseen."""

    def __init__(self, error: StoreUnavailable) -> None:
        self.error = error


class Lost:
    """In place of a reply: the command was sent, and what became of it is not known."""

    def __init__(self, error: StoreUnavailable) -> None:
        self.error = error


class Link:
    """A few connections to one server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._idle: list[tuple[Wire, float]] = []
        self._is_closed = False

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one packet and read a reply for each; errors, ``Unsent`` and ``Lost`` stand in the place of replies."""
        try:
            wire = self._take()
        except exceptions.RedisError as error:
            return [Unsent(translate(error, self.settings))] * len(commands)
        replies: list[Reply] = []
        try:
            wire.send_packed_command([self.pack(commands)], check_health=False)
            for _ in commands:
                try:
                    replies.append(wire.read_response())
                except exceptions.ResponseError as error:
                    replies.append(error)
        except exceptions.RedisError as error:
            wire.disconnect()
            return replies + [self._missing(error)] * (len(commands) - len(replies))
        except BaseException:
            wire.disconnect()
            raise
        self._give_back(wire)
        return replies

    @staticmethod
    def pack(commands: Sequence[Command]) -> bytes:
        """Commands as they are sent."""
        return b"".join(map(_pack, commands))

    def _missing(self, error: exceptions.RedisError) -> Lost | Unsent:
        ours = translate(error, self.settings)
        # These two are answers of a server that did nothing; the driver raises them because it closes the connection.
        is_refusal = isinstance(error, exceptions.BusyLoadingError | exceptions.AuthenticationError)
        return Unsent(ours) if is_refusal else Lost(ours)

    def connect(self, reply_seconds: float | None) -> Wire:
        """A new connection, for whoever needs one alone; the caller closes it."""
        kind = SSLConnection if self.settings.is_encrypted else Connection
        connection = kind(**self.settings.connection())
        connection.connect()
        # Until here the shorter timeout of connecting held, also for a server that accepts and then says nothing.
        connection._sock.settimeout(reply_seconds)  # pyright: ignore[reportOptionalMemberAccess, reportPrivateUsage] - no public way
        return connection

    def _take(self) -> Wire:
        while True:
            with self._lock:
                wire, used = self._idle.pop() if self._idle else (None, 0.0)
            if wire is None:
                return self.connect(self.settings.reply_seconds)
            if time.monotonic() - used < _FRESH_SECONDS or _is_quiet(wire):
                return wire
            wire.disconnect()

    def _give_back(self, wire: Wire) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < _MOST_IDLE:
                self._idle.append((wire, time.monotonic()))
                return
        wire.disconnect()

    def close(self) -> None:
        """Close every connection that is not lent; a lent one is closed when it comes back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for wire, _ in idle:
            wire.disconnect()


def _is_quiet(wire: Wire) -> bool:
    """Whether an idle connection is still open and has nothing to say; anything else means that it cannot be used."""
    try:
        return not wire.can_read(0)
    except exceptions.RedisError:
        return False
