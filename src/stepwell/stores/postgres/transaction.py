"""The general path: write units of every kind in one transaction of two round trips.

The first round trip locks and reads every row that the units touch. Each unit is then decided in memory, in order, on the rows as
the units before it leave them. The second round trip writes what changed and commits. See ``locked_rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from stepwell.model.checksum import seal, unseal
from stepwell.model.commit import Acquire, Commit, Head, Outcome, StoredCommit, Unit
from stepwell.model.ids import revision_in
from stepwell.model.limits import Limits
from stepwell.model.lock import LockRow
from stepwell.model.scope import workspace_of
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry
from stepwell.model.state_quota import Owner, StateRoom, StateSize, owners_of
from stepwell.stores.postgres.connection import CONNECTION_FAILURE, PostgresConnection, PostgresConnectionLost, StatementCall
from stepwell.stores.postgres.locked_items import changed_row, new_row
from stepwell.stores.postgres.locked_rows import Footprint, LockedRows, footprint
from stepwell.stores.postgres.outcomes import decide
from stepwell.stores.postgres.queue_statements import Direct, write_direct
from stepwell.stores.postgres.statements import Row, address, advisory_key, blobs, booleans, channel_of, fences_of, integers, texts

__all__ = ["BEGIN", "GroupTransaction"]

# The time to wait for a row that another transaction holds before the whole group is tried again, and the time that the server
# lets a transaction stand idle between its round trips. Both are far above the usual time, and below what a caller would wait for.
LOCK_TIMEOUT = "3s"
IDLE_TIMEOUT = "5s"
BEGIN: tuple[StatementCall, ...] = (("begin", ()), ("set_bounds", (LOCK_TIMEOUT, IDLE_TIMEOUT)))
"""The statements that begin a transaction of more than one statement."""


_Columns = Sequence[Callable[[Iterable[Any]], bytes]]


class _Batch(NamedTuple):
    """The rows of one statement, which takes an array per column."""

    name: str
    columns: _Columns
    rows: Sequence[Row]

    def call(self) -> StatementCall:
        return self.name, [pack(row[column] for row in self.rows) for column, pack in enumerate(self.columns)]


class GroupTransaction:
    """One transaction on a connection.

    A statement whose rows are not needed waits for the next round trip, so that a group of any kind takes two.
    """

    def __init__(self, connection: PostgresConnection, schema: str, ahead_ms: int, limits: Limits) -> None:
        self._connection, self._schema, self._ahead_ms, self._limits = connection, schema, ahead_ms, limits
        self._pending: list[StatementCall] = []
        self.has_changes = False
        """Whether there is anything to commit."""

    def begin(self, units: Sequence[Unit]) -> None:
        """Begin with the next round trip, which first takes the advisory locks of all units, as every process does."""
        self._pending += [*BEGIN, *footprint(units).queue.advisory_locks()]

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Lock and read what the units touch, decide them in order, and write what changed with the next round trip."""
        touched = footprint(units)
        swept = [(path, key) for sweep in touched.sweeps for path, key in self._run("expired", self._ahead_ms, sweep.limit)]
        touched.add_keys(swept)
        view = self._read(touched, sum(isinstance(unit, Acquire) for unit in units))
        view.swept = swept
        outcomes = [decide(view, unit, self._limits) for unit in units]
        if view.has_changes():
            self.has_changes = True
            self._pending += self._changes(view)
        return outcomes

    def write_direct(self, unit: Direct) -> Outcome:
        """Write a unit that is a statement by itself."""
        self.has_changes = True
        return write_direct(self._run, unit, self._ahead_ms, channel_of(self._schema))

    def commit(self) -> None:
        """Write what is left and commit, in one round trip.

        If the reply is lost, the transaction may have landed. If the server ended the connection before, it has not.
        """
        if not self._connection.is_fresh():
            raise PostgresConnectionLost(CONNECTION_FAILURE, "the server ended the connection", was_sent=False)
        self._connection.run_all([*self._pending, ("commit", ())])

    def _run(self, name: str, *arguments: object) -> list[Row]:
        return self._run_all([(name, arguments)])[0]

    def _run_all(self, calls: Sequence[StatementCall]) -> list[list[Row]]:
        pending, self._pending = self._pending, []
        return self._connection.run_all([*pending, *calls])[len(pending) :]

    def _changes(self, view: LockedRows) -> Iterator[StatementCall]:
        """Return the statements that write the changes of a view."""
        # First, so that a sweep keeps the tombstones that it makes itself: watchers of the scope still have to see them.
        for sweep in view.sweeps:
            yield "drop_tombstones", (view.now_ms - sweep.tombstone_ms, sweep.limit)
            yield "drop_expired_locks", (view.now_ms - sweep.tombstone_ms, sweep.limit)
        for batch in _batches(view):
            if batch.rows:
                yield batch.call()
        if view.topics:
            yield "notify", (channel_of(self._schema), texts(sorted(view.topics)))

    def _read(self, touched: Footprint, fences: int) -> LockedRows:
        """Lock and read a footprint in one round trip: executions, then locks, then scopes, each sorted, as every process does."""
        executions, locks, scopes = sorted(touched.executions), sorted(touched.locks), sorted(touched.scopes)
        keys = sorted(touched.keys)
        calls: list[StatementCall] = []
        if executions:
            calls.append(("lock_heads", [texts(executions)]))
        for number, claim in enumerate(touched.claims):
            # Earlier claims of the group may take what this one finds, so it looks for as many more.
            most = sum(each.limit for each in touched.claims[: number + 1])
            calls.append(("lock_due", [texts(claim.workflows), self._ahead_ms, most, integers(claim.newest().values())]))
        if touched.commits:
            calls.append(("seen_commits", _commit_ids(touched)))
        if touched.acquired:
            calls.append(("lock_names", [integers(sorted(advisory_key(self._schema, name) for name in touched.acquired))]))
        if locks:
            calls.append(("lock_locks", [_addresses(locks)]))
        if scopes:
            workspaces = [workspace_of(path) for path in scopes]
            calls.append(("open_scopes", [_addresses(scopes), texts(scopes), texts(workspaces)]))
            calls.append(("lock_scopes", [_addresses(scopes)]))
        if keys:
            calls.append(("stored_entries", [_addresses(scope for scope, _ in keys), texts(key for _, key in keys)]))
        if touched.cleared:
            calls.append(("expired_in_scopes", [_addresses(sorted(touched.cleared)), self._ahead_ms]))
        calls.extend(touched.queue.calls(self._ahead_ms))
        if fences:
            calls.append(("next_fences", (fences_of(self._schema), fences)))
        calls.append(("now", [self._ahead_ms]))
        answers: dict[str, list[Row]] = {}
        for (name, _), rows in zip(calls, self._run_all(calls), strict=True):
            answers.setdefault(name, []).extend(rows)
        return self._view(answers, touched, keys)

    def _view(self, answers: dict[str, list[Row]], touched: Footprint, keys: Sequence[tuple[str, str]]) -> LockedRows:
        limited = {owner for path, *_, is_limited in answers.get("lock_scopes", ()) if is_limited for owner in owners_of(path)}
        rooms, now_ms = self._rooms(sorted(limited)) if limited else ({}, answers["now"][0][0])
        fetch_expired = self._expired(now_ms, touched.cleared, answers.get("expired_in_scopes", ()))
        view = LockedRows(now_ms, self._fetch_entry, fetch_expired)
        for *columns, deleted_ms, is_nudged in (*answers.get("lock_heads", ()), *answers.get("lock_due", ())):
            head = Head(*columns)
            (view.heads if deleted_ms is None else view.deleted)[head.execution_id] = head
            if is_nudged:
                view.nudged.add(head.execution_id)
        for position, *stored in answers.get("seen_commits", ()):
            commit = touched.commits[int(position) - 1]
            view.seen[commit.execution_id, commit.commit_id] = StoredCommit(*stored)
        for name, *row in answers.get("lock_locks", ()):
            view.locks[name] = LockRow(*row)
        for path, *totals, _ in answers.get("lock_scopes", ()):
            view.totals[path] = ScopeTotals(*totals)
        view.rooms = rooms
        view.entries = dict.fromkeys(keys)
        for position, *row in answers.get("stored_entries", ()):
            scope, key = keys[int(position) - 1]
            view.entries[scope, key] = unseal(scope, key, StoredEntry(*row))
        view.queue.fill(answers)
        view.fences = [row[0] for row in answers.get("next_fences", ())]
        return view

    def _expired(self, now_ms: int, cleared: Collection[str], found: Sequence[Row]) -> Callable[[str], list[str]]:
        """Return a function for the expired keys of a scope. Those of cleared scopes were read already."""

        def fetch(scope: str) -> list[str]:
            if scope in cleared:
                return [key for path, key in found if path == scope]
            return [row[0] for row in self._run("expired_in_scope", address(scope), now_ms)]

        return fetch

    def _rooms(self, owners: Sequence[Owner]) -> tuple[dict[Owner, StateRoom], int]:
        """Return the limits and sizes of limited owners, counted if necessary, and the time after the locks."""
        calls: list[StatementCall] = [("state_rooms", [*_names(owners), self._ahead_ms]), ("now", [self._ahead_ms])]
        rows, [(now_ms,)] = self._run_all(calls)
        while uncounted := [Owner(*row[:2]) for row in rows if row[4] is None]:  # a count can be deleted right after it was made
            paths = zip(*(owner.scope_paths for owner in uncounted), strict=True)
            count = "count_state", [*_names(uncounted), *map(texts, paths)]
            _, rows, [(now_ms,)] = self._run_all([count, *calls])
        return {Owner(*row[:2]): StateRoom(row[2], row[3], StateSize(*row[4:])) for row in rows}, now_ms

    def _fetch_entry(self, scope: str, key: str) -> StoredEntry | None:
        rows = self._run("stored_entries", _addresses([scope]), texts([key]))
        return unseal(scope, key, StoredEntry(*rows[0][1:])) if rows else None


