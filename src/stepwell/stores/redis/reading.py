"""The reads of the Redis store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepwell.contract.store import ExecutionQuery
from stepwell.model.commit import Head, Loaded, StoredCommit
from stepwell.model.ids import revision_in
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry, alive, prefix_end
from stepwell.model.snapshot import StoredSnapshot
from stepwell.stores.redis.asking import Asking
from stepwell.stores.redis.keys import AGE_BYTES, Keys, age_place, workspace_place
from stepwell.stores.redis.link import Command
from stepwell.stores.redis.rows import (
    commit_beginning,
    read_commits,
    read_entry,
    read_found_commit,
    read_head,
    read_pairs,
    read_snapshot,
    read_totals,
)

__all__ = ["RedisReads"]

_PAGE = 500


class RedisReads:
    """Reads one store. What must be one view is one script."""

    def __init__(self, asking: Asking, keys: Keys, *, is_cluster: bool) -> None:
        self._asking, self._keys, self._is_cluster = asking, keys, is_cluster

    def tips(self, execution_ids: Sequence[str]) -> list[str | None]:
        """The digests of newest receipts. A tombstone has none."""
        keys = [self._keys.execution(execution_id).head for execution_id in execution_ids]
        commands: list[tuple[bytes, Command]] = [(key, ("HGET", key, b"digest")) for key in keys]
        # A digest is that of one chain alone, so only what is missing raises the question whether this is still the same store.
        digests = self._asking.servers.send(commands) if commands else []
        for digest in digests:
            if type(digest) is not bytes:
                digests = self._asking.ask(commands)
                break
        return [None if digest is None else digest.decode() for digest in digests]

    def nudged(self, execution_ids: Sequence[str]) -> list[str]:
        """Which of these executions somebody wants looked at."""
        keys = [self._keys.execution(execution_id).head for execution_id in execution_ids]
        commands: list[tuple[bytes, Command]] = [(key, ("HGET", key, b"nudged")) for key in keys]
        marks = self._asking.ask(commands) if commands else []
        return [execution_id for execution_id, mark in zip(execution_ids, marks, strict=True) if mark is not None]

    def head(self, execution_id: str) -> Head | None:
        key = self._keys.execution(execution_id).head
        return read_head(execution_id, self._asking.one("HGETALL", key, key=key))

    def load(self, execution_id: str, at: int | None, since: int | None) -> Loaded | None:
        keys = self._keys.execution(execution_id)
        names = (keys.head, keys.commits, keys.snapshots)
        found = self._asking.script("load", names, "" if at is None else at, "" if since is None else since)
        if found is None:
            return None
        fields, snapshot, first, commits = found
        head = read_head(execution_id, fields)
        return head and Loaded(head, read_snapshot(execution_id, snapshot), read_commits(execution_id, first, commits))

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        keys = self._keys.execution(execution_id)
        first, commits = self._asking.script("history", (keys.head, keys.commits), after, limit)
        return read_commits(execution_id, first, commits)

    def base(self, execution_id: str) -> StoredSnapshot | None:
        keys = self._keys.execution(execution_id)
        return read_snapshot(execution_id, self._asking.script("base", (keys.head, keys.snapshots)))

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        said = revision_in(commit_id)
        names, beginning = self._keys.execution(execution_id)[:3], commit_beginning(commit_id)
        found = self._asking.script("lookup", names, commit_id, "" if said is None else said, beginning)
        return None if found is None else read_found_commit(execution_id, *found)

    def find(self, query: ExecutionQuery) -> list[Head]:
        """Walks the part of the index that fits best and keeps what matches: the heads decide, the index only names them."""
        start = self._index_of(query)
        high = b"(" + start + (b"\xff" if query.after is None else age_place(*query.after))
        found: list[Head] = []
        size = min(query.limit, _PAGE)
        while len(found) < query.limit:
            page: list[bytes] = self._asking.one(
                *("ZREVRANGEBYLEX", self._keys.executions, high, b"[" + start, "LIMIT", 0, size), key=self._keys.executions
            )
            found += [head for head in self._heads([place[len(start) + AGE_BYTES :] for place in page]) if query.matches(head)]
            if len(page) < size:
                break
            high, size = b"(" + page[-1], _PAGE
        return found[: query.limit]

    def _index_of(self, query: ExecutionQuery) -> bytes:
        by_workspace = None if query.workspace_id is None else workspace_place(query.workspace_id)
        # A cluster has no index by status: its entries would have to change together with heads on other nodes.
        by_status = None if query.status is None or self._is_cluster else f"s/{query.status}/".encode()
        starts = [start for start in (by_workspace, by_status) if start is not None]
        if len(starts) < 2:
            return starts[0] if starts else b"a/"
        name = self._keys.executions
        counts = self._asking.ask([(name, ("ZLEXCOUNT", name, b"[" + start, b"(" + start + b"\xff")) for start in starts])
        return starts[counts.index(min(counts))]

    def _heads(self, ids: Sequence[bytes]) -> list[Head]:
        names = [execution_id.decode() for execution_id in ids]
        keys = [self._keys.execution(name).head for name in names]
        commands: list[tuple[bytes, Command]] = [(key, ("HGETALL", key)) for key in keys]
        rows = self._asking.ask(commands) if commands else []
        heads = (read_head(name, row) for name, row in zip(names, rows, strict=True))
        # An execution whose TTL ended leaves its place in the index; one that is being made on a cluster has it already.
        return [head for head in heads if head is not None]

    def entries(self, scope: str, keys: Sequence[str], ahead_ms: int) -> dict[str, StoredEntry]:
        table = self._keys.scope(scope).rows
        if not keys:
            return {}
        (seconds, micros), rows = self._asking.ask([(table, ("TIME",)), (table, ("HMGET", table, *keys))])
        now = int(seconds) * 1000 + int(micros) // 1000 + ahead_ms
        found = ((key, alive(read_entry(scope, key, row), now)) for key, row in zip(keys, rows, strict=True))
        return {key: entry.checked(scope, key) for key, entry in found if entry is not None}

    def scan(self, scope: str, prefix: str, after: str | None, limit: int, ahead_ms: int) -> list[tuple[str, StoredEntry]]:
        end, keys = prefix_end(prefix), self._keys.scope(scope)
        low = f"({after}" if after is not None and after >= prefix else f"[{prefix}" if prefix else "-"
        high = "+" if end is None else f"({end}"
        return read_pairs(scope, self._asking.script("scan", (keys.rows, keys.keys), low, high, limit, ahead_ms))

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        keys = self._keys.scope(scope)
        return read_pairs(scope, self._asking.script("changes", (keys.rows, keys.revisions), after))

    def totals(self, scope: str) -> ScopeTotals:
        table = self._keys.scope(scope).rows
        return read_totals(scope, self._asking.one("HGET", table, "", key=table))[1]

    def scopes(self, workspace_id: str | None) -> Iterator[str]:
        start = b"a/" if workspace_id is None else workspace_place(workspace_id)
        low, key = b"[" + start, self._keys.scopes
        while True:
            page: list[bytes] = self._asking.one("ZRANGEBYLEX", key, low, b"(" + start + b"\xff", "LIMIT", 0, _PAGE, key=key)
            paths = [place[len(start) :].decode() for place in page]
            yield from (path for path, keys in zip(paths, self._counts(paths), strict=True) if keys)
            if len(page) < _PAGE:
                return
            low = b"(" + page[-1]

    def _counts(self, paths: Sequence[str]) -> list[int]:
        tables = [self._keys.scope(path).rows for path in paths]
        commands: list[tuple[bytes, Command]] = [(table, ("HGET", table, "")) for table in tables]
        rows = self._asking.ask(commands) if commands else []
        return [read_totals(path, row)[1].keys for path, row in zip(paths, rows, strict=True)]
