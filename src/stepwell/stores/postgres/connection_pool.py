"""Connect to a server that Stepwell can use, within the connect timeout; and a pool of connections for reading."""

from __future__ import annotations

import os
import re
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import psycopg
from psycopg import pq
from psycopg.pq import ConnStatus, PollingStatus, Trace

from stepwell.errors import StoreUnavailable, StoreUnsafe
from stepwell.stores.postgres.connection import (
    CONNECTION_FAILURE,
    LOST_RACE,
    READ_ONLY,
    Database,
    PostgresConnection,
    PostgresConnectionLost,
    StatementRefused,
    error_for,
)
from stepwell.stores.postgres.url import PostgresSettings

__all__ = [
    "Readers",
    "connect",
    "connect_database",
    "wrap_database",
]


# The oldest version that is still maintained, as a number of libpq's.
_OLDEST = 140_000

_AWAY = "cannot be reached; check that the server runs, the host and the port"


def connect(settings: PostgresSettings, statements: Mapping[str, bytes]) -> PostgresConnection:
    """Return a new connection. Raises :class:`StoreUnavailable` if the server cannot be used."""
    return wrap_database(connect_database(settings), settings, statements)


def wrap_database(database: Database, settings: PostgresSettings, statements: Mapping[str, bytes]) -> PostgresConnection:
    """Make a psycopg connection ready for the store's statements."""
    connection = PostgresConnection(database, settings, statements)
    if settings.is_preparing:
        try:
            connection.run("keep_to_indexes", connection.server_process)
        except StatementRefused as refused:
            connection.close()
            raise error_for(refused.sqlstate, refused.words, settings) from refused
    return connection


