"""A store that goes away and comes back while a well works on it: by a proxy before a server, by a lock on a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy, Verdict
from tests.support.redis_server import RedisServer

__all__ = ["Outage", "outage_of"]


class Outage:
    """The URL of a store that can be taken away: as a context manager, for the length of a block."""

    def __init__(self, url: str, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self.url, self._begin, self._end = url, begin, end

    def __enter__(self) -> Outage:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


@contextmanager
def outage_of(store: str, request: pytest.FixtureRequest) -> Iterator[Outage]:
    """A store of a kind, on an empty place of the test's own."""
    if store == "sqlite":
        with _locked_file(request.getfixturevalue("tmp_path")) as outage:
            yield outage
        return
    server: PostgresServer | RedisServer = request.getfixturevalue(f"{store}_server")
    url: str = request.getfixturevalue(f"{store}_url")
    options = "reply_timeout=20&connect_timeout=20" if store == "postgres" else "timeout=20&connect_timeout=20"
    with Proxy(server.port) as proxy:

        def cut() -> None:
            proxy.on_request = lambda _: Verdict.CUT
            proxy.cut()

        def mend() -> None:
            proxy.on_request = lambda _: Verdict.PASS

        yield Outage(f"{url.replace(f':{server.port}/', f':{proxy.port}/')}&{options}", cut, mend)


@contextmanager
def _locked_file(folder: Path) -> Iterator[Outage]:
    """Another process has the file to itself: nothing can be written."""
    path = folder / "well.db"
    holder: list[apsw.Connection] = []

    def lock() -> None:
        holder.append(apsw.Connection(str(path)))
        holder[0].set_busy_timeout(10_000)
        holder[0].execute("BEGIN EXCLUSIVE")

    def unlock() -> None:
        holder[0].execute("ROLLBACK")
        holder.pop().close()

    yield Outage(f"sqlite:///{path}?synchronous=NORMAL&busy_seconds=0.1", lock, unlock)
