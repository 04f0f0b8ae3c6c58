"""Keep executions, scoped state and the queue in one Redis server, which any number of processes share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from stepwell.clock import Clock
from stepwell.contract.store import Capabilities, Durability, ExecutionQuery, StoreReads
from stepwell.errors import Corrupted, StepwellError, StoreForeign, StoreFull, StoreNewer, StoreUnavailable
from stepwell.fault_points import fault
from stepwell.model.commit import Head, Loaded, Outcome, StoredCommit, Sweep, Unit
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Item, ItemQuery, Lane, QueueSettings, Tier, Workspace
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry
from stepwell.model.snapshot import StoredSnapshot
from stepwell.process import process_id
from stepwell.stores.redis.connection import RedisConnection
from stepwell.stores.redis.fast_path import FastPath
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.listener import RedisListener
from stepwell.stores.redis.reads import CheckedReader, RedisQueueReads, RedisReads, first_rows, load_scripts
from stepwell.stores.redis.script_calls import ScriptCall, ScriptCaller
from stepwell.stores.redis.server_facts import check_fit, read_facts, value_of
from stepwell.stores.redis.sweeper import RedisSweeper
from stepwell.stores.redis.url import RedisSettings, parse_url
from stepwell.stores.redis.writer import RedisWriter

__all__ = ["SCHEMA_VERSION", "RedisStore"]

SCHEMA_VERSION = 1
_MARK = b"stepwell"


class RedisStore:
    """Store executions, scoped state and the queue in Redis.

    Each unit is one script, which lands whole or not at all. The units of a group go out in one packet and land one after another,
    not in one transaction: if the connection breaks in the middle, those whose replies came are known, and the others come to
    ``CommitUnknown``. A server in cluster mode is refused when the store is opened.
    """

    def __init__(self, url: str, clock: Clock, limits: Limits) -> None:
        self._settings: RedisSettings = parse_url(url)
        self._clock, self._limits = clock, limits
        self._keys = Keys(self._settings.prefix)
        self._process = process_id()
        self._connection: RedisConnection | None = None
        self._durability = Durability("none", "the store is not open yet")

    def open(self) -> None:
        connection = RedisConnection(self._settings)
        try:
            facts = read_facts(connection)
            check_fit(facts, self._settings)
            self._durability = facts.durability
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise

    def _prepare(self, connection: RedisConnection) -> None:
        load_scripts(connection)
        store_id = self._identify(connection)
        self._set_up(connection)
        self._reader = CheckedReader(connection, self._keys, store_id)
        self._reads_of_state = RedisReads(self._reader, self._keys)
        self._queue = RedisQueueReads(self._reader, self._keys)
        ttl_ms, ahead_ms = self._settings.execution_ttl_ms, self._clock.ahead_ms
        caller = ScriptCaller(self._keys, store_id=store_id, ttl_ms=ttl_ms, ahead_ms=ahead_ms)
        fast = FastPath(self._keys, store_id, ttl_ms, ahead_ms)
        self._writer = RedisWriter(self._reader, caller, fast, self._limits, ahead_ms)
        self._sweeper = RedisSweeper(self._reader, store_id)
        self._connection = connection

    def _identify(self, connection: RedisConnection) -> bytes:
        """Return the mark of the existing store, or of a new one. Never create a store among the remains of another."""
        keys = self._keys
        parts = (keys.executions, keys.scopes, keys.queue + b":ids")
        mark, *remains = (
            value_of(reply, self._settings)
            for reply in connection.exchange([("GET", keys.store), *(("EXISTS", key) for key in parts)])
        )
        if mark is None:
            if any(remains):
                raise Corrupted(
                    f"{self._settings.name} has parts of a store under the prefix {self._settings.prefix!r}, but not its mark; "
                    "restore it from a backup, or choose another prefix"
                )
            fresh = b"%b %d %b" % (_MARK, SCHEMA_VERSION, secrets.token_hex(16).encode())
            replies = connection.exchange([("SET", keys.store, fresh, "NX"), ("GET", keys.store)])
            mark = [value_of(reply, self._settings) for reply in replies][1]
        self._check_mark(mark)
        return mark

    def _check_mark(self, mark: bytes) -> None:
        word, _, rest = mark.partition(b" ")
        version = rest.partition(b" ")[0]
        if word != _MARK or not version.isdigit():
            raise StoreForeign(f"{self._keys.store.decode()!r} of {self._settings.name} is not Stepwell's; choose another prefix")
        if int(version) > SCHEMA_VERSION:
            raise StoreNewer(
                f"the store in {self._settings.name} has schema {int(version)} and this Stepwell knows up to {SCHEMA_VERSION}; "
                "upgrade Stepwell"
            )

    def _set_up(self, connection: RedisConnection) -> None:
        """Try every command that the scripts use, and write the rows that every store has."""
        call = ScriptCall("probe", (self._keys.probe,), ())
        try:
            for reply in connection.exchange([call.command(), *first_rows(self._keys)]):
                value_of(reply, self._settings)
        except StoreFull:
            return  # a full server still serves reads, and each write raises this error itself

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def capabilities(self) -> Capabilities:
        return Capabilities(is_shared=True, has_blocking_writes=True)

    def consistent_view(self) -> AbstractContextManager[StoreReads]:
        return nullcontext(self)

    def durability(self) -> Durability:
        return self._durability

    def _opened(self) -> RedisConnection:
        if self._connection is None:
            raise StoreUnavailable("the store is closed; open it again")
        if self._process != process_id():
            raise StoreUnavailable(
                "the store was opened before a fork; a connection cannot be shared, so open it again in the child"
            )
        return self._connection

    def _reads(self) -> RedisReads:
        self._opened()
        return self._reads_of_state

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        self._opened()
        fault("store.before_begin")
        if not any(isinstance(unit, Sweep) for unit in units):
            return self._writer.write(units)
        # A sweep commutes with every other unit, so it runs after them.
        others = iter(self._write_others([unit for unit in units if not isinstance(unit, Sweep)]))
        return [self._sweep(unit) if isinstance(unit, Sweep) else next(others) for unit in units]

    def _write_others(self, units: Sequence[Unit]) -> list[Outcome]:
        return self._writer.write(units) if units else []

    def _sweep(self, unit: Sweep) -> Outcome:
        try:
            return self._sweeper.sweep(unit, self.now_ms(), self._write_others)
        except StepwellError as error:
            return error

    def head_digests(self, execution_ids: Sequence[str]) -> list[str | None]:
        return self._reads().head_digests(execution_ids)

    def nudged(self, execution_ids: Sequence[str]) -> list[str]:
        return self._reads().nudged(execution_ids)

    def head(self, execution_id: str) -> Head | None:
        return self._reads().head(execution_id)

    def load(self, execution_id: str, at: int | None = None, since: int | None = None) -> Loaded | None:
        return self._reads().load(execution_id, at, since)

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        return self._reads().history(execution_id, after, limit)

    def base(self, execution_id: str) -> StoredSnapshot | None:
        return self._reads().base(execution_id)

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        return self._reads().commit_of(execution_id, commit_id)

    def find(self, query: ExecutionQuery) -> list[Head]:
        return self._reads().find(query)

    def entries(self, scope: str, keys: Sequence[str]) -> dict[str, StoredEntry]:
        return self._reads().entries(scope, keys, self._clock.ahead_ms())

    def scan(self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> list[tuple[str, StoredEntry]]:
        return self._reads().scan(scope, prefix, after, limit, self._clock.ahead_ms())

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        return self._reads().changes(scope, after)

    def totals(self, scope: str) -> ScopeTotals:
        return self._reads().totals(scope)

    def scopes(self, workspace_id: str | None = None) -> Iterator[str]:
        return self._reads().scopes(workspace_id)

    def _queue_reads(self) -> RedisQueueReads:
        self._opened()
        return self._queue

    def item(self, item_id: str) -> Item | None:
        return self._queue_reads().item(item_id)

    def items(self, query: ItemQuery) -> list[Item]:
        return self._queue_reads().items(query)

    def lanes(self, workspace_id: str | None = None) -> list[Lane]:
        return self._queue_reads().lanes(workspace_id, self._clock.ahead_ms())

    def next_ready_ms(self) -> int | None:
        return self._queue_reads().next_ready_ms()

    def has_ready(self) -> bool:
        return self._queue_reads().has_ready()

    def workspaces(self) -> list[Workspace]:
        return self._queue_reads().workspaces()

    def tiers(self) -> list[Tier]:
        return self._queue_reads().tiers()

    def queues(self) -> list[QueueSettings]:
        return self._queue_reads().queues()

    def now_ms(self) -> int:
        self._opened()
        seconds, micros = self._reader.one("TIME")
        return int(seconds) * 1000 + int(micros) // 1000 + self._clock.ahead_ms()

    def check(self) -> None:
        connection = self._opened()
        self._reader.one("GET", self._keys.store)
        check_fit(read_facts(connection), self._settings)

    def listen(self, wake: Callable[[str], None]) -> Callable[[], None]:
        connection, keys = self._opened(), self._keys
        channels = {keys.lock_channel: "lock", keys.state_channel: "state", keys.due_channel: "due", keys.queue_channel: "queue"}
        return RedisListener(connection, channels, wake).end
