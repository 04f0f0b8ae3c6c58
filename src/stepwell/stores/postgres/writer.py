"""The short path of locks: a unit about one lock, alone in its group, is one statement and one round trip.

The writer: one connection, one group at a time, and what to do when the server says no or nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

from stepwell.clock import Clock
from stepwell.errors import CommitUnknown, InvalidInput, StepwellError, StoreUnavailable
from stepwell.fault_points import fault, is_armed
from stepwell.model.commit import Acquire, Commit, Lease, Outcome, Renew, Unit, Unlock, Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Enqueue
from stepwell.model.queue_lifecycle import is_plain
from stepwell.model.refusals import lock_held, lock_lost
from stepwell.stores.postgres.connection import (
    CONNECTION_FAILURE,
    LOST_RACE,
    READ_ONLY,
    PostgresConnection,
    PostgresConnectionLost,
    Question,
    StatementRefused,
    error_for,
)
from stepwell.stores.postgres.connection_pool import connect, connect_database, link_to
from stepwell.stores.postgres.decisions import misfit
from stepwell.stores.postgres.fast_path import (
    GroupStatement,
    alone_question,
    is_one_more,
    is_ordinary,
    is_plain_step,
    plain_question,
    steps_of,
    why_refused,
)
from stepwell.stores.postgres.group_view import View, footprint
from stepwell.stores.postgres.migrations import migrate
from stepwell.stores.postgres.queue_statements import (
    DIRECT,
    Direct,
    are_enqueues,
    enqueue_question,
    enqueued,
    is_new,
    one_question,
    write_direct,
)
from stepwell.stores.postgres.statements import Row, address, channel_of, fences_of, turn
from stepwell.stores.postgres.transaction import BEGIN, GroupTransaction
from stepwell.stores.postgres.url import PostgresSettings

__all__ = [
    "PostgresWriter",
    "is_one_lock",
    "why_held",
    "write_lock",
]


def is_one_lock(units: Sequence[Unit]) -> bool:
    """Whether the group is about one lock and nothing else."""
    return len(units) == 1 and isinstance(units[0], Acquire | Renew | Unlock) and misfit(units[0]) is None


def write_lock(
    link: PostgresConnection, unit: Acquire | Renew | Unlock, schema: str, ahead_ms: int, channel: str
) -> Outcome | None:
    """Grant, prolong or give back a lock; None if it is held by another, who is asked for afterwards."""
    where = address(unit.name)
    match unit:
        case Acquire():
            length, number = _milliseconds(unit.seconds), turn(schema, unit.name)
            rows = link.ask("acquire_one", number, where, unit.name, unit.holder, length, ahead_ms, fences_of(schema))
            return Written([Lease(unit.name, unit.holder, *rows[0])]) if rows else None
        case Renew():
            rows = link.ask("renew_one", where, unit.holder, unit.fence, _milliseconds(unit.seconds), ahead_ms)
            return Written([Lease(unit.name, unit.holder, *rows[0])]) if rows else lock_lost(unit)
        case Unlock():
            least = _milliseconds(unit.at_least_seconds)
            rows = link.ask("unlock_one", where, unit.holder, unit.fence, least, ahead_ms, channel)
            return Written() if rows else lock_lost(unit)


def why_held(link: PostgresConnection, unit: Acquire) -> StepwellError:
    """Who holds a lock is nobody's business, but until when is."""
    rows = link.ask("lock_row", address(unit.name))
    return lock_held(unit.name, rows[0][0] if rows else None)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


_WRITTEN = Written()
_MOST_NARROW = 10_000
_TRIES = 5
_FIRST_PAUSE_SECONDS = 0.005

# The server refused a value, a constraint or a size: the general path finds the unit it was and refuses that one alone. Or another
# transaction was in the way, and the session is so strict that waiting did not help; the general path says how strict it wants it.
_FOR_THE_LONG_WAY = ("22", "23", "40", "54")

Way = Callable[[PostgresConnection, Sequence[Any]], list[Outcome]]
"""How a group is written."""