def connect_database(settings: PostgresSettings) -> Database:
    """Return a connection in autocommit, to a server that is new enough and accepts writes."""
    deadline = time.monotonic() + settings.connect_timeout
    try:
        database = psycopg.connect(settings.conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        words = " ".join(str(error).split())
        sqlstate = None if isinstance(error, psycopg.errors.ConnectionTimeout) else _code_of(words, settings, deadline)
        if sqlstate is None:
            raise StoreUnavailable(f"{settings.place}: {_AWAY} ({words})") from error
        raise error_for(sqlstate, words, settings) from error
    try:
        _check_usable(database, settings)
    except BaseException:
        database.close()
        raise
    return database


def _check_usable(database: Database, settings: PostgresSettings) -> None:
    info = database.info
    if info.server_version < _OLDEST:
        version = info.parameter_status("server_version")
        raise StoreUnsafe(f"{settings.place}: the server is version {version}; Stepwell needs PostgreSQL 14 or newer: upgrade it")
    if info.parameter_status("server_encoding") not in ("UTF8", None):
        encoding = info.parameter_status("server_encoding")
        raise StoreUnavailable(f"{settings.place}: the database's encoding is {encoding}; create one with ENCODING 'UTF8'")
    for setting in ("in_hot_standby", "default_transaction_read_only"):
        if info.parameter_status(setting) == "on":
            raise error_for(READ_ONLY, f"{setting} is on", settings)


# Error codes by server and message. Finding a code out leaks a little memory each time, see below, so each is looked up once.
_codes: dict[tuple[str, str], str] = {}


def _code_of(words: str, settings: PostgresSettings, deadline: float) -> str | None:
    """Return the error code of a failed connection, if the server sent one and this system can read it."""
    found = _codes.get((settings.conninfo, words))
    if found is None and hasattr(os, "memfd_create") and len(_codes) < 1_000:
        found = _traced_code(settings, deadline)
        if found is not None:
            _codes[settings.conninfo, words] = found
    return found


def _traced_code(settings: PostgresSettings, deadline: float) -> str | None:
    """Return the error code with which the server refuses a connection.

    libpq has no code for a failed connection, only a message, which changes with the server's language. Its trace of the protocol
    has the code. So the connection is tried once more with the trace on, into a file that exists in memory alone. The stream that
    libpq makes of the descriptor is a few kilobytes that cannot be freed: hence once for each kind of failure.
    """
    trace = os.memfd_create("stepwell-trace")
    try:
        attempt = pq.PGconn.connect_start(settings.conninfo.encode())
        try:
            attempt.trace(trace)
            attempt.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
            _run_to_end(attempt, deadline)
            attempt.untrace()
        finally:
            attempt.finish()
        return _last_code(os.pread(trace, 1_000_000, 0))
    except psycopg.Error:
        return None
    finally:
        os.close(trace)


def _run_to_end(attempt: pq.abc.PGconn, deadline: float) -> None:
    polled = PollingStatus.WRITING
    while polled in (PollingStatus.READING, PollingStatus.WRITING) and attempt.status != ConnStatus.BAD:
        with selectors.DefaultSelector() as selector:
            event = selectors.EVENT_READ if polled == PollingStatus.READING else selectors.EVENT_WRITE
            selector.register(attempt.socket, event)
            if not selector.select(max(deadline - time.monotonic(), 0.05)):
                return
        polled = attempt.connect_poll()


def _last_code(trace: bytes) -> str | None:
    codes = re.findall(rb'ErrorResponse\t.* C "([0-9A-Z]{5})"', trace)
    code = codes[-1].decode() if codes else None
    return None if code == CONNECTION_FAILURE else code


T = TypeVar("T")
_TRIES = 5

# A connection used this recently is not checked again. If it is lost after all, the read is repeated on another one.
_FRESH_SECONDS = 0.05


class Readers:
    """A pool of connections for reading, opened when needed. A connection that failed is closed, never lent again."""

    def __init__(self, settings: PostgresSettings, statements: Mapping[str, bytes]) -> None:
        self._settings, self._statements = settings, statements
        self._idle: list[PostgresConnection] = []
        self._lent = 0
        self._lock = threading.Lock()  # used directly: an interrupt while entering a Condition would leave it locked
        self._returned = threading.Condition(self._lock)
        self._is_closed = False

    def read(self, query: Callable[[PostgresConnection], T]) -> T:
        """Run a query that only reads. It is tried again after a lost connection and after a conflict with another transaction."""
        tries = 0
        while True:
            tries += 1
            try:
                return self._lend(query)
            except StatementRefused as refused:
                is_lost = isinstance(refused, PostgresConnectionLost)
                if is_lost:
                    self._close_idle()  # what ended one has probably ended all, and the next try needs one that works
                may_try = is_lost or refused.sqlstate in LOST_RACE or refused.sqlstate == READ_ONLY
                if not may_try or tries >= (2 if is_lost else _TRIES):
                    raise error_for(refused.sqlstate, refused.words, self._settings) from refused

    def close(self) -> None:
        """Close every connection, and wait for those that are lent."""
        with self._lock:
            self._is_closed = True
            self._returned.wait_for(lambda: not self._lent, self._settings.reply_timeout)
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _lend(self, query: Callable[[PostgresConnection], T]) -> T:
        connection = self._take()
        try:
            connection = connection or connect(self._settings, self._statements)
            return query(connection)
        except BaseException:
            # A transaction of several reads may still be open.
            if connection is not None:
                connection.close()
            raise
        finally:
            with self._lock:
                self._lent -= 1
                if connection is not None and not connection.is_closed:
                    connection.used_at = time.monotonic()
                    self._idle.append(connection)
                self._returned.notify()

    def _take(self) -> PostgresConnection | None:
        """Take a place in the pool, and the idle connection used last, if one is still open."""
        now = time.monotonic()
        deadline = now + self._settings.reply_timeout
        with self._lock:
            while self._lent >= self._settings.pool_size and not self._is_closed:
                if not self._returned.wait(deadline - time.monotonic()):
                    raise StoreUnavailable(
                        f"{self._settings.place}: all {self._settings.pool_size} connections are busy; raise ?pool_size=..."
                    )
            if self._is_closed:
                raise StoreUnavailable("the store is closed; open it again")
            self._lent += 1
            while self._idle:
                connection = self._idle.pop()
                if now - connection.used_at < _FRESH_SECONDS or connection.is_fresh():
                    return connection
        return None
