"""One connection to a Redis server: packets out, replies in.

The driver connects, which is the long part (TLS, passwords, databases); after that bytes are sent and parsed here, without what
the driver does for every command and this store has no use for.
"""

from __future__ import annotations

import os
from typing import Any

import hiredis
from redis import exceptions
from redis.connection import Connection, SSLConnection

from stepwell.stores.glance import Glance
from stepwell.stores.redis.settings import RedisSettings

__all__ = ["Reply", "Wire"]

Reply = Any
"""What the server answered: bytes, a number, a list or None; or an error, as a value."""

_NOTHING = object()
_CHUNK = 65_536


class Wire:
    """A connection, for one thread at a time."""

    def __init__(self, settings: RedisSettings, reply_seconds: float | None) -> None:
        kind = SSLConnection if settings.is_encrypted else Connection
        # Its socket and parser are private and its types incomplete, but there is no other way to them.
        self._connection: Any = kind(**settings.connection())
        self._connection.connect()
        self._socket: Any = self._connection._sock
        # Until here the shorter timeout of connecting held, also for a server that accepts and then says nothing.
        self._socket.settimeout(reply_seconds)
        # A descriptor can be read without waiting if it is no more than a socket, and has a timeout: that makes it non-blocking.
        self._glance = Glance() if reply_seconds is not None and not settings.is_encrypted else None
        self._descriptor: int = self._socket.fileno()
        # The driver's parser knows the class of each error.
        error_of = self._connection._parser.parse_error
        self._reader = hiredis.Reader(protocolError=exceptions.InvalidResponse, replyError=error_of, notEnoughData=_NOTHING)
        self.used_at = 0.0
        """When it was last given back."""

    def send(self, packet: bytes) -> None:
        """Send everything."""
        try:
            self._socket.sendall(packet)
        except TimeoutError as error:
            raise exceptions.TimeoutError("Timeout writing to socket") from error
        except OSError as error:
            raise exceptions.ConnectionError(f"Error while writing to socket: {error}") from error

    def read(self) -> Reply:
        """The next reply. An error is a value, unless the server ends the connection with it."""
        reply = self._reader.gets()
        if reply is _NOTHING and self._glance is not None:
            self._glance.until_ready(self._receive_now, self._receive)
            reply = self._reader.gets()
        while reply is _NOTHING:
            self._receive()
            reply = self._reader.gets()
        if isinstance(reply, exceptions.ConnectionError):
            raise reply
        return reply

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except TimeoutError as error:
            raise exceptions.TimeoutError("Timeout reading from socket") from error
        except OSError as error:
            raise exceptions.ConnectionError(f"Error while reading from socket: {error}") from error
        self._feed(data)

    def _receive_now(self) -> bool:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            raise exceptions.ConnectionError(f"Error while reading from socket: {error}") from error
        self._feed(data)
        return True

    def _feed(self, data: bytes) -> None:
        if not data:
            raise exceptions.ConnectionError("Connection closed by server.")
        self._reader.feed(data)

    def is_quiet(self) -> bool:
        """Whether an idle connection is still open and has nothing to say; anything else means that it cannot be used."""
        try:
            return not self._connection.can_read(0)
        except exceptions.RedisError:
            return False

    def close(self) -> None:
        """End the connection, from whatever thread."""
        self._connection.disconnect()
