"""The PostgreSQL store: one schema of a database, shared by any number of processes on any number of machines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from stepwell.clock import Clock
from stepwell.contract.store import Capabilities, Durability, ExecutionQuery, StoreReads
from stepwell.errors import StoreUnavailable
from stepwell.model.checksum import unseal
from stepwell.model.commit import Head, Loaded, Outcome, StoredCommit, Unit
from stepwell.model.ids import revision_in
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Item, ItemQuery, Lane, QueueSettings, Tier, Workspace
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry, prefix_end
from stepwell.model.snapshot import StoredSnapshot
from stepwell.process import process_id
from stepwell.stores.postgres.connection import PostgresConnection, StatementCall, StatementRefused, error_for
from stepwell.stores.postgres.connection_pool import Readers, connect
from stepwell.stores.postgres.listener import Listener
from stepwell.stores.postgres.statements import Row, address, statements_of, texts
from stepwell.stores.postgres.url import PostgresSettings, parse_url
from stepwell.stores.postgres.writer import PostgresWriter
from stepwell.stores.queue_rows import item_of, items_question, queue_of, tier_of, workspace_of

__all__ = [
    "PostgresQueueReads",
    "PostgresStore",
]


_MOST_WAITS = 1_000


class PostgresQueueReads:
    """Reads of the queue."""

    _clock: Clock

    def _rows(self, name: str, *arguments: object) -> list[Row]:
        raise NotImplementedError

    def item(self, item_id: str) -> Item | None:
        """Return a queue item; None if there is none with this id."""
        rows = self._rows("item", item_id)
        return item_of(rows[0]) if rows else None

    def items(self, query: ItemQuery) -> list[Item]:
        """Return a page of queue items, newest first."""
        return [item_of(row) for row in self._rows(*items_question(query))]

    def lanes(self, workspace_id: str | None = None) -> list[Lane]:
        """Return how many items wait and run, by workspace and queue, in one snapshot."""
        return [_lane(row) for row in self._rows("lanes", workspace_id, self._clock.ahead_ms(), _MOST_WAITS)]

    def next_ready_ms(self) -> int | None:
        """Return when the next delayed item becomes ready; None if there is none."""
        rows = self._rows("next_ready")
        return rows[0][0] if rows else None

    def has_ready(self) -> bool:
        """Return whether any item is ready to be claimed."""
        return bool(self._rows("has_ready"))

    def workspaces(self) -> list[Workspace]:
        """Return all workspaces, ordered by id."""
        return [workspace_of(row) for row in self._rows("workspaces")]

    def tiers(self) -> list[Tier]:
        """Return all tiers, ordered by name."""
        return [
            tier_of([*row[:2], float(row[2]), _number(row[3]), *row[4:6], _number(row[6]), *row[7:]]) for row in self._rows("tiers")
        ]

    def queues(self) -> list[QueueSettings]:
        """Return the queues that have settings, ordered by name."""
        return [queue_of([*row[:3], _number(row[3])]) for row in self._rows("queues")]


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _lane(row: Row) -> Lane:
    workspace_id, queue, ready, delayed, claimed, dispatched, oldest, waits = row
    return Lane(
        workspace_id=workspace_id,
        queue=queue,
        ready=ready,
        delayed=delayed,
        claimed=claimed,
        dispatched=dispatched,
        oldest_ready_ms=oldest,
        waits_ms=tuple(int(wait) for wait in waits.split()),
    )


_NO_LIMIT = 2**62


class PostgresReads(PostgresQueueReads):
    """Reads of executions, scoped state and the queue."""

    def _rows_of_all(self, calls: Sequence[StatementCall]) -> list[list[Row]]:
        """Return the rows of several reads of one moment."""
        raise NotImplementedError

    def head_digests(self, execution_ids: Sequence[str]) -> list[str | None]:
        if len(execution_ids) == 1:
            rows = self._rows("head_digest", execution_ids[0])
            return [rows[0][0] if rows else None]
        found: dict[str, str] = dict(self._rows("head_digests", texts(execution_ids)))
        return [found.get(execution_id) for execution_id in execution_ids]

    def nudged(self, execution_ids: Sequence[str]) -> list[str]:
        return [row[0] for row in self._rows("nudged", texts(execution_ids))]

    def head(self, execution_id: str) -> Head | None:
        rows = self._rows("head", execution_id)
        return Head(*rows[0]) if rows else None

    def load(self, execution_id: str, at: int | None = None, since: int | None = None) -> Loaded | None:
        commits: StatementCall = ("commits_since_snapshot", (execution_id, at))
        if since is not None:
            commits = ("commits_between", (execution_id, since, at, _NO_LIMIT))
        snapshots: list[StatementCall] = [] if since is not None else [("newest_snapshot", (execution_id, at))]
        heads, *found, rows = self._rows_of_all([("head", (execution_id,)), *snapshots, commits])
        if not heads:
            return None
        snapshot = StoredSnapshot(*found[0][0]) if found and found[0] else None
        return Loaded(Head(*heads[0]), snapshot, [StoredCommit(*row) for row in rows])

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        return [StoredCommit(*row) for row in self._rows("commits_between", execution_id, after, None, limit)]

    def base(self, execution_id: str) -> StoredSnapshot | None:
        rows = self._rows("base", execution_id)
        return StoredSnapshot(*rows[0]) if rows else None

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        rows = self._rows("commit_of", execution_id, commit_id, revision_in(commit_id))
        return StoredCommit(*rows[0]) if rows else None

    def find(self, query: ExecutionQuery) -> list[Head]:
        after_ms, after_id = query.after or (None, None)
        rows = self._rows("find", query.workspace_id, query.workflow_id, query.status, after_ms, after_id, query.limit)
        return [Head(*row) for row in rows]

    def entries(self, scope: str, keys: Sequence[str]) -> dict[str, StoredEntry]:
        rows = self._rows("entries", address(scope), texts(keys), self._clock.ahead_ms())
        found = dict(_entries(scope, rows))
        return {key: found[key] for key in keys if key in found}

    def scan(self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> list[tuple[str, StoredEntry]]:
        rows = self._rows("scan", address(scope), prefix, prefix_end(prefix), after, self._clock.ahead_ms(), limit)
        return _entries(scope, rows)

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        return _entries(scope, self._rows("changes", address(scope), after))

    def totals(self, scope: str) -> ScopeTotals:
        rows = self._rows("totals", address(scope))
        return ScopeTotals(*rows[0]) if rows else ScopeTotals()

    def scopes(self, workspace_id: str | None = None) -> Iterator[str]:
        return iter([row[0] for row in self._rows("scopes", workspace_id)])


class PostgresStore(PostgresReads):
    """Keeps executions and state in one schema of a PostgreSQL database."""

    def __init__(self, url: str, clock: Clock, limits: Limits) -> None:
        self._settings: PostgresSettings = parse_url(url)
        self._clock = clock
        self._statements = statements_of(self._settings.schema)
        self.writer = PostgresWriter(self._settings, self._statements, clock, limits)
        self._readers = Readers(self._settings, self._statements)
        self._listener = Listener(self._settings, self._is_served_by)
        self._lock = threading.Lock()
        self._process = process_id()
        self._is_closed = False

    def open(self) -> None:
        self.writer.open()

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        # A forked child must not close its parent's connections: libpq would send a goodbye on the shared socket.
        if self._process == process_id():
            self._listener.close()
            self._readers.close()
            self.writer.close()

    def capabilities(self) -> Capabilities:
        return Capabilities(is_shared=True, has_blocking_writes=True, has_consistent_view=True)

    def durability(self) -> Durability:
        [(fsync, synchronous_commit, full_page_writes)] = self._rows("durability")
        if fsync == "off" or full_page_writes == "off":
            reason = f"PostgreSQL fsync={fsync}, full_page_writes={full_page_writes}: a power loss may damage everything"
            return Durability("none", reason)
        level = "normal" if synchronous_commit == "off" else "full"
        return Durability(level, f"PostgreSQL synchronous_commit={synchronous_commit}, fsync={fsync}")

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        self._check_usable()
        return self.writer.write(units) if units else []

    def _is_served_by(self, server_process: int) -> bool:
        return server_process == self.writer.server_process

    def now_ms(self) -> int:
        return self._rows("now", self._clock.ahead_ms())[0][0]

    def check(self) -> None:
        self._rows("check")

    def listen(self, wake: Callable[[str], None]) -> Callable[[], None]:
        self._check_usable()
        return self._listener.join(wake)

    def _rows(self, name: str, *arguments: object) -> list[Row]:
        self._check_usable()

        def query(connection: PostgresConnection) -> list[Row]:
            return connection.run(name, *arguments)

        return self._readers.read(query)

    def _rows_of_all(self, calls: Sequence[StatementCall]) -> list[list[Row]]:
        # All in one snapshot and one round trip.
        whole = [("begin_reading", ()), *calls, ("commit", ())]
        return self._readers.read(lambda connection: connection.run_all(whole))[1:-1]

    @contextmanager
    def consistent_view(self) -> Generator[StoreReads]:
        self._check_usable()
        # Not from the pool, since the view keeps the connection until its last read.
        connection = connect(self._settings, self._statements)
        try:
            view = _View(connection, self._settings, self._clock)
            view.begin()
            yield view
        finally:
            connection.close()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed; open it again")
        if self._process != process_id():
            raise StoreUnavailable(
                "the store was opened before a fork; a connection cannot be shared, so open it again in the child"
            )


class _View(PostgresReads):
    """Reads in one transaction of a connection of its own."""

    def __init__(self, connection: PostgresConnection, settings: PostgresSettings, clock: Clock) -> None:
        self._connection, self._settings, self._clock = connection, settings, clock

    def _rows(self, name: str, *arguments: object) -> list[Row]:
        try:
            return self._connection.run(name, *arguments)
        except StatementRefused as refused:
            raise error_for(refused.sqlstate, refused.words, self._settings) from refused

    def begin(self) -> None:
        """Begin the transaction. Its view is that of the first read."""
        self._rows("begin_reading")
        self._rows("check")

    def _rows_of_all(self, calls: Sequence[StatementCall]) -> list[list[Row]]:
        return [self._rows(name, *arguments) for name, arguments in calls]


def _entries(scope: str, rows: Iterable[Row]) -> list[tuple[str, StoredEntry]]:
    return [(row[0], unseal(scope, row[0], StoredEntry(*row[1:])).checked(scope, row[0])) for row in rows]