class PostgresWriter:
    """Writes groups of units. After a failure its connection is clean, or replaced before the next group."""

    def __init__(self, settings: PostgresSettings, statements: Mapping[str, bytes], clock: Clock, limits: Limits) -> None:
        self._settings, self._statements, self._clock, self._limits = settings, statements, clock, limits
        self._channel = channel_of(settings.schema)
        self._link: PostgresConnection | None = None
        self._narrow: set[str] = set()
        """Workspaces that had a limit when an item was added to them: what they say is asked for at once."""

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write each unit whole or not at all, in one transaction; the whole of it is tried again if others were in the way."""
        fault("store.before_begin")
        return self._write(units, self._way_of(units), self._fresh_link())

    def _write(self, units: Sequence[Unit], write: Way, link: PostgresConnection) -> list[Outcome]:
        tries, has_reconnected = 0, False
        while True:
            try:
                return write(link, units)
            except StatementRefused as refused:
                if isinstance(refused, PostgresConnectionLost) or refused.sqlstate == READ_ONLY:
                    link.close()
                    if has_reconnected:
                        raise error_for(refused.sqlstate, refused.words, self._settings) from refused
                    has_reconnected = True
                elif write != self._write_long and refused.sqlstate[:2] in _FOR_THE_LONG_WAY:
                    write = self._write_long
                else:
                    tries += 1
                    self._pause_or_raise(refused, tries)
            except InvalidInput:
                if write == self._write_long:
                    raise
                write = self._write_long
            link = self._fresh_link()

    def _way_of(self, units: Sequence[Unit]) -> Way:
        """One statement where that is enough; the long way for all else, and past every point if a test listens."""
        if is_armed():
            return self._write_long
        if is_plain_step(units):
            return self._write_plain
        if are_enqueues(units):
            return self._write_enqueues
        if len(units) == 1 and isinstance(units[0], DIRECT):
            return self._write_direct
        if is_ordinary(units):
            return self._write_steps
        return self._write_lock if is_one_lock(units) else self._write_long

    def open(self) -> None:
        """Connect, and bring the schema up to what this code needs."""
        database = connect_database(self._settings)
        try:
            migrate(database, self._settings)
        except BaseException:
            database.close()
            raise
        self._link = link_to(database, self._settings, self._statements)

    @property
    def server_process(self) -> int | None:
        """The process that serves this writer; None if its connection was given up, since what comes from there then is news."""
        return None if self._link is None or self._link.is_closed else self._link.server_process

    def close(self) -> None:
        """Give the connection back."""
        if self._link is not None:
            self._link.close()

    def _fresh_link(self) -> PostgresConnection:
        if self._link is None or not self._link.is_fresh():
            self._link = connect(self._settings, self._statements)
        return self._link

    def _pause_or_raise(self, refused: StatementRefused, tries: int) -> None:
        if refused.sqlstate not in LOST_RACE or tries >= _TRIES:
            raise error_for(refused.sqlstate, refused.words, self._settings) from refused
        # Jitter, so that the two who met do not meet again.
        time.sleep(random.uniform(0, _FIRST_PAUSE_SECONDS * 2**tries))  # noqa: S311 - nothing secret about it

    def _write_lock(self, link: PostgresConnection, units: Sequence[Acquire | Renew | Unlock]) -> list[Outcome]:
        unit = units[0]
        try:
            outcome = write_lock(link, unit, self._settings.schema, self._clock.ahead_ms(), self._channel)
        except PostgresConnectionLost as lost:
            raise self._doubt(lost) from lost
        if outcome is None and isinstance(unit, Acquire):
            outcome = why_held(link, unit)
        return cast(list[Outcome], [outcome])

    def _doubt(self, lost: PostgresConnectionLost) -> PostgresConnectionLost | CommitUnknown:
        """What a lost connection means for a statement that is a whole transaction: once it is sent, its fate is unknown."""
        return self._unknown(lost) if lost.was_sent else lost

    def _write_plain(self, link: PostgresConnection, units: Sequence[Commit]) -> list[Outcome]:
        try:
            has_landed = _has_landed(link, plain_question(units[0]))
        except PostgresConnectionLost as lost:
            raise self._doubt(lost) from lost
        return [_WRITTEN] if has_landed else self._reasons(link, units)

    def _write_steps(self, link: PostgresConnection, units: Sequence[Unit]) -> list[Outcome]:
        try:
            outcomes = self._outcomes(link, units)
        except PostgresConnectionLost as lost:
            raise self._doubt(lost) from lost
        refused = [position for position, outcome in enumerate(outcomes) if outcome is None]
        if refused:
            reasons = self._reasons(link, [cast(Commit, units[position]) for position in refused])
            for position, reason in zip(refused, reasons, strict=True):
                outcomes[position] = reason
        return cast(list[Outcome], outcomes)

    def _outcomes(self, link: PostgresConnection, units: Sequence[Unit]) -> list[Outcome | None]:
        """Write a group in one round trip; None for a commit that did not land."""
        if is_one_more(units):
            return [_WRITTEN if _has_landed(link, alone_question(cast(Commit, units[0]))) else None]
        steps = steps_of(units, self._clock.ahead_ms(), self._channel)
        outcomes: list[Outcome | None] = [None] * len(units)
        for step, rows in zip(steps, self._ask_steps(link, steps, units), strict=True):
            for place, outcome in zip(step.places, step.read(rows), strict=True):
                outcomes[place] = outcome
        return outcomes

    def _ask_steps(self, link: PostgresConnection, steps: Sequence[GroupStatement], units: Sequence[Unit]) -> list[list[Row]]:
        if len(steps) == 1:
            name, arguments = steps[0].question
            return [link.ask(name, *arguments)]
        before: list[Question] = [*BEGIN, *footprint(unit for unit in units if isinstance(unit, Enqueue)).queue.desks()]
        try:
            answers = link.ask_all([*before, *(step.question for step in steps), ("commit", ())])
        except PostgresConnectionLost:
            raise
        except StatementRefused:
            _roll_back(link)
            raise
        return answers[len(before) : -1]

    def _reasons(self, link: PostgresConnection, commits: Sequence[Commit]) -> list[Outcome]:
        """Why commits were refused. The others of the group have landed, so a failure to find out is told to these alone."""
        try:
            try:
                return why_refused(link, commits)
            except PostgresConnectionLost:
                return why_refused(self._fresh_link(), commits)
        except StatementRefused as refused:
            return [error_for(refused.sqlstate, refused.words, self._settings) for _ in commits]
        except StoreUnavailable as error:
            return [error for _ in commits]

    def _write_enqueues(self, link: PostgresConnection, units: Sequence[Enqueue]) -> list[Outcome]:
        try:
            return [self._enqueue_alone(link, units[0])] if self._is_alone(units) else self._enqueue_all(link, units)
        except PostgresConnectionLost as lost:
            raise self._doubt(lost) from lost

    def _enqueue_all(self, link: PostgresConnection, units: Sequence[Enqueue]) -> list[Outcome]:
        name, arguments = enqueue_question(units, self._clock.ahead_ms(), self._channel)
        return enqueued(units, link.ask(name, *arguments))

    def _is_alone(self, units: Sequence[Enqueue]) -> bool:
        """Whether it is one item without names, and its workspace had no limit of what may wait so far."""
        if len(units) != 1 or len(units[0].items) != 1:
            return False
        [new] = units[0].items
        return is_plain(new) and new.workspace_id not in self._narrow

    def _enqueue_alone(self, link: PostgresConnection, unit: Enqueue) -> Outcome:
        """A plain insert, unless its workspace has a limit by now."""
        [new] = unit.items
        if _has_landed(link, one_question(new, self._clock.ahead_ms(), self._channel)):
            return enqueued([unit], [])[0]
        [outcome] = self._enqueue_all(link, [unit])
        if len(self._narrow) < _MOST_NARROW and is_new(outcome):
            self._narrow.add(new.workspace_id)
        return outcome

    def _write_direct(self, link: PostgresConnection, units: Sequence[Direct]) -> list[Outcome]:
        try:
            return [write_direct(link, units[0], self._clock.ahead_ms(), self._channel)]
        except PostgresConnectionLost as lost:
            raise self._doubt(lost) from lost

    def _write_runs(self, link: PostgresConnection, units: Sequence[Unit]) -> list[Outcome]:
        """Units that are statements of their own among others: run by run, in order, all in one transaction."""
        outcomes: list[Outcome] = []
        transaction = GroupTransaction(link, self._settings.schema, self._clock.ahead_ms(), self._limits)
        try:
            transaction.begin(units)
            fault("store.begun")
            for is_direct, run in groupby(units, key=lambda unit: isinstance(unit, DIRECT)):
                outcomes += self._write_run(link, transaction, list(run), is_direct=is_direct)
            fault("store.before_commit")
            self._commit(link)
        except CommitUnknown:
            raise
        except BaseException:
            _roll_back(link)
            raise
        return outcomes

    def _write_run(
        self, link: PostgresConnection, transaction: GroupTransaction, units: Sequence[Any], *, is_direct: bool
    ) -> list[Outcome]:
        if is_direct:
            return [write_direct(link, unit, self._clock.ahead_ms(), self._channel) for unit in units]
        outcomes: list[Outcome | None] = [misfit(unit) for unit in units]
        fitting = [position for position, outcome in enumerate(outcomes) if outcome is None]
        view, decided = transaction.prepare([units[position] for position in fitting])
        if view.has_changes():
            (transaction.finish_stepwise if is_armed() else transaction.write)(view)
        for position, outcome in zip(fitting, decided, strict=True):
            outcomes[position] = outcome
        return cast(list[Outcome], outcomes)

    def _commit(self, link: PostgresConnection) -> None:
        if not link.is_fresh():
            # The server has ended the transaction, and that is known for sure: the commit was not sent yet.
            raise PostgresConnectionLost(CONNECTION_FAILURE, "the server ended the connection", was_sent=False)
        try:
            link.ask("commit")
        except PostgresConnectionLost as lost:
            raise self._unknown(lost) from lost
        self._note_committed()

    def _write_long(self, link: PostgresConnection, units: Sequence[Unit]) -> list[Outcome]:
        if any(isinstance(unit, DIRECT) for unit in units):
            return self._write_runs(link, units)
        outcomes: list[Outcome | None] = [misfit(unit) for unit in units]
        fitting = [position for position, outcome in enumerate(outcomes) if outcome is None]
        transaction = GroupTransaction(link, self._settings.schema, self._clock.ahead_ms(), self._limits)
        try:
            view, decided = transaction.prepare([units[position] for position in fitting])
            fault("store.begun")
            self._finish(link, transaction, view)
        except CommitUnknown:
            raise
        except BaseException:
            _roll_back(link)
            raise
        for position, outcome in zip(fitting, decided, strict=True):
            outcomes[position] = outcome
        return cast(list[Outcome], outcomes)

    def _finish(self, link: PostgresConnection, transaction: GroupTransaction, view: View) -> None:
        if not view.has_changes():
            _roll_back(link)
            return
        if is_armed():
            transaction.finish_stepwise(view)
            fault("store.before_commit")
        if not link.is_fresh():
            # The server has ended the transaction, and that is known for sure: the commit was not sent yet.
            raise PostgresConnectionLost(CONNECTION_FAILURE, "the server ended the connection", was_sent=False)
        try:
            if is_armed():
                link.ask("commit")
            else:
                transaction.finish(view)
        except PostgresConnectionLost as lost:
            raise self._unknown(lost) from lost
        self._note_committed()

    def _note_committed(self) -> None:
        try:
            fault("store.committed")
        except Exception as error:
            raise CommitUnknown from error

    def _unknown(self, lost: PostgresConnectionLost) -> CommitUnknown:
        return CommitUnknown(
            f"{self._settings.place}: the connection was lost while the commit was under way ({lost.sqlstate}: {lost.words}), "
            "so it may or may not have landed; look its id up before you try again"
        )


def _has_landed(link: PostgresConnection, question: Question) -> bool:
    name, arguments = question
    return link.tell(name, *arguments) > 0


def _roll_back(link: PostgresConnection) -> None:
    """Leave no transaction open; a connection that cannot even do that is given up, which ends it as well."""
    if link.is_closed:
        return
    try:
        link.ask("rollback")
    except StatementRefused:
        link.close()
