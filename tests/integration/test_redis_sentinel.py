"""A Redis primary and its replica under a Sentinel: the store follows the primary through a failover."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.redis_server import RedisSentinel, RedisServer, free_port

from stepwell import Stepwell
from stepwell.errors import StepwellError, StoreUnavailable


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary and its replica, in step with it."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with RedisServer(folders[0], repl_diskless_sync_delay="0") as primary, RedisServer(folders[1]) as replica:
        with replica.client() as client:
            client.replicaof("127.0.0.1", str(primary.port))
            wait_until(lambda: client.info()["master_link_status"] == "up")
        yield primary, replica


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def retried(call: Callable[[], object]) -> None:
    """Repeat a call until the store serves it."""

    def succeeds() -> bool:
        try:
            call()
        except StepwellError:
            return False
        return True

    wait_until(succeeds)


@pytest.mark.parametrize("is_killed", [True, False])
def test_store_follows_the_primary_after_a_failover(
    tmp_path: Path, servers: tuple[RedisServer, RedisServer], is_killed: bool
) -> None:
    primary, replica = servers
    with RedisSentinel(tmp_path, primary) as sentinel, Stepwell(sentinel.url(), worker=False) as well:
        well.create("before")
        with primary.client() as client:
            assert client.wait(1, 10_000) == 1
        sentinel.wait_for_replica()
        if is_killed:
            primary.kill()
        else:
            sentinel.fail_over()
        wait_until(lambda: sentinel.primary_port() == replica.port)
        retried(lambda: well.state.globals.set("k", 1))
        retried(lambda: well.load("before"))
        assert well.load("before").revision == 0
        with replica.client() as client:
            assert client.role()[0] == b"master"
            assert client.exists(f"{sentinel.prefix}:execution:before:head")


def test_unknown_service_is_named_when_the_store_is_opened(tmp_path: Path, servers: tuple[RedisServer, RedisServer]) -> None:
    with RedisSentinel(tmp_path, servers[0]) as sentinel:
        url = sentinel.url().replace("/mymaster/", "/other/")
        with pytest.raises(StoreUnavailable, match="/other/0 cannot be reached"), Stepwell(url):
            pass


def test_next_sentinel_is_asked_when_one_is_down(tmp_path: Path, servers: tuple[RedisServer, RedisServer]) -> None:
    with RedisSentinel(tmp_path, servers[0]) as sentinel:
        url = sentinel.url().replace("127.0.0.1:", f"127.0.0.1:{free_port()},127.0.0.1:")
        with Stepwell(url) as well:
            well.create("run")
