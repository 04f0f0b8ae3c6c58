"""Connections to a Redis server: commands go out in one packet, replies come back in order, and a doubtful connection is closed.

A connection is lent to one thread at a time. Whatever goes wrong between the first byte sent and the last reply read, be it an
error, a timeout or an interrupt, ends the connection: what is left in it could only be taken for somebody else's reply.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import hiredis
from redis import exceptions

from stepwell.errors import StoreUnavailable
from stepwell.stores.redis.failure import translate
from stepwell.stores.redis.settings import RedisSettings
from stepwell.stores.redis.wire import Reply, Wire

__all__ = ["Command", "RedisConnection", "RedisConnectionLost", "RedisRequestUnsent", "Reply"]

Command = tuple[bytes | str | int, ...]

# Its stub knows commands of one word only.
_pack = cast("Callable[[Command], bytes]", hiredis.pack_command)

_MOST_IDLE = 16

# A connection that was in use a moment ago is not looked at again before the next use: that would cost a tenth of a commit.
_FRESH_SECONDS = 0.05


class RedisRequestUnsent:
    """In place of a reply: the command never left this process, or the server refused it unseen."""

    def __init__(self, error: StoreUnavailable) -> None:
        self.error = error


class RedisConnectionLost:
    """In place of a reply: the command was sent, and what became of it is not known."""

    def __init__(self, error: StoreUnavailable) -> None:
        self.error = error


class RedisConnection:
    """A few connections to one server."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._idle: list[Wire] = []
        self._is_closed = False

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one packet and read a reply for each; errors, ``Unsent`` and ``Lost`` stand in the place of replies."""
        try:
            wire = self._take()
        except exceptions.RedisError as error:
            return [RedisRequestUnsent(translate(error, self.settings))] * len(commands)
        replies: list[Reply] = []
        try:
            wire.send(self.pack(commands))
            for _ in commands:
                replies.append(wire.read())
        except exceptions.RedisError as error:
            wire.close()
            return replies + [self._missing(error)] * (len(commands) - len(replies))
        except BaseException:
            wire.close()
            raise
        self._give_back(wire)
        return replies

    @staticmethod
    def pack(commands: Sequence[Command]) -> bytes:
        """Commands as they are sent."""
        return b"".join(map(_pack, commands))

    def _missing(self, error: exceptions.RedisError) -> RedisConnectionLost | RedisRequestUnsent:
        ours = translate(error, self.settings)
        # These two are answers of a server that did nothing; the driver raises them because it closes the connection.
        is_refusal = isinstance(error, exceptions.BusyLoadingError | exceptions.AuthenticationError)
        return RedisRequestUnsent(ours) if is_refusal else RedisConnectionLost(ours)

    def connect(self, reply_seconds: float | None) -> Wire:
        """A new connection, for whoever needs one alone; the caller closes it."""
        return Wire(self.settings, reply_seconds)

    def _take(self) -> Wire:
        while True:
            with self._lock:
                wire = self._idle.pop() if self._idle else None
            if wire is None:
                return self.connect(self.settings.reply_seconds)
            if time.monotonic() - wire.used_at < _FRESH_SECONDS or wire.is_quiet():
                return wire
            wire.close()

    def _give_back(self, wire: Wire) -> None:
        wire.used_at = time.monotonic()
        with self._lock:
            if not self._is_closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(wire)
                return
        wire.close()

    def close(self) -> None:
        """Close every connection that is not lent; a lent one is closed when it comes back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()
