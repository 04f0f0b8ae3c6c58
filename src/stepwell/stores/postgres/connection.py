"""A connection to the server: send a statement, wait for its reply, and map the server's error codes to Stepwell's errors.

Statements go through libpq (``psycopg.pq``) by name, prepared once per connection, in binary. For a small statement that takes a
third less time than a cursor, and it leaves the waiting to this module: with a timeout, and open to Ctrl-C. After an exchange the
connection is either clean (a refused statement is a reply, too) or closed, so that no caller ever reads another statement's
reply.
"""

from __future__ import annotations

import select
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256

import psycopg
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from stepwell.errors import Corrupted, StoreForeign, StoreFull, StoreUnavailable
from stepwell.stores.postgres.statements import Row, encode, rows_of
from stepwell.stores.postgres.url import PostgresSettings

__all__ = [
    "CONNECTION_FAILURE",
    "LOST_RACE",
    "READ_ONLY",
    "PostgresConnection",
    "PostgresConnectionLost",
    "StatementCall",
    "StatementRefused",
    "error_for",
]


CONNECTION_FAILURE = "08006"
READ_ONLY = "25006"

LOST_RACE = frozenset({"40001", "40P01", "55P03", "23505"})
"""The transaction conflicted with another one: the whole transaction is tried again.

A unique violation is one of them: another process inserted the row after ours had looked for it, and the next try finds it.
"""

_BUSY = "other writers were in the way too often; try again, or look for long transactions in pg_stat_activity"
_SHUT = "the server is shutting down or starting up; try again in a moment"
_PREPARE = "a prepared statement got lost; behind a PgBouncer in transaction mode add ?prepare=off to the URL"
_MISSING = "tables are missing; open the store again to create them, or restore them from a backup"

# Looked up by the whole code first, then by its prefixes. Never by message: messages change with language and version.
_ERRORS: dict[str, tuple[type[StoreUnavailable], str]] = {
    "08": (StoreUnavailable, "the connection was lost; check that the server runs and that the network reaches it, then try again"),
    "0A": (StoreUnavailable, "the server lacks a feature; use PostgreSQL 14 or newer"),
    "22": (StoreUnavailable, "the server refused a value"),
    "23505": (StoreUnavailable, _BUSY),
    "25006": (StoreUnavailable, "the server is a read-only replica; point the URL at the primary"),
    "25P03": (StoreUnavailable, "the transaction stood still for too long and the server ended it; try again"),
    "26000": (StoreUnavailable, _PREPARE),
    "28": (StoreUnavailable, "the server refuses user {user!r}; check the user, pg_hba.conf and the rights of the role"),
    "28P01": (StoreUnavailable, "the password for user {user!r} is wrong; correct it in the URL"),
    "3D000": (StoreUnavailable, "there is no database {database!r}; create it with CREATE DATABASE, or correct the URL"),
    "3F000": (StoreUnavailable, _MISSING),
    "40001": (StoreUnavailable, _BUSY),
    "40P01": (StoreUnavailable, _BUSY),
    "42501": (StoreUnavailable, "user {user!r} lacks a right that the store needs; grant it, or connect as the tables' owner"),
    "42703": (StoreForeign, "a table has other columns than ours; name another schema with ?schema=..."),
    "42P01": (StoreUnavailable, _MISSING),
    "42P05": (StoreUnavailable, _PREPARE),
    "53": (StoreUnavailable, "the server is short of a resource; see its log"),
    "53100": (StoreFull, "the server's disk is full; free some space and try again"),
    "53300": (
        StoreUnavailable,
        "the server has no connection left; raise max_connections or the role's limit, or lower ?pool_size",
    ),
    "54": (StoreUnavailable, "the statement is over one of the server's own limits"),
    "55P03": (StoreUnavailable, _BUSY),
    "57014": (StoreUnavailable, "the server cancelled the statement, as its statement_timeout says; try again"),
    "57P": (StoreUnavailable, _SHUT),
    "58": (StoreUnavailable, "the server's system gave an error; see its log"),
    "XX001": (Corrupted, "the server found damaged data; restore it from a backup"),
    "XX002": (Corrupted, "the server found a damaged index; run REINDEX, or restore it from a backup"),
}


def error_for(sqlstate: str, words: str, settings: PostgresSettings) -> StoreUnavailable:
    """Return the Stepwell error for an error code: which store, what to do about it, and the server's own message."""
    for length in (5, 3, 2):
        if sqlstate[:length] in _ERRORS:
            kind, advice = _ERRORS[sqlstate[:length]]
            return kind(f"{settings.place}: {advice.format(user=settings.user, database=settings.database)} ({sqlstate}: {words})")
    return StoreUnavailable(f"{settings.place}: the server refused the statement ({sqlstate}: {words})")


