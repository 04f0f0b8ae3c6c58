"""Read executions, scoped state and the queue from Redis.

Each read checks in the same packet that the server still has the store that was opened, and is repeated once when the connection
breaks. A read that must see one consistent view is one script.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis import exceptions

from stepwell.contract.store import ExecutionQuery
from stepwell.model.commit import Head, Loaded, StoredCommit
from stepwell.model.ids import revision_in
from stepwell.model.queue_item import TIERS, Item, ItemQuery, ItemStatus, Lane, QueueSettings, Tier, Workspace
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry, alive, prefix_end
from stepwell.model.snapshot import StoredSnapshot
from stepwell.stores.redis.connection import Command, RedisConnection, RedisConnectionLost, Reply
from stepwell.stores.redis.keys import AGE_BYTES, Keys, age_place, workspace_place
from stepwell.stores.redis.rows import (
    commit_beginning,
    encoded,
    pack_tier,
    pack_workspace,
    read_commits,
    read_entry,
    read_found_commit,
    read_head,
    read_item,
    read_lane,
    read_pairs,
    read_queues,
    read_snapshot,
    read_tiers,
    read_totals,
    read_workspaces,
)
from stepwell.stores.redis.script_calls import Argument, ScriptCall, lost_store
from stepwell.stores.redis.scripts import SCRIPTS
from stepwell.stores.redis.server_facts import value_of

__all__ = [
    "CheckedReader",
    "RedisQueueReads",
    "RedisReads",
    "first_rows",
    "load_scripts",
]


def load_scripts(connection: RedisConnection) -> None:
    """Load all scripts; a server forgets them with a restart, a failover or SCRIPT FLUSH."""
    for reply in connection.exchange([("SCRIPT", "LOAD", script.text) for script in SCRIPTS.values()]):
        value_of(reply, connection.settings)


class CheckedReader:
    """Send reads to one store; repeat once a read whose connection broke."""

    def __init__(self, connection: RedisConnection, keys: Keys, store_id: bytes) -> None:
        self.connection, self.keys, self.settings, self._id = connection, keys, connection.settings, store_id
        self._check: Command = ("GET", keys.store)

    def read(self, commands: Sequence[Command]) -> list[Reply]:
        """Return a reply for each command; raise the first error, or ``Corrupted`` if the server lost the store."""
        replies = self._send(commands)
        if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
            load_scripts(self.connection)
            replies = self._send(commands)
        elif any(isinstance(reply, RedisConnectionLost) for reply in replies):
            replies = self._send(commands)
        values = [value_of(reply, self.settings) for reply in replies]
        if values.pop(0) != self._id:
            raise lost_store()
        return values

    def _send(self, commands: Sequence[Command]) -> list[Reply]:
        return self.connection.exchange([self._check, *commands])

    def one(self, *command: bytes | str | int) -> Reply:
        """Return the reply to one command."""
        return self.read([command])[0]

    def script(self, name: str, keys: Sequence[bytes], *arguments: Argument) -> Reply:
        """Return the reply of a script that reads."""
        return self.read([ScriptCall(name, keys, arguments).command()])[0]


_PAGE = 500


class RedisReads:
    """Read executions and scoped state of one store."""

    def __init__(self, reader: CheckedReader, keys: Keys) -> None:
        self._reader, self._keys = reader, keys

    def head_digests(self, execution_ids: Sequence[str]) -> list[str | None]:
        """Return the digest of each execution's newest receipt; None for an execution that is missing or deleted."""
        keys = [self._keys.execution(execution_id).head for execution_id in execution_ids]
        commands: list[Command] = [("HGET", key, b"digest") for key in keys]
        # A digest belongs to one chain alone: only a missing one leaves open whether this is still the store that was opened.
        digests = self._reader.connection.exchange(commands) if commands else []
        for digest in digests:
            if type(digest) is not bytes:
                digests = self._reader.read(commands)
                break
        return [None if digest is None else digest.decode() for digest in digests]

    def nudged(self, execution_ids: Sequence[str]) -> list[str]:
        """Return those of the executions that were nudged since their last claim."""
        keys = [self._keys.execution(execution_id).head for execution_id in execution_ids]
        commands: list[Command] = [("HGET", key, b"nudged") for key in keys]
        marks = self._reader.read(commands) if commands else []
        return [execution_id for execution_id, mark in zip(execution_ids, marks, strict=True) if mark is not None]

    def head(self, execution_id: str) -> Head | None:
        key = self._keys.execution(execution_id).head
        return read_head(execution_id, self._reader.one("HGETALL", key))

    def load(self, execution_id: str, at: int | None, since: int | None) -> Loaded | None:
        keys = self._keys.execution(execution_id)
        names = (keys.head, keys.commits, keys.snapshots)
        found = self._reader.script("read_execution", names, "" if at is None else at, "" if since is None else since)
        if found is None:
            return None
        fields, snapshot, first, commits = found
        head = read_head(execution_id, fields)
        return head and Loaded(head, read_snapshot(execution_id, snapshot), read_commits(execution_id, first, commits))

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        keys = self._keys.execution(execution_id)
        first, commits = self._reader.script("read_history", (keys.head, keys.commits), after, limit)
        return read_commits(execution_id, first, commits)

    def base(self, execution_id: str) -> StoredSnapshot | None:
        keys = self._keys.execution(execution_id)
        return read_snapshot(execution_id, self._reader.script("read_base", (keys.head, keys.snapshots)))

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        said = revision_in(commit_id)
        names, beginning = self._keys.execution(execution_id)[:3], commit_beginning(commit_id)
        found = self._reader.script("find_commit", names, commit_id, "" if said is None else said, beginning)
        return None if found is None else read_found_commit(execution_id, *found)

    def find(self, query: ExecutionQuery) -> list[Head]:
        """Return the heads that match. The smallest part of the index names candidates, and their heads decide."""
        start = self._index_of(query)
        high = b"(" + start + (b"\xff" if query.after is None else age_place(*query.after))
        found: list[Head] = []
        size = min(query.limit, _PAGE)
        while len(found) < query.limit:
            page: list[bytes] = self._reader.one("ZREVRANGEBYLEX", self._keys.executions, high, b"[" + start, "LIMIT", 0, size)
            found += [head for head in self._heads([place[len(start) + AGE_BYTES :] for place in page]) if query.matches(head)]
            if len(page) < size:
                break
            high, size = b"(" + page[-1], _PAGE
        return found[: query.limit]

    def _index_of(self, query: ExecutionQuery) -> bytes:
        by_workspace = None if query.workspace_id is None else workspace_place(query.workspace_id)
        by_status = None if query.status is None else f"s/{query.status}/".encode()
        starts = [start for start in (by_workspace, by_status) if start is not None]
        if len(starts) < 2:
            return starts[0] if starts else b"a/"
        name = self._keys.executions
        counts = self._reader.read([("ZLEXCOUNT", name, b"[" + start, b"(" + start + b"\xff") for start in starts])
        return starts[counts.index(min(counts))]

    def _heads(self, ids: Sequence[bytes]) -> list[Head]:
        names = [execution_id.decode() for execution_id in ids]
        keys = [self._keys.execution(name).head for name in names]
        commands: list[Command] = [("HGETALL", key) for key in keys]
        rows = self._reader.read(commands) if commands else []
        heads = (read_head(name, row) for name, row in zip(names, rows, strict=True))
        # An execution whose TTL ended leaves its place in the index until a sweep.
        return [head for head in heads if head is not None]

    def entries(self, scope: str, keys: Sequence[str], ahead_ms: int) -> dict[str, StoredEntry]:
        table = self._keys.scope(scope).rows
        if not keys:
            return {}
        (seconds, micros), rows = self._reader.read([("TIME",), ("HMGET", table, *keys)])
        now = int(seconds) * 1000 + int(micros) // 1000 + ahead_ms
        found = ((key, alive(read_entry(scope, key, row), now)) for key, row in zip(keys, rows, strict=True))
        return {key: entry.checked(scope, key) for key, entry in found if entry is not None}

    def scan(self, scope: str, prefix: str, after: str | None, limit: int, ahead_ms: int) -> list[tuple[str, StoredEntry]]:
        end, keys = prefix_end(prefix), self._keys.scope(scope)
        low = f"({after}" if after is not None and after >= prefix else f"[{prefix}" if prefix else "-"
        high = "+" if end is None else f"({end}"
        return read_pairs(scope, self._reader.script("scan", (keys.rows, keys.keys), low, high, limit, ahead_ms))

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        keys = self._keys.scope(scope)
        return read_pairs(scope, self._reader.script("read_changes", (keys.rows, keys.revisions), after))

    def totals(self, scope: str) -> ScopeTotals:
        table = self._keys.scope(scope).rows
        return read_totals(scope, self._reader.one("HGET", table, ""))[1]

    def scopes(self, workspace_id: str | None) -> Iterator[str]:
        start = b"a/" if workspace_id is None else workspace_place(workspace_id)
        low, key = b"[" + start, self._keys.scopes
        while True:
            page: list[bytes] = self._reader.one("ZRANGEBYLEX", key, low, b"(" + start + b"\xff", "LIMIT", 0, _PAGE)
            paths = [place[len(start) :].decode() for place in page]
            yield from (path for path, keys in zip(paths, self._counts(paths), strict=True) if keys)
            if len(page) < _PAGE:
                return
            low = b"(" + page[-1]

    def _counts(self, paths: Sequence[str]) -> list[int]:
        tables = [self._keys.scope(path).rows for path in paths]
        commands: list[Command] = [("HGET", table, "") for table in tables]
        rows = self._reader.read(commands) if commands else []
        return [read_totals(path, row)[1].keys for path, row in zip(paths, rows, strict=True)]


