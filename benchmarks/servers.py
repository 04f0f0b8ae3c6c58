"""Real servers, each started when a measure first needs it and stopped with the run."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path

import psycopg
from redis import Redis
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

from benchmarks.plan import Plan

__all__ = ["URLS", "postgres", "postgres_connection", "redis", "redis_client"]

_servers = ExitStack()
_wells = count()
atexit.register(_servers.close)


@cache
def _postgres(folder: Path) -> PostgresServer:
    with _temporary_files_in(folder):
        # The server's default; tests use less to start faster. Everything else is default, too: fsync on, synchronous commits.
        return _servers.enter_context(PostgresServer(shared_buffers="128MB"))


@cache
def _redis(folder: Path) -> RedisServer:
    with _temporary_files_in(folder):
        place = _servers.enter_context(tempfile.TemporaryDirectory(prefix="stepwell-redis-"))
    return _servers.enter_context(RedisServer(Path(place)))


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Let a server keep its data in this folder: its fixture takes the folder from tempfile."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def postgres(plan: Plan) -> PostgresServer:
    """Return the PostgreSQL server of this run."""
    return _postgres(_disk(plan))


def redis(plan: Plan) -> RedisServer:
    """Return the Redis server of this run. It writes nothing to disk, so round trips and scripts are measured."""
    return _redis(_disk(plan))


def postgres_connection(plan: Plan) -> psycopg.Connection[tuple[object, ...]]:
    """Return a plain connection to the PostgreSQL server, closed with the run."""
    return _servers.enter_context(postgres(plan).connect())


def redis_client(plan: Plan) -> Redis:
    """Return a plain client of the Redis server, closed with the run."""
    return _servers.enter_context(redis(plan).client())


def _disk(plan: Plan) -> Path:
    """Return a folder beside the run's, which is removed before the servers stop."""
    return plan.folder.parent.parent


URLS: dict[str, Callable[[Plan], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": lambda plan: f"sqlite:///{plan.folder / f'well-{next(_wells)}.db'}",
    "postgres": lambda plan: postgres(plan).url(f"well_{next(_wells)}"),
    "redis": lambda plan: redis(plan).url(f"well-{next(_wells)}"),
}
"""For each store, a function that returns the URL of a new, empty well."""