StatementCall = tuple[str, Sequence[object]]
"""A statement's name and its arguments."""

Database = psycopg.Connection[tuple[object, ...]]

_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE, ExecStatus.PIPELINE_ABORTED)
_BINARY = [1] * 32
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
# poll() has no limit on descriptors' numbers and costs one call; Windows has only select().
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class StatementRefused(Exception):
    """The server replied with an error: the statement had no effect, and the connection is clean."""

    def __init__(self, sqlstate: str, words: str) -> None:
        super().__init__(sqlstate, words)
        self.sqlstate, self.words = sqlstate, words


class PostgresConnectionLost(StatementRefused):
    """The connection is lost. If the statement ``was_sent``, its outcome is unknown."""

    def __init__(self, sqlstate: str, words: str, *, was_sent: bool) -> None:
        super().__init__(sqlstate, words)
        self.was_sent = was_sent


class PostgresConnection:
    """A connection for one thread at a time."""

    def __init__(self, database: Database, settings: PostgresSettings, statements: Mapping[str, bytes]) -> None:
        self._database, self._pgconn, self._statements = database, database.pgconn, statements
        self._is_preparing, self._reply_timeout = settings.is_preparing, settings.reply_timeout
        self._prepared: set[str] = set()
        self._has_input = _input_check(self._pgconn.socket)
        self.used_at = 0.0
        """When it was last returned to the pool."""
        self.server_process = self._pgconn.backend_pid
        """The server process at the other end, as the server reported it at connect; behind a pooler it is meaningless."""

    @property
    def is_closed(self) -> bool:
        """Return whether the connection is closed."""
        return self._database.closed

    def is_fresh(self) -> bool:
        """Return whether the connection is still open, as far as is known without a round trip.

        A server that closed an idle connection has said so by now. Better to notice before a commit is sent: afterwards its outcome
        would be unknown.
        """
        if self.is_closed:
            return False
        if self._has_input(0):
            try:
                self._pgconn.consume_input()
            except psycopg.Error:
                self.close()
                return False
            # No statement is under way, so the input can only be a notice or the end of the connection.
            if self._pgconn.status != ConnStatus.OK or self._has_input(0):
                self.close()
                return False
        return True

    def close(self) -> None:
        """Close the connection. An open transaction is rolled back; a commit under way has an unknown outcome."""
        if not self._database.closed:
            self._database.close()

    def run(self, name: str, *arguments: object) -> list[Row]:
        """Run one statement and return its rows: one round trip."""
        return rows_of(self._exchange(name, arguments))

    def _exchange(self, name: str, arguments: Sequence[object]) -> PGresult:
        pgconn, was_sent = self._pgconn, False
        data = [encode(argument) for argument in arguments]
        try:
            self._prepare(pgconn, name)
            was_sent = True
            self._send(name, data)
            return self._answer(pgconn)
        except psycopg.Error as error:
            self.close()
            raise PostgresConnectionLost(CONNECTION_FAILURE, _words(error), was_sent=was_sent) from error
        except PostgresConnectionLost as lost:
            self.close()
            lost.was_sent = was_sent
            raise
        except StatementRefused:
            raise
        except BaseException:
            self.close()
            raise

    def _prepare(self, pgconn: PGconn, name: str) -> None:
        if self._is_preparing and name not in self._prepared:
            pgconn.send_prepare(_prepared_name(name, self._statements[name]), self._statements[name])
            self._answer(pgconn)
            self._prepared.add(name)

    def run_all(self, calls: Sequence[StatementCall]) -> list[list[Row]]:
        """Run several statements in one round trip and return their rows. The first error skips all statements after it."""
        encoded = [(name, [encode(argument) for argument in arguments]) for name, arguments in calls]
        pgconn = self._pgconn
        try:
            pgconn.enter_pipeline_mode()
            sent = self._send_all(encoded)
            pgconn.pipeline_sync()
            answers = self._answers(pgconn, sent)
            pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            self.close()
            raise PostgresConnectionLost(CONNECTION_FAILURE, _words(error), was_sent=True) from error
        except BaseException:
            self.close()
            raise
        return _unless_refused(answers)

    def _send_all(self, calls: Sequence[tuple[str, Sequence[bytes | None]]]) -> list[tuple[str, bool]]:
        """Send statements in pipeline mode. Return what was sent in order: the name, and whether it was only prepared."""
        sent: list[tuple[str, bool]] = []
        for name, data in calls:
            if self._is_preparing and name not in self._prepared and (name, True) not in sent:
                self._pgconn.send_prepare(_prepared_name(name, self._statements[name]), self._statements[name])
                sent.append((name, True))
            self._send(name, data)
            sent.append((name, False))
        return sent

    def _send(self, name: str, data: Sequence[bytes | None]) -> None:
        formats = _BINARY[: len(data)]
        if self._is_preparing:
            self._pgconn.send_query_prepared(_prepared_name(name, self._statements[name]), data, formats, 1)
        else:
            self._pgconn.send_query_params(self._statements[name], data, None, formats, 1)

    def _answer(self, pgconn: PGconn) -> PGresult:
        """Return the result of the statement that was sent, once the server is ready for the next one."""
        deadline = time.monotonic() + self._reply_timeout
        self._flush(pgconn, deadline)
        first = refused = None
        while (result := self._next(pgconn, deadline)) is not None:
            first = first or result
            if result.status in _FAILED:
                refused = _refusal(result)
                if isinstance(refused, PostgresConnectionLost):
                    raise refused
        if refused is not None or first is None:
            raise refused or PostgresConnectionLost(CONNECTION_FAILURE, "no answer", was_sent=True)
        return first

    def _answers(self, pgconn: PGconn, sent: Sequence[tuple[str, bool]]) -> list[PGresult]:
        """Return the results of a pipeline. Reads up to its sync, so that nothing is left over for the next exchange."""
        deadline = time.monotonic() + self._reply_timeout
        self._flush(pgconn, deadline)
        answers: list[PGresult] = []
        for name, is_preparation in sent:
            result = self._result(pgconn, deadline)
            if not is_preparation or result.status in _FAILED:
                answers.append(result)
            else:
                self._prepared.add(name)
        self._result(pgconn, deadline)
        return answers

    def _result(self, pgconn: PGconn, deadline: float) -> PGresult:
        """Return the next result of a pipeline. Raises at once for an error that ends the connection: no more would come."""
        while (result := self._next(pgconn, deadline)) is None:
            pass
        # The server skips statements after an error; their results carry no error of their own.
        is_skipped = result.status == ExecStatus.PIPELINE_ABORTED
        if result.status in _FAILED and not is_skipped and isinstance(refused := _refusal(result), PostgresConnectionLost):
            raise refused
        if result.status != ExecStatus.PIPELINE_SYNC:
            self._next(pgconn, deadline)
        return result

    def _next(self, pgconn: PGconn, deadline: float) -> PGresult | None:
        while pgconn.is_busy():
            if not self._has_input(max(deadline - time.monotonic(), 0)):
                raise self._too_late()
            pgconn.consume_input()
        return pgconn.get_result()

    def _flush(self, pgconn: PGconn, deadline: float) -> None:
        """Send everything, and read meanwhile: otherwise both sides could wait for the other to empty its buffer."""
        while pgconn.flush():
            with _Selector() as selector:
                selector.register(pgconn.socket, _READ | _WRITE)
                ready = selector.select(max(deadline - time.monotonic(), 0))
            if not ready:
                raise self._too_late()
            if ready[0][1] & _READ:
                pgconn.consume_input()

    def _too_late(self) -> PostgresConnectionLost:
        return PostgresConnectionLost(CONNECTION_FAILURE, f"no answer within {self._reply_timeout:g} s", was_sent=True)