def _names(owners: Sequence[Owner]) -> tuple[bytes, bytes]:
    return texts(owner.workspace_id for owner in owners), texts(owner.workflow_id for owner in owners)


def _addresses(names: Iterable[str]) -> bytes:
    return blobs(address(name) for name in names)


def _commit_ids(touched: Footprint) -> list[bytes]:
    commits = touched.commits
    return [
        texts(commit.execution_id for commit in commits),
        texts(commit.commit_id for commit in commits),
        integers(revision_in(commit.commit_id) for commit in commits),
    ]


def _batches(view: LockedRows) -> Iterator[_Batch]:
    """Return the changes of a view, in an order in which each statement finds the rows that it needs."""
    heads = {**view.heads, **view.deleted}
    created = [_execution_row(view, heads[key]) for key in sorted(view.created)]
    yield _Batch("insert_executions", _EXECUTION, created)
    changed = [_head_row(view, heads[key]) for key in sorted(view.changed_heads - view.created)]
    yield _Batch("update_heads", _HEAD, changed)
    yield _Batch("insert_commits", _COMMIT, [_commit_row(commit) for commit in view.new_commits])
    yield _Batch("empty_named_commits", (texts, integers), sorted(view.dropped_history.items()))
    yield _Batch("delete_commits", (texts, integers), sorted(view.dropped_history.items()))
    yield _Batch("delete_snapshots", (texts, integers), sorted(view.dropped_history.items()))
    snapshots = [(key, *msgspec.structs.astuple(stored)) for (key, _), stored in view.new_snapshots.items()]
    yield _Batch("write_snapshots", (texts, integers, blobs, blobs, texts), snapshots)
    yield from _state_batches(view)
    yield _Batch("set_rates", (texts, texts), view.queue.changed_rates("rates"))
    yield _Batch("set_queue_rates", (texts, texts), view.queue.changed_rates("queue_rates"))
    for items in view.queue.changed_items():
        yield _Batch("update_items", _CHANGED_ITEM, [changed_row(item, view.now_ms) for item in items])
    added = [new_row(item, view.now_ms) for item in view.queue.new_items()]
    yield _Batch("insert_items", _NEW_ITEM, added)
    calls = [(item.item_id, item.workflow_id, item.version, item.input) for item in view.queue.requested_items()]
    yield _Batch("update_requests", (texts, texts, integers, blobs), calls)
    locks = [(address(name), name, *msgspec.structs.astuple(view.locks[name])) for name in sorted(view.changed_locks)]
    yield _Batch("write_locks", (blobs, texts, texts, integers, integers, integers), locks)
    # A row of one column, like the rows of all other batches.
    yield _Batch("drop_locks", (blobs,), [(address(name),) for name in sorted(view.dropped_locks)])


