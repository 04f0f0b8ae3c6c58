"""Sweeping: gives back the space of what has ended. Readers do not depend on it; what has ended is absent at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.errors import StepwellError
from stepwell.model.commit import Outcome, StateBatch, Sweep, Unit, Written
from stepwell.model.scoped_operations import Delete
from stepwell.stores.redis.connection import Command
from stepwell.stores.redis.keys import in_place, workspace_place
from stepwell.stores.redis.reads import Asking
from stepwell.stores.redis.state_plan import workspace_of

__all__ = ["Sweeping"]

# A place in the index is younger than its execution only while that is being made; clocks differ by less than this.
_PLACE_AGE_MS = 3_600_000

# A scope that is empty is remembered for this long (30 days), so that whoever holds an old revision is not misled by a new one.
_EMPTY_SCOPE_MS = 30 * 24 * 3_600_000

WriteUnits = Callable[[Sequence[Unit]], list[Outcome]]


class Sweeping:
    """Sweeps one store."""

    def __init__(self, asking: Asking, store_id: bytes) -> None:
        self._asking, self._keys, self._is_cluster = asking, asking.keys, asking.servers.is_cluster
        self._id = b"" if self._is_cluster else store_id
        self._next_place = b"-"

    def sweep(self, sweep: Sweep, now_ms: int, write: WriteUnits) -> Outcome:
        """Drop old locks and tombstones, turn expired keys into tombstones, forget places of executions whose TTL ended."""
        oldest_ms = now_ms - sweep.tombstone_ms
        for name in self._due(self._keys.locks, oldest_ms, sweep.limit):
            self._asking.script("drop", (self._keys.lock(name).lock, self._keys.locks), name, oldest_ms)
        buried = self._due(self._keys.tombs, oldest_ms, sweep.limit)
        for path in buried:
            self._drop_tombstones(path, oldest_ms, sweep.limit)
        ended = self._due(self._keys.ends, now_ms, sweep.limit)
        batches = self._expired(ended, now_ms, sweep.limit)
        for outcome in write(batches) if batches else ():
            if isinstance(outcome, StepwellError):
                return outcome
        if self._is_cluster:
            self._note_again(dict.fromkeys((*buried, *ended)))
        if self._asking.settings.execution_ttl_ms:
            self._forget_places(now_ms - _PLACE_AGE_MS, sweep.limit)
        return Written([sum(len(batch.ops) for batch in batches)])

    def _due(self, index: bytes, until_ms: int, limit: int) -> list[str]:
        names = self._asking.one("ZRANGEBYSCORE", index, "-inf", until_ms, "LIMIT", 0, limit, key=index)
        return [name.decode() for name in names]

    def _drop_tombstones(self, path: str, until_ms: int, limit: int) -> None:
        scope, keys = self._keys.scope(path), self._keys
        central = () if self._is_cluster else (keys.store, keys.scopes, keys.tombs)
        names = (scope.rows, scope.revisions, scope.tombs, *central)
        place = workspace_place(workspace_of(path)) + path.encode()
        self._asking.script("sweep", names, self._id, path, place, until_ms, limit, _EMPTY_SCOPE_MS)

    def _expired(self, paths: Sequence[str], now_ms: int, limit: int) -> list[StateBatch]:
        """The keys that have ended, a batch for each scope: one that is busy does not stop the others."""
        batches: list[StateBatch] = []
        for path in paths:
            ends = self._keys.scope(path).ends
            names = self._asking.one("ZRANGEBYSCORE", ends, "-inf", now_ms, "LIMIT", 0, limit, key=ends) if limit > 0 else ()
            if names:
                batches.append(StateBatch(tuple(Delete(path, name.decode()) for name in names)))
                limit -= len(names)
        return batches

    def _note_again(self, paths: dict[str, None]) -> None:
        """Bring a cluster's central node up to date: a script that sweeps a scope cannot reach it."""
        notes: list[tuple[bytes, Command]] = []
        for path in paths:
            scope = self._keys.scope(path)
            for index, table in ((self._keys.ends, scope.ends), (self._keys.tombs, scope.tombs)):
                first = self._asking.one("ZRANGE", table, 0, 0, "WITHSCORES", key=table)
                notes.append((index, ("ZADD", index, first[1], path) if first else ("ZREM", index, path)))
        if notes:
            self._asking.ask(notes)

    def _forget_places(self, until_ms: int, limit: int) -> None:
        """Walk on through the index, and take out the places of executions that are no more."""
        index = self._keys.executions
        page: list[bytes] = self._asking.one("ZRANGEBYLEX", index, self._next_place, "+", "LIMIT", 0, limit, key=index)
        self._next_place = b"(" + page[-1] if len(page) == limit else b"-"
        found = [(place, in_place(place)) for place in page]
        old = [(place, self._keys.execution(at[1]).head) for place, at in found if at is not None and at[0] <= until_ms]
        if old:
            there = self._asking.ask([(head, ("EXISTS", head)) for _, head in old])
            gone = [place for (place, _), is_there in zip(old, there, strict=True) if not is_there]
            if gone:
                self._asking.one("ZREM", index, *gone, key=index)
