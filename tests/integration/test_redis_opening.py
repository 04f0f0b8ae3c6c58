"""Opening a Redis store: which servers can hold one, what they promise, and what is wrong with the others."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import exceptions
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer, free_port

from stepwell import AsyncStepwell, Stepwell
from stepwell.clock import SystemClock
from stepwell.contract.store import Durability
from stepwell.errors import (
    Corrupted,
    StoreForeign,
    StoreFull,
    StoreNewer,
    StoreUnavailable,
    StoreUnsafe,
)
from stepwell.model.limits import Limits
from stepwell.stores.redis.connection import translate
from stepwell.stores.redis.server_facts import durability_of
from stepwell.stores.redis.store import RedisStore
from stepwell.stores.redis.url import RedisSettings
from stepwell.testing.store_access import store_under


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may set up as it likes."""
    with RedisServer(tmp_path) as server:
        yield server


def open_store(url: str) -> RedisStore:
    store = RedisStore(url, SystemClock(), Limits())
    store.open()
    return store


def refused(url: str, kind: type[StoreUnavailable], *words: str) -> StoreUnavailable:
    """The error that opening a store gives: of this kind, naming the server and all these words."""
    with pytest.raises(kind) as caught:
        open_store(url)
    for word in ("redis://127.0.0.1:", *words):
        assert word in str(caught.value)
    assert type(caught.value) is kind
    return caught.value


# The mark


def test_store_that_is_there_is_opened_again_with_its_data(redis_url: str) -> None:
    with Stepwell(redis_url) as well:
        well.create("run")
        well.state.globals.set("k", 1)
    with Stepwell(redis_url) as well:
        assert well.load("run").revision == 0
        assert well.state.globals.get("k") == 1


def test_two_prefixes_share_a_database_without_meeting(redis_server: RedisServer) -> None:
    with Stepwell(redis_server.url("ours")) as ours, Stepwell(redis_server.url("ours:x")) as others:
        ours.create("run")
        assert [each.execution_id for each in ours.executions.list()] == ["run"]
        assert others.executions.list() == []


def prefix_of(url: str) -> str:
    return url.rpartition("prefix=")[2]


def test_store_of_newer_code_is_refused(redis_server: RedisServer, redis_url: str) -> None:
    """T48: both versions are named, and nothing is written."""
    with redis_server.client() as client:
        client.set(f"{prefix_of(redis_url)}:store", b"stepwell 9 abc")
        refused(redis_url, StoreNewer, "schema 9", "up to 1", "upgrade")
        assert client.keys(f"{prefix_of(redis_url)}:*") == [f"{prefix_of(redis_url)}:store".encode()]


@pytest.mark.parametrize("put", [lambda client, key: client.set(key, "hello"), lambda client, key: client.lpush(key, "a")])
def test_key_of_another_program_is_left_alone(
    redis_server: RedisServer, redis_url: str, put: Callable[[object, str], None]
) -> None:
    with redis_server.client() as client:
        put(client, f"{prefix_of(redis_url)}:store")
        refused(redis_url, StoreForeign, "prefix")


def test_remains_of_a_store_without_its_mark_are_not_taken_for_a_new_one(redis_server: RedisServer, redis_url: str) -> None:
    """T17."""
    with Stepwell(redis_url) as well:
        well.create("run")
    with redis_server.client() as client:
        client.delete(f"{prefix_of(redis_url)}:store")
    refused(redis_url, Corrupted, "mark")


def test_processes_that_open_a_new_store_at_once_agree_on_it(redis_url: str) -> None:
    stores = [open_store(redis_url) for _ in range(2)]
    for store in stores:
        store.check()
        store.close()


# The server


def test_server_that_is_away_is_named(redis_server: RedisServer) -> None:
    refused(f"redis://127.0.0.1:{free_port()}", StoreUnavailable, "cannot be reached", "start it")


def test_server_that_accepts_and_says_nothing_is_given_up_in_time(own_server: RedisServer) -> None:
    """It is stopped all the while: who waits for it comes to no end, and the test's own time limit tells."""
    os.kill(own_server.pid, signal.SIGSTOP)
    refused(own_server.url(connect_timeout=0.2), StoreUnavailable, "in time")
    os.kill(own_server.pid, signal.SIGCONT)