def _state_batches(view: LockedRows) -> Iterator[_Batch]:
    cleared = [(address(scope), revision, view.now_ms) for scope, revision in sorted(view.cleared.items())]
    yield _Batch("clear_scopes", (blobs, integers, integers), cleared)
    entries = [_entry_row(scope, key, view.entries[scope, key]) for scope, key in sorted(view.changed_entries)]
    yield _Batch("write_entries", (blobs, texts, blobs, integers, integers, integers, booleans), entries)
    totals = [(address(scope), *msgspec.structs.astuple(view.totals[scope])) for scope in sorted(view.changed_totals)]
    yield _Batch("write_totals", (blobs, integers, integers, integers), totals)
    grown = [(*owner, *size) for owner, size in sorted(view.grown.items())]
    yield _Batch("hold_state", (texts, texts, integers, integers), grown)


def _entry_row(scope: str, key: str, entry: StoredEntry | None) -> Row:
    assert entry is not None, "only entries that were written are marked as changed"  # noqa: S101
    data = seal(scope, key, entry)
    return address(scope), key, data, entry.revision, entry.expires_ms, entry.ttl_ms, entry.sliding


_LEASE = (integers, texts, integers, integers)
_EXECUTION = (texts, texts, texts, integers, texts, texts, integers, texts, blobs, *_LEASE, *[integers] * 4, booleans, integers)
_HEAD = (texts, integers, texts, integers, texts, blobs, *_LEASE, integers, integers, integers, booleans, integers)
_COMMIT = (texts, integers, texts, booleans, blobs, blobs)
_BODY = (texts, integers, texts, blobs)
_TIMES = (integers, integers, integers, integers, texts, booleans)
_NEW_ITEM = (
    *(texts, texts, *_BODY, texts, texts, integers, integers, integers, texts, texts, texts, texts, integers, integers),
    *(texts, integers, *_TIMES),
)
_CHANGED_ITEM = (texts, texts, texts, integers, integers, texts, *_TIMES, texts)


def _waking(view: LockedRows, head: Head) -> Row:
    deleted_ms = view.now_ms if head.execution_id in view.deleted else None
    return head.wake_ms, head.claims, head.execution_id in view.nudged, deleted_ms


def _execution_row(view: LockedRows, head: Head) -> Row:
    return (
        head.execution_id,
        head.workspace_id,
        head.workflow_id,
        head.version,
        head.parent_id,
        head.status,
        head.revision,
        head.digest,
        head.signature,
        head.fence,
        head.holder,
        head.lease_until_ms,
        head.base_revision,
        head.created_ms,
        head.updated_ms,
        *_waking(view, head),
    )


def _head_row(view: LockedRows, head: Head) -> Row:
    return (
        head.execution_id,
        head.version,
        head.status,
        head.revision,
        head.digest,
        head.signature,
        head.fence,
        head.holder,
        head.lease_until_ms,
        head.base_revision,
        head.updated_ms,
        *_waking(view, head),
    )


def _commit_row(commit: Commit) -> Row:
    is_named = revision_in(commit.commit_id) != commit.revision
    return commit.execution_id, commit.revision, commit.commit_id, is_named, commit.header, commit.body