def _input_check(socket: int) -> Callable[[float], object]:
    """Return a function that waits up to some seconds for input on a socket, and returns something true if there is any.

    It calls poll() directly: a selector around the same system call takes longer than the call.
    """
    if not hasattr(select, "poll"):  # Windows
        return lambda seconds: select.select([socket], (), (), seconds)[0]
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return lambda seconds: poll.poll(seconds * 1000)


@cache
def _prepared_name(name: str, text: bytes) -> bytes:
    """Return a statement's name on the server, with a digest of its text.

    A pooler that shares server sessions may know the name from another schema or version; the same name must then mean the same
    statement.
    """
    return f"{sha256(text).hexdigest()[:16]}_stepwell_{name}".encode()


def _refusal(result: PGresult) -> StatementRefused:
    sqlstate = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode() or CONNECTION_FAILURE
    severity = result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) or b""
    words = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode(errors="replace").strip()
    if severity in (b"FATAL", b"PANIC") or sqlstate.startswith("08"):
        return PostgresConnectionLost(sqlstate, words, was_sent=True)
    return StatementRefused(sqlstate, words)


def _unless_refused(answers: Sequence[PGresult]) -> list[list[Row]]:
    for answer in answers:
        if answer.status in _FAILED:
            raise _refusal(answer)
    return [rows_of(answer) for answer in answers]


def _words(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
