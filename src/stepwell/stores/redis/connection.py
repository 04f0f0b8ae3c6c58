"""Send commands to a Redis server in one packet, read their replies in order, and translate its errors.

The driver opens each connection (TLS, password, database). After that this module sends and parses the bytes itself, without the
work per command that the driver does and this store does not need.

A connection is lent to one thread at a time. An error, a timeout or an interrupt between the first byte sent and the last reply
read closes the connection: a reply that is still on its way would otherwise be taken for that of the next command.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
from redis import exceptions
from redis.connection import Connection, SSLConnection
from redis.sentinel import Sentinel

from stepwell.errors import StoreForeign, StoreFull, StoreUnavailable
from stepwell.stores.redis.url import RedisSettings

__all__ = [
    "Command",
    "RedisConnection",
    "RedisConnectionLost",
    "RedisRequestUnsent",
    "Reply",
    "Wire",
    "translate",
]


Reply = Any
"""A reply of the server: bytes, a number, a list or None; or an error, as a value."""

_NOTHING = object()
_CHUNK = 65_536


class Wire:
    """One open connection, used by one thread at a time."""

    def __init__(self, settings: RedisSettings, address: tuple[str, int], reply_seconds: float | None) -> None:
        kind = SSLConnection if settings.is_encrypted else Connection
        # The driver's socket and parser are private and its types incomplete, but there is no other way to them.
        host, port = address
        self._connection: Any = kind(host=host, port=port, **settings.driver_options())
        self._connection.connect()
        self._socket: Any = self._connection._sock
        # Until here the shorter timeout of connecting held, also for a server that accepts and then says nothing.
        self._socket.settimeout(reply_seconds)
        # The driver's parser knows the class of each error.
        error_of = self._connection._parser.parse_error
        self._reader = hiredis.Reader(protocolError=exceptions.InvalidResponse, replyError=error_of, notEnoughData=_NOTHING)
        self.used_at = 0.0
        """When it was last given back."""
        self.is_read_only = False
        """Whether the server has reported that it is a replica now: a failover has moved the primary."""

    def send(self, packet: bytes) -> None:
        """Send everything."""
        try:
            self._socket.sendall(packet)
        except TimeoutError as error:
            raise exceptions.TimeoutError("Timeout writing to socket") from error
        except OSError as error:
            raise exceptions.ConnectionError(f"Error while writing to socket: {error}") from error

    def read(self) -> Reply:
        """Return the next reply; an error as a value, unless the server ends the connection with it."""
        reply = self._reader.gets()
        while reply is _NOTHING:
            self._receive()
            reply = self._reader.gets()
        if isinstance(reply, exceptions.RedisError):
            if isinstance(reply, exceptions.ConnectionError):
                raise reply
            self.is_read_only = self.is_read_only or isinstance(reply, exceptions.ReadOnlyError)
        return reply

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except TimeoutError as error:
            raise exceptions.TimeoutError("Timeout reading from socket") from error
        except OSError as error:
            raise exceptions.ConnectionError(f"Error while reading from socket: {error}") from error
        if not data:
            raise exceptions.ConnectionError("Connection closed by server.")
        self._reader.feed(data)

    def is_quiet(self) -> bool:
        """Return whether an idle connection is open and silent; any other one cannot be used."""
        try:
            return not self._connection.can_read(0)
        except exceptions.RedisError:
            return False

    def close(self) -> None:
        """Close the connection; any thread may."""
        self._connection.disconnect()


# Before version 7 the error of a command inside a script comes wrapped; its code stands behind the line number.
_INSIDE_SCRIPT = re.compile(r"Error running script \(call to \w+\): @user_script: ?\d+: (?:@user_script: ?\d+: )?-?(.*)", re.DOTALL)

_CLASSES: tuple[tuple[type[exceptions.RedisError], str], ...] = (
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.InvalidResponse, "protocol"),
    (exceptions.TimeoutError, "timeout"),
    (exceptions.ConnectionError, "connection"),
)

# By the first word of an error, or the words that the ones without a code of their own begin with.
_MEANINGS: tuple[tuple[str, type[StoreUnavailable], str], ...] = (
    ("timeout", StoreUnavailable, "did not answer in time; check the server and the network, or raise the timeouts in the URL"),
    (
        "silence",
        StoreUnavailable,
        "did not answer in time; check the server and the network, or write redis:// if it does not encrypt",
    ),
    ("connection", StoreUnavailable, "cannot be reached; start it, or correct the host and port in the URL"),
    (
        "encryption",
        StoreUnavailable,
        "cannot be reached by TLS; check its certificate and ssl_ca_certs in the URL, or write redis:// if it does not encrypt",
    ),
    (
        "protocol",
        StoreForeign,
        "answered as no Redis server does; correct the host and port in the URL, or write rediss:// if it wants TLS",
    ),
    ("NOAUTH", StoreUnavailable, "refused the user or password; correct them in the URL"),
    (
        "NOPERM",
        StoreUnavailable,
        "does not allow this user a command or key; give it +@all -@dangerous +info, ~PREFIX:* and &PREFIX:* by ACL SETUSER",
    ),
    ("The user executing the script", StoreUnavailable, "does not allow this user a command of a script; allow it by ACL SETUSER"),
    ("LOADING", StoreUnavailable, "is still loading its data; try again when it has finished"),
    ("READONLY", StoreUnavailable, "is a read-only replica; point the URL at its primary"),
    ("OOM", StoreFull, "has reached its maxmemory; raise it or free some memory, then the same call works again"),
    ("NOSCRIPT", StoreUnavailable, "forgets scripts as soon as they are loaded; allow SCRIPT LOAD and EVALSHA"),
    ("unknown command", StoreUnavailable, "lacks a command that this store needs; allow EVALSHA, SCRIPT and INFO"),
    ("DB index is out of range", StoreUnavailable, "has no such database; correct the number at the end of the URL"),
    (
        "SELECT is not allowed in cluster mode",
        StoreUnavailable,
        "is in cluster mode, which this store cannot use; point the URL at a single server, or use redis+sentinel:// for failover",
    ),
    ("MISCONF", StoreUnavailable, "cannot write to its disk and has stopped all writing; see its log and free some space"),
    ("NOREPLICAS", StoreUnavailable, "has fewer replicas than min-replicas-to-write asks for; bring them back"),
    ("BUSY", StoreUnavailable, "is busy with a script of another program; end it by SCRIPT KILL"),
    ("MASTERDOWN", StoreUnavailable, "is a replica that has lost its primary; bring the primary back"),
    ("WRONGTYPE", StoreForeign, "has keys of another program under this prefix; choose another one by ?prefix= in the URL"),
)


def translate(error: BaseException, settings: RedisSettings) -> StoreUnavailable:
    """Return the Stepwell error for an error of Redis or its driver."""
    if isinstance(error, StoreUnavailable):
        return error
    said = _said(error)
    if said == "timeout" and settings.is_encrypted:
        said = "silence"
    for start, ours, advice in _MEANINGS:
        if said.startswith(start):
            return ours(f"the Redis server {settings.name} {advice.replace('PREFIX', settings.prefix)} ({error})")
    return StoreUnavailable(f"the Redis server {settings.name} refused a command ({type(error).__name__}: {error})")


def _said(error: BaseException) -> str:
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return "encryption"  # the driver's error is that of any failed connection
    for kind, code in _CLASSES:
        if isinstance(error, kind):
            return code
    text = str(error).removeprefix("ERR ")
    inside = _INSIDE_SCRIPT.match(text)
    return text if inside is None else inside[1]


Command = tuple[bytes | str | int, ...]

# Its stub knows commands of one word only.
_pack = cast("Callable[[Command], bytes]", hiredis.pack_command)

_MOST_IDLE = 16

# A connection that was in use a moment ago is reused without a check, which would cost a tenth of a commit.
_FRESH_SECONDS = 0.05


class RedisRequestUnsent:
    """In place of a reply: the command never left this process, or the server refused it without running it."""

    def __init__(self, error: StoreUnavailable) -> None:
        self.error = error


class RedisConnectionLost:
    """In place of a reply: the command was sent, and it is unknown whether the server ran it."""

    def __init__(self, error: StoreUnavailable) -> None:
        self.error = error


class RedisConnection:
    """A pool of connections to the server, or to the present primary that the Sentinels name."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self._sentinel: Any = None
        if settings.sentinels:
            self._sentinel = Sentinel(settings.sentinels, sentinel_kwargs=settings.sentinel_options())
        self._lock = threading.Lock()
        self._idle: list[Wire] = []
        self._is_closed = False

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one packet and return a reply for each.

        An error of the server, ``RedisRequestUnsent`` and ``RedisConnectionLost`` stand in the place of replies.
        """
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
        if wire.is_read_only:
            # After a failover the primary is another server: every connection to this one is of no use any more.
            wire.close()
            self._close_idle()
        else:
            self._give_back(wire)
        return replies

    @staticmethod
    def pack(commands: Sequence[Command]) -> bytes:
        """Return the bytes of commands, as they are sent."""
        return b"".join(map(_pack, commands))

    def _missing(self, error: exceptions.RedisError) -> RedisConnectionLost | RedisRequestUnsent:
        ours = translate(error, self.settings)
        # With these two the server says that it did nothing; the driver raises them because it closes the connection.
        is_refusal = isinstance(error, exceptions.BusyLoadingError | exceptions.AuthenticationError)
        return RedisRequestUnsent(ours) if is_refusal else RedisConnectionLost(ours)

    def connect(self, reply_seconds: float | None) -> Wire:
        """Open a connection outside the pool; the caller closes it."""
        return Wire(self.settings, self._address(), reply_seconds)

    def _address(self) -> tuple[str, int]:
        """Return where the server is now; the Sentinels are asked each time, since a failover moves the primary."""
        if self._sentinel is None:
            return self.settings.host, self.settings.port
        host, port = self._sentinel.discover_master(self.settings.service)
        return host, port

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
        self._close_idle()
        for client in () if self._sentinel is None else self._sentinel.sentinels:
            client.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()
