"""The servers of a run, and a separate database or folder on them for each contender."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from itertools import count
from pathlib import Path

from psycopg import sql
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

from benchmarks.rivals.contest import Contender
from benchmarks.rivals.player import Place

__all__ = ["Arena"]


class Arena:
    """Real servers, each started on first use and stopped with the run."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack, self._numbers = folder, ExitStack(), count()

    @cached_property
    def _postgres(self) -> PostgresServer:
        # The server's defaults: fsync on, synchronous commits. More connections, since contenders keep theirs between turns.
        return self._stack.enter_context(PostgresServer(shared_buffers="128MB", max_connections="300"))

    @cached_property
    def _redis(self) -> RedisServer:
        return self._stack.enter_context(RedisServer(self._new_folder()))

    def _new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def _database(self) -> str:
        name = f"arena_{next(self._numbers)}"
        with self._postgres.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self._postgres.dsn.rpartition("/")[0] + f"/{name}"

    def _redis_database(self) -> str:
        return f"redis://127.0.0.1:{self._redis.port}/{next(self._numbers) % 16}"

    def place_for(self, contender: Contender, store: str) -> Place:
        """Return an empty place on a store for this contender alone."""
        urls: dict[str, Callable[[], str]] = {"postgres": self._database, "redis": self._redis_database}
        url = urls[store]() if store in urls else ""
        return Place(store, str(self._new_folder()), url, contender.options)

    def close(self) -> None:
        """Stop the servers."""
        self._stack.close()
