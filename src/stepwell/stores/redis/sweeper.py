"""Remove expired locks, state entries, tombstones and index entries. Readers skip them already: sweeping only frees memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.errors import StepwellError
from stepwell.model.commit import Outcome, StateBatch, Sweep, Unit, Written
from stepwell.model.scope import workspace_of
from stepwell.model.scoped_operations import Delete
from stepwell.stores.redis.keys import in_place, workspace_place
from stepwell.stores.redis.reads import CheckedReader

__all__ = ["RedisSweeper"]

# An entry this old belongs to an execution that was made long ago, whatever the clocks of processes say.
_PLACE_AGE_MS = 3_600_000

# An empty scope is remembered for 30 days, so that the holder of an old revision never meets the same number again.
_EMPTY_SCOPE_MS = 30 * 24 * 3_600_000

WriteUnits = Callable[[Sequence[Unit]], list[Outcome]]


class RedisSweeper:
    """Sweep one store."""

    def __init__(self, reader: CheckedReader, store_id: bytes) -> None:
        self._reader, self._keys, self._id = reader, reader.keys, store_id
        self._next_place = b"-"

    def sweep(self, sweep: Sweep, now_ms: int, write: WriteUnits) -> Outcome:
        """Drop old locks and tombstones, turn expired keys into tombstones, and drop index entries of expired executions."""
        oldest_ms = now_ms - sweep.tombstone_ms
        for name in self._due(self._keys.locks, oldest_ms, sweep.limit):
            self._reader.script("drop_lock", (self._keys.lock(name), self._keys.locks), name, oldest_ms)
        for path in self._due(self._keys.tombs, oldest_ms, sweep.limit):
            self._drop_tombstones(path, oldest_ms, sweep.limit)
        batches = self._expired(self._due(self._keys.ends, now_ms, sweep.limit), now_ms, sweep.limit)
        for outcome in write(batches) if batches else ():
            if isinstance(outcome, StepwellError):
                return outcome
        if self._reader.settings.execution_ttl_ms:
            self._forget_places(now_ms - _PLACE_AGE_MS, sweep.limit)
        return Written([sum(len(batch.ops) for batch in batches)])

    def _due(self, index: bytes, until_ms: int, limit: int) -> list[str]:
        names = self._reader.one("ZRANGEBYSCORE", index, "-inf", until_ms, "LIMIT", 0, limit)
        return [name.decode() for name in names]

    def _drop_tombstones(self, path: str, until_ms: int, limit: int) -> None:
        scope, keys = self._keys.scope(path), self._keys
        names = (keys.store, scope.rows, scope.revisions, scope.tombs, keys.scopes, keys.tombs)
        place = workspace_place(workspace_of(path)) + path.encode()
        self._reader.script("drop_tombstones", names, self._id, path, place, until_ms, limit, _EMPTY_SCOPE_MS)

    def _expired(self, paths: Sequence[str], now_ms: int, limit: int) -> list[StateBatch]:
        """Return deletions of the expired keys, a batch for each scope, so that a busy scope does not stop the others."""
        batches: list[StateBatch] = []
        for path in paths:
            ends = self._keys.scope(path).ends
            names = self._reader.one("ZRANGEBYSCORE", ends, "-inf", now_ms, "LIMIT", 0, limit) if limit > 0 else ()
            if names:
                batches.append(StateBatch(tuple(Delete(path, name.decode()) for name in names)))
                limit -= len(names)
        return batches

    def _forget_places(self, until_ms: int, limit: int) -> None:
        """Continue through the index of executions, and drop the entries of those that no longer exist."""
        index = self._keys.executions
        page: list[bytes] = self._reader.one("ZRANGEBYLEX", index, self._next_place, "+", "LIMIT", 0, limit)
        self._next_place = b"(" + page[-1] if len(page) == limit else b"-"
        found = [(place, in_place(place)) for place in page]
        old = [(place, self._keys.execution(at[1]).head) for place, at in found if at is not None and at[0] <= until_ms]
        if old:
            there = self._reader.read([("EXISTS", head) for _, head in old])
            gone = [place for (place, _), is_there in zip(old, there, strict=True) if not is_there]
            if gone:
                self._reader.one("ZREM", index, *gone)
