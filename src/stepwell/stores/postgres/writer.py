"""The writer: write one group of units at a time on one connection; retry, reconnect, and report an unknown outcome.

A group takes one of three paths: the fast path (``fast_path``), one statement for a single lock, or the general path
(``transaction``), which can write anything. A group that the server refuses on the first two is tried again on the general path,
which finds the refused unit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from stepwell.clock import Clock
from stepwell.errors import CommitUnknown, InvalidInput, StepwellError, StoreUnavailable
from stepwell.fault_points import fault, fault_after_commit
from stepwell.model.commit import Acquire, Commit, Lease, Outcome, Renew, Unit, Unlock, Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Enqueue
from stepwell.model.refusals import lock_held, lock_lost
from stepwell.stores.postgres.connection import (
    LOST_RACE,
    READ_ONLY,
    PostgresConnection,
    PostgresConnectionLost,
    StatementCall,
    StatementRefused,
    error_for,
)
from stepwell.stores.postgres.connection_pool import connect, connect_database, wrap_database
from stepwell.stores.postgres.fast_path import GroupStatement, is_fast, refusal_reasons, statements_for
from stepwell.stores.postgres.locked_rows import footprint
from stepwell.stores.postgres.migrations import migrate
from stepwell.stores.postgres.outcomes import misfit
from stepwell.stores.postgres.queue_statements import DIRECT, Direct
from stepwell.stores.postgres.statements import Row, address, advisory_key, channel_of, fences_of
from stepwell.stores.postgres.transaction import BEGIN, GroupTransaction
from stepwell.stores.postgres.url import PostgresSettings

__all__ = [
    "PostgresWriter",
    "is_one_lock",
    "lock_refusal",
    "write_lock",
]


def is_one_lock(units: Sequence[Unit]) -> bool:
    """Return whether the group is one unit about one lock."""
    return len(units) == 1 and isinstance(units[0], Acquire | Renew | Unlock) and misfit(units[0]) is None


def write_lock(
    connection: PostgresConnection, unit: Acquire | Renew | Unlock, schema: str, ahead_ms: int, channel: str
) -> Outcome | None:
    """Acquire, renew or release a lock by one statement. Return None if another holder has it."""
    where = address(unit.name)
    match unit:
        case Acquire():
            length, number = _milliseconds(unit.seconds), advisory_key(schema, unit.name)
            rows = connection.run("acquire_one", number, where, unit.name, unit.holder, length, ahead_ms, fences_of(schema))
            return Written([Lease(unit.name, unit.holder, *rows[0])]) if rows else None
        case Renew():
            rows = connection.run("renew_one", where, unit.holder, unit.fence, _milliseconds(unit.seconds), ahead_ms)
            return Written([Lease(unit.name, unit.holder, *rows[0])]) if rows else lock_lost(unit)
        case Unlock():
            least = _milliseconds(unit.at_least_seconds)
            rows = connection.run("unlock_one", where, unit.holder, unit.fence, least, ahead_ms, channel)
            return Written() if rows else lock_lost(unit)


def lock_refusal(connection: PostgresConnection, unit: Acquire) -> StepwellError:
    """Return the error for a lock that another holder has, with the end of its lease."""
    rows = connection.run("lock_row", address(unit.name))
    return lock_held(unit.name, rows[0][0] if rows else None)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


_TRIES = 5
_FIRST_PAUSE_SECONDS = 0.005

# The server refused a value, a constraint or a size: the general path finds the unit and refuses that one alone. Or another
# transaction was in the way, and the session's isolation level is too strict for a lock wait; the general path sets its own level.
_FOR_THE_GENERAL_PATH = ("22", "23", "40", "54")

Path = Callable[[PostgresConnection, Sequence[Any]], list[Outcome]]
"""Writes a group on a connection."""


class PostgresWriter:
    """Writes groups of units. After a failure its connection is clean, or replaced before the next group."""

    def __init__(self, settings: PostgresSettings, statements: Mapping[str, bytes], clock: Clock, limits: Limits) -> None:
        self._settings, self._statements, self._clock, self._limits = settings, statements, clock, limits
        self._channel = channel_of(settings.schema)
        self._connection: PostgresConnection | None = None

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write each unit whole or not at all, in one transaction, which is tried again if it conflicts with others.

        :raises CommitUnknown: the connection was lost after the commit was sent, so the group may or may not have landed
        :raises StoreUnavailable: the server cannot be reached, or refuses to write; nothing landed
        """
        fault("store.before_begin")
        outcomes = self._write(units, self._path_for(units))
        fault_after_commit()
        return outcomes

    def _write(self, units: Sequence[Unit], write: Path) -> list[Outcome]:
        tries, has_reconnected = 0, False
        while True:
            connection = self.fresh_connection()
            try:
                return write(connection, units)
            except StatementRefused as refused:
                if isinstance(refused, PostgresConnectionLost) or refused.sqlstate == READ_ONLY:
                    connection.close()
                    if has_reconnected:
                        raise error_for(refused.sqlstate, refused.words, self._settings) from refused
                    has_reconnected = True
                elif write != self.write_general and refused.sqlstate[:2] in _FOR_THE_GENERAL_PATH:
                    write = self.write_general
                else:
                    tries += 1
                    self._pause_or_raise(refused, tries)
            except InvalidInput:
                if write == self.write_general:
                    raise
                write = self.write_general

    def _path_for(self, units: Sequence[Unit]) -> Path:
        if is_fast(units):
            return self.write_fast
        return self._write_lock if is_one_lock(units) else self.write_general

    def open(self) -> None:
        """Connect, and bring the schema up to what this code needs."""
        database = connect_database(self._settings)
        try:
            migrate(database, self._settings)
        except BaseException:
            database.close()
            raise
        self._connection = wrap_database(database, self._settings, self._statements)

    @property
    def server_process(self) -> int | None:
        """The server process behind the connection; None if that is closed, since its last notifications then have to be heard."""
        return None if self._connection is None or self._connection.is_closed else self._connection.server_process

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def fresh_connection(self) -> PostgresConnection:
        """Return the writer's connection, replaced if it was closed."""
        if self._connection is None or not self._connection.is_fresh():
            self._connection = connect(self._settings, self._statements)
        return self._connection

    def _pause_or_raise(self, refused: StatementRefused, tries: int) -> None:
        if refused.sqlstate not in LOST_RACE or tries >= _TRIES:
            raise error_for(refused.sqlstate, refused.words, self._settings) from refused
        # Jitter, so that the two transactions do not collide again.
        time.sleep(random.uniform(0, _FIRST_PAUSE_SECONDS * 2**tries))  # noqa: S311 - nothing secret about it

    def _write_lock(self, connection: PostgresConnection, units: Sequence[Acquire | Renew | Unlock]) -> list[Outcome]:
        unit = units[0]
        try:
            outcome = write_lock(connection, unit, self._settings.schema, self._clock.ahead_ms(), self._channel)
        except PostgresConnectionLost as lost:
            raise self._unknown_if_sent(lost) from lost
        if outcome is None and isinstance(unit, Acquire):
            outcome = lock_refusal(connection, unit)
        return cast(list[Outcome], [outcome])

    def write_fast(self, connection: PostgresConnection, units: Sequence[Unit]) -> list[Outcome]:
        """Write a group by the fast path."""
        statements = statements_for(units, self._clock.ahead_ms(), self._channel)
        try:
            answers = self._run(connection, statements, units)
        except PostgresConnectionLost as lost:
            raise self._unknown_if_sent(lost) from lost
        outcomes: list[Outcome | None] = [None] * len(units)
        for statement, rows in zip(statements, answers, strict=True):
            for place, outcome in zip(statement.places, statement.read(rows), strict=True):
                outcomes[place] = outcome
        refused = [place for place, outcome in enumerate(outcomes) if outcome is None]
        if refused:
            reasons = self._refusal_reasons(connection, [cast(Commit, units[place]) for place in refused])
            for place, reason in zip(refused, reasons, strict=True):
                outcomes[place] = reason
        return cast(list[Outcome], outcomes)

    def _run(self, connection: PostgresConnection, statements: Sequence[GroupStatement], units: Sequence[Unit]) -> list[list[Row]]:
        """Run the statements of a group as one transaction, in one round trip. One statement alone is a transaction already."""
        if len(statements) == 1:
            name, arguments = statements[0].call
            return [connection.run(name, *arguments)]
        enqueues = [unit for unit in units if isinstance(unit, Enqueue)]
        before: list[StatementCall] = [*BEGIN, *footprint(enqueues).queue.advisory_locks()]
        try:
            answers = connection.run_all([*before, *(statement.call for statement in statements), ("commit", ())])
        except PostgresConnectionLost:
            raise
        except StatementRefused:
            _roll_back(connection)
            raise
        return answers[len(before) : -1]

    def _refusal_reasons(self, connection: PostgresConnection, commits: Sequence[Commit]) -> list[Outcome]:
        """Return why commits were refused. The rest of the group has landed, so an error here is the outcome of these alone."""
        try:
            try:
                return refusal_reasons(connection, commits)
            except PostgresConnectionLost:
                return refusal_reasons(self.fresh_connection(), commits)
        except StatementRefused as refused:
            return [error_for(refused.sqlstate, refused.words, self._settings) for _ in commits]
        except StoreUnavailable as error:
            return [error for _ in commits]

    def write_general(self, connection: PostgresConnection, units: Sequence[Unit]) -> list[Outcome]:
        """Write a group by the general path, which can write anything."""
        outcomes: list[Outcome | None] = [misfit(unit) for unit in units]
        fitting = [(place, units[place]) for place, outcome in enumerate(outcomes) if outcome is None]
        transaction = GroupTransaction(connection, self._settings.schema, self._clock.ahead_ms(), self._limits)
        try:
            transaction.begin([unit for _, unit in fitting])
            for is_direct, run in groupby(fitting, key=lambda each: isinstance(each[1], DIRECT)):
                places, those = zip(*run, strict=True)
                written = (
                    [transaction.write_direct(cast(Direct, unit)) for unit in those] if is_direct else transaction.write(those)
                )
                for place, outcome in zip(places, written, strict=True):
                    outcomes[place] = outcome
            if transaction.has_changes:
                fault("store.before_commit")
                self._commit(transaction)
            else:
                _roll_back(connection)
        except CommitUnknown:
            raise
        except BaseException:
            _roll_back(connection)
            raise
        return cast(list[Outcome], outcomes)

    def _commit(self, transaction: GroupTransaction) -> None:
        try:
            transaction.commit()
        except PostgresConnectionLost as lost:
            raise self._unknown_if_sent(lost) from lost

    def _unknown_if_sent(self, lost: PostgresConnectionLost) -> PostgresConnectionLost | CommitUnknown:
        """Return what to raise for a connection lost in a committing round trip: once sent, the outcome is unknown."""
        return self._unknown(lost) if lost.was_sent else lost

    def _unknown(self, lost: PostgresConnectionLost) -> CommitUnknown:
        return CommitUnknown(
            f"{self._settings.place}: the connection was lost while the commit was under way ({lost.sqlstate}: {lost.words}), "
            "so it may or may not have landed; look its id up before you try again"
        )


def _roll_back(connection: PostgresConnection) -> None:
    """Leave no transaction open. A connection that fails to roll back is closed, which ends the transaction as well."""
    if connection.is_closed:
        return
    try:
        connection.run("rollback")
    except StatementRefused:
        connection.close()