def test_server_of_another_kind_is_said(redis_server: RedisServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                client.recv(1_000)

        thread = threading.Thread(target=answer)
        thread.start()
        refused(f"redis://127.0.0.1:{listener.getsockname()[1]}", StoreForeign, "as no Redis server does", "rediss://")
        thread.join()


def test_server_without_encryption_is_said(redis_server: RedisServer) -> None:
    """It takes the first bytes of TLS for the beginning of a command, and waits for the rest."""
    url = redis_server.url(connect_timeout=0.2).replace("redis://", "rediss://")
    with pytest.raises(StoreUnavailable, match=r"in time.* write redis:// if it does not encrypt"):
        open_store(url)


@pytest.mark.parametrize("credentials", ["", ":wrong@", "nobody:secret@"])
def test_wrong_password_is_said(own_server: RedisServer, credentials: str) -> None:
    with own_server.client() as client:
        client.config_set("requirepass", "secret")
    url = own_server.url()
    refused(url.replace("//", f"//{credentials}"), StoreUnavailable, "password", "correct")
    open_store(url.replace("//", "//:secret@")).close()


def test_wrong_database_is_said(redis_server: RedisServer) -> None:
    refused(redis_server.url().replace("/0?", "/999?"), StoreUnavailable, "no such database")


def test_read_only_replica_is_refused(own_server: RedisServer, redis_server: RedisServer) -> None:
    with own_server.client() as client:
        client.replicaof("127.0.0.1", str(redis_server.port))
    refused(own_server.url(), StoreUnavailable, "read-only replica", "primary")


def test_primary_turned_replica_refuses_writes_until_it_is_primary_again(own_server: RedisServer) -> None:
    with Stepwell(own_server.url()) as well, own_server.client() as client:
        well.create("run")
        # A replica without a primary: it keeps its data, and waits for a primary that never comes.
        client.config_set("replica-serve-stale-data", "yes")
        client.replicaof("127.0.0.1", str(free_port()))
        with pytest.raises(StoreUnavailable, match="read-only replica"):
            well.create("other")
        with pytest.raises(StoreUnavailable, match="read-only replica"):
            store_under(well).check()
        client.replicaof("NO", "ONE")
        well.create("other")


@pytest.mark.parametrize("database", [0, 3])
def test_server_in_cluster_mode_is_refused_with_the_reason(tmp_path: Path, database: int) -> None:
    with RedisServer(tmp_path, cluster_enabled="yes") as server:
        url = server.url().replace("/0?", f"/{database}?")
        refused(url, StoreUnavailable, "cluster mode", "redis+sentinel://")


def test_server_that_is_too_old_is_refused(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        proxy.on_reply = lambda data: re.sub(rb"redis_version:\d", b"redis_version:5", data)
        refused(f"redis://127.0.0.1:{proxy.port}", StoreUnavailable, "version 5.", "upgrade it to 6.2")


def test_server_that_is_loading_its_data_is_named(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        proxy.on_reply = lambda _: b"-LOADING Redis is loading the dataset in memory\r\n"
        refused(f"redis://127.0.0.1:{proxy.port}", StoreUnavailable, "loading", "try again")


def test_server_without_scripts_is_refused(tmp_path: Path) -> None:
    with RedisServer(tmp_path, rename_command="EVALSHA none") as server:
        refused(server.url(), StoreUnavailable, "EVALSHA", "allow")


@pytest.mark.parametrize("lacking", ["-@scripting", "-zadd", "-publish", "-info", "-hset"])
def test_user_who_lacks_a_permission_is_told_which_before_anything_is_half_done(own_server: RedisServer, lacking: str) -> None:
    """A script that stops at a command half-way would leave half a commit: opening tries them all."""
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "clerk", "on", ">pw", "~*", "&*", "+@all", lacking)
    refused(own_server.url("mine").replace("//", "//clerk:pw@"), StoreUnavailable, "ACL SETUSER")


def test_user_with_the_permissions_that_the_message_names_is_enough(own_server: RedisServer) -> None:
    with own_server.client() as client:
        rights = ["~mine:*", "resetchannels", "&mine:*", "+@all", "-@dangerous", "+info"]
        client.execute_command("ACL", "SETUSER", "clerk", "on", ">pw", *rights)
        with Stepwell(own_server.url("mine").replace("//", "//clerk:pw@")) as well:
            well.create("run")
            well.state.globals.set("k", 1)
            assert well.durability() == Durability("none", well.durability().reason)
            assert "CONFIG GET" in well.durability().reason


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_server_that_evicts_any_key_is_refused(own_server: RedisServer, policy: str) -> None:
    """T17: an evicted head would look like an execution that never was."""
    with own_server.client() as client:
        client.config_set("maxmemory-policy", policy)
    refused(own_server.url(), StoreUnsafe, policy, "noeviction")


def test_server_that_evicts_keys_with_a_ttl_is_refused_if_executions_have_one(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """T17."""
    with own_server.client() as client:
        client.config_set("maxmemory-policy", "volatile-ttl")
    refused(own_server.url(execution_ttl=60), StoreUnsafe, "volatile-ttl", "noeviction")
    with caplog.at_level(logging.WARNING):
        open_store(own_server.url()).close()
    assert "volatile-ttl" in caplog.text


def test_server_out_of_memory_serves_reads_and_takes_writes_again_when_there_is_room(own_server: RedisServer) -> None:
    """T10: the same call works again, and nothing of the refused one is there."""
    with Stepwell(own_server.url("mine")) as well, own_server.client() as client:
        well.create("run")
        client.config_set("maxmemory", 1)
        tx = well.transaction("run")
        tx.set_variable("n", 1)
        tx.state(well.state.globals).set("k", 1)
        with pytest.raises(StoreFull, match="maxmemory"):
            tx.commit()
        assert (well.load("run").revision, well.state.globals.get("k")) == (0, None)
        with Stepwell(own_server.url("mine")) as other:
            assert other.load("run").revision == 0
        client.config_set("maxmemory", 0)
        assert tx.commit().revision == 1
        assert well.state.globals.get("k") == 1


@pytest.mark.parametrize(
    ("said", "kind", "word"),
    [
        ("MISCONF Redis is configured to save RDB snapshots", StoreUnavailable, "disk"),
        ("NOREPLICAS Not enough good replicas to write.", StoreUnavailable, "min-replicas"),
        ("BUSY Redis is busy running a script.", StoreUnavailable, "SCRIPT KILL"),
        ("WRONGTYPE Operation against a key", StoreForeign, "prefix"),
        (
            "Error running script (call to f_12ab): @user_script:9: @user_script: 9: -OOM command not allowed",
            StoreFull,
            "maxmemory",
        ),
        (
            "Error running script (call to f_12ab): @user_script:9: @user_script: 9: -READONLY You can't",
            StoreUnavailable,
            "primary",
        ),
        ("something new", StoreUnavailable, "something new"),
    ],
)
def test_errors_of_the_server_come_with_a_remedy(said: str, kind: type[StoreUnavailable], word: str) -> None:
    error = translate(exceptions.ResponseError(said), RedisSettings(host="db"))
    assert type(error) is kind
    assert word in error.message


# Durability


@pytest.mark.parametrize(
    ("settings", "level", "word"),
    [
        (("yes", "always", ""), "full", "always"),
        (("yes", "everysec", "3600 1"), "normal", "2 seconds"),
        (("yes", "no", ""), "normal", "power loss"),
        (("no", "everysec", "3600 1"), "none", "snapshots"),
        (("no", "always", ""), "none", "restart"),
    ],
)
def test_durability_follows_from_the_servers_settings(settings: tuple[str, str, str], level: str, word: str) -> None:
    """T16: what is not durable is never called so."""
    durability = durability_of(*settings)
    assert durability.level == level
    assert word in durability.reason


@pytest.mark.parametrize(("fsync", "level"), [("always", "full"), ("everysec", "normal")])
def test_durability_is_read_from_the_server(tmp_path: Path, fsync: str, level: str) -> None:
    with RedisServer(tmp_path, appendonly="yes", appendfsync=fsync) as server, Stepwell(server.url()) as well:
        assert well.durability().level == level


def test_durability_of_a_store_that_is_not_open_is_none(redis_url: str) -> None:
    async def ask() -> Durability:
        async with AsyncStepwell(redis_url) as well:
            return well.durability()

    assert RedisStore(redis_url, SystemClock(), Limits()).durability().level == "none"
    assert asyncio.run(ask()).level == "none"


# Health and closing


def test_health_check_names_the_server_that_is_down(own_server: RedisServer) -> None:
    store = open_store(own_server.url())
    store.check()
    own_server.kill()
    with pytest.raises(StoreUnavailable, match=rf"redis://127.0.0.1:{own_server.port}/0"):
        store.check()
    own_server.start()
    with pytest.raises(Corrupted):
        store.check()
    store.close()


def test_closed_store_says_so(redis_url: str) -> None:
    store = open_store(redis_url)
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.head("run")


def test_store_opened_before_a_fork_refuses_to_share_its_connections(redis_url: str) -> None:
    store = open_store(redis_url)
    child = os.fork()
    if child == 0:
        try:
            store.head("run")
        except StoreUnavailable as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.head("run") is None
    store.close()
