"""Connecting: a link to a server that can be used, or the reason why not, within the connect timeout."""

from __future__ import annotations

import os
import re
import selectors
import time
from collections.abc import Mapping

import psycopg
from psycopg import pq
from psycopg.pq import ConnStatus, PollingStatus, Trace

from stepwell.errors import StoreUnavailable, StoreUnsafe
from stepwell.stores.postgres.link import Database, PostgresConnection, StatementRefused
from stepwell.stores.postgres.settings import PostgresSettings
from stepwell.stores.postgres.sqlstate import CONNECTION_FAILURE, READ_ONLY, error_for

__all__ = ["connect", "connect_database", "link_to"]

# The oldest version that is still maintained, as a number of libpq's.
_OLDEST = 140_000

_AWAY = "cannot be reached; check that the server runs, the host and the port"


def connect(settings: PostgresSettings, statements: Mapping[str, bytes]) -> PostgresConnection:
    """A link that is ready to be asked."""
    return link_to(connect_database(settings), settings, statements)


def link_to(database: Database, settings: PostgresSettings, statements: Mapping[str, bytes]) -> PostgresConnection:
    """The same on a connection that is there."""
    link = PostgresConnection(database, settings, statements)
    if settings.is_preparing:
        try:
            link.ask("keep_to_indexes", link.server_process)
        except StatementRefused as refused:
            link.close()
            raise error_for(refused.sqlstate, refused.words, settings) from refused
    return link


def connect_database(settings: PostgresSettings) -> Database:
    """A connection in autocommit to a server that is new enough and can be written to."""
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


# The same words of the same server mean the same code. Asking once is also all that we can afford: see below.
_codes: dict[tuple[str, str], str] = {}


def _code_of(words: str, settings: PostgresSettings, deadline: float) -> str | None:
    """The code behind a failed connection, if the server gave one and it can be found out here."""
    found = _codes.get((settings.conninfo, words))
    if found is None and hasattr(os, "memfd_create") and len(_codes) < 1_000:
        found = _traced_code(settings, deadline)
        if found is not None:
            _codes[settings.conninfo, words] = found
    return found


def _traced_code(settings: PostgresSettings, deadline: float) -> str | None:
    """The code with which the server refuses a connection.

    libpq gives no code for a failed connection, only words, and words change with the server's language. Its trace of the messages
    has the code; so the connection is tried once more with the trace on, into a file that exists in memory alone. The stream that
    libpq makes of the descriptor is a few kilobytes that nobody can free: hence once for each kind of failure.
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
