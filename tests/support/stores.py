"""The stores that the tests run on. To add one: an entry that says how to make it on an empty place of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.model.limits import Limits
from stepwell.stores.memory import MemoryStore
from stepwell.stores.postgres.store import PostgresStore
from stepwell.stores.redis.store import RedisStore
from stepwell.stores.sqlite.store import SQLiteStore
from stepwell.testing.conformance.fixtures import MakeStore

__all__ = ["STORES"]


def memory(request: pytest.FixtureRequest) -> MakeStore:
    """Memory: every store is a place of its own."""
    return MemoryStore


def sqlite(request: pytest.FixtureRequest) -> MakeStore:
    """SQLite: a file in the test's own folder."""
    folder: Path = request.getfixturevalue("tmp_path")

    def make(clock: Clock, limits: Limits) -> Store:
        return SQLiteStore(f"sqlite:///{folder}/well.db", clock, limits)

    return make


def postgres(request: pytest.FixtureRequest) -> MakeStore:
    """PostgreSQL: a schema, emptied after each test, on the server that this test run started."""
    url: str = request.getfixturevalue("postgres_url")
    return lambda clock, limits: PostgresStore(url, clock, limits)


def redis(request: pytest.FixtureRequest) -> MakeStore:
    """Redis: a prefix of its own on the server that this test run started."""
    url: str = request.getfixturevalue("redis_url")
    return lambda clock, limits: RedisStore(url, clock, limits)


STORES: dict[str, Callable[[pytest.FixtureRequest], MakeStore]] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
    "redis": redis,
}
"""By name. The request gives an entry what it needs, such as ``tmp_path`` or the fixture of a running server."""
