"""Real servers, started by the run itself: each when a measure first needs it, for all that come after, and ended with the run."""

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
        # The server's own default, which tests make smaller to start faster. All else is as it comes: fsync on, commits waited for.
        return _servers.enter_context(PostgresServer(shared_buffers="128MB"))


@cache
def _redis(folder: Path) -> RedisServer:
    with _temporary_files_in(folder):
        place = _servers.enter_context(tempfile.TemporaryDirectory(prefix="stepwell-redis-"))
    return _servers.enter_context(RedisServer(Path(place)))


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Have a server keep its data on the disk that the run is about: it has no other way to be told."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def postgres(plan: Plan) -> PostgresServer:
    """The PostgreSQL server of this run."""
    return _postgres(_disk(plan))


def redis(plan: Plan) -> RedisServer:
    """The Redis server of this run. It writes nothing to a disk: what is measured is the way there and back, and its scripts."""
    return _redis(_disk(plan))


def postgres_connection(plan: Plan) -> psycopg.Connection[tuple[object, ...]]:
    """A plain connection to the PostgreSQL server, closed with the run."""
    return _servers.enter_context(postgres(plan).connect())


def redis_client(plan: Plan) -> Redis:
    """A plain client of the Redis server, closed with the run."""
    return _servers.enter_context(redis(plan).client())


def _disk(plan: Plan) -> Path:
    """Beside the folder of the run, which is gone before the servers are."""
    return plan.folder.parent.parent


URLS: dict[str, Callable[[Plan], str]] = {
    "memory": lambda _: "memory://",
    "sqlite": lambda plan: f"sqlite:///{plan.folder / f'well-{next(_wells)}.db'}",
    "postgres": lambda plan: postgres(plan).url(f"well_{next(_wells)}"),
    "redis": lambda plan: redis(plan).url(f"well-{next(_wells)}"),
}
"""By the name of a store: the URL of a new, empty well on it."""