_QUEUE_PAGE = 1_000
_LAST_NUMBER = 10**16 - 1
_DEFAULT = Workspace(workspace_id="default", tier="unlimited")

# The index of a status, if it has one that is smaller than that of all items.
_INDEXES: dict[str, str] = {
    ItemStatus.CLAIMED: "active",
    ItemStatus.DISPATCHED: "active",
    ItemStatus.FAILED: "dead",
    ItemStatus.CANCELLED: "dead",
}


def first_rows(keys: Keys) -> list[Command]:
    """Return the commands that make the tiers and the workspace that every store has; existing rows stay as they are."""
    rows = [(b":tiers", tier.name, pack_tier(tier)) for tier in TIERS]
    rows.append((b":workspaces", encoded(_DEFAULT.workspace_id), pack_workspace(_DEFAULT)))
    return [("HSETNX", keys.queue + table, name, row) for table, name, row in rows]


class RedisQueueReads:
    """Read the queue of one store."""

    def __init__(self, reader: CheckedReader, keys: Keys) -> None:
        self._reader, self._keys = reader, keys

    def item(self, item_id: str) -> Item | None:
        return read_item(self._reader.script("read_item", (self._keys.queue,), item_id))

    def items(self, query: ItemQuery) -> list[Item]:
        """Return the items that match, from the index with the fewest others, a page at a time."""
        index = _index_of(query)
        filters = [value or "" for value in (query.queue, query.status, query.workflow_id)]
        high = "+" if query.before is None else f"({min(max(query.before, 0), _LAST_NUMBER):016d}"
        found: list[Item] = []
        while len(found) < query.limit:
            most = query.limit - len(found)
            last, *rows = self._reader.script("list_items", (self._keys.queue,), index, high, most, _QUEUE_PAGE, *filters)
            found += [item for row in rows if (item := read_item(row)) is not None]
            if not last:
                break
            high = f"({last.decode()}"
        return found

    def lanes(self, workspace_id: str | None, ahead_ms: int) -> list[Lane]:
        name = "" if workspace_id is None else encoded(workspace_id)
        rows = self._reader.script("count_lanes", (self._keys.queue,), ahead_ms, name)
        return sorted(map(read_lane, rows), key=lambda lane: (lane.workspace_id, lane.queue))

    def next_ready_ms(self) -> int | None:
        delayed = self._keys.queue + b":delayed"
        first = self._reader.one("ZRANGE", delayed, 0, 0, "WITHSCORES")
        return int(float(first[1])) if first else None

    def has_ready(self) -> bool:
        ready = self._keys.queue + b":ready"
        return bool(self._reader.one("EXISTS", ready))

    def workspaces(self) -> list[Workspace]:
        return read_workspaces(self._table(b":workspaces"))

    def tiers(self) -> list[Tier]:
        return read_tiers(self._table(b":tiers"))

    def queues(self) -> list[QueueSettings]:
        return read_queues(self._table(b":queues"))

    def _table(self, name: bytes) -> list[bytes]:
        table = self._keys.queue + name
        return self._reader.one("HGETALL", table)


def _index_of(query: ItemQuery) -> str:
    if query.workspace_id is not None:
        return f"of:{encoded(query.workspace_id)}"
    return "all" if query.status is None else _INDEXES.get(query.status, "all")
