"""Listeners of the PostgreSQL store are told of what other processes write."""

from __future__ import annotations

import queue
import threading

import pytest
from tests.integration.commit_paths import take_the_long_way
from tests.integration.conftest import OpenUrl, other_postgres_store, postgres_store
from tests.support.polling import until
from tests.support.postgres_server import PostgresServer

from stepwell.errors import Conflict
from stepwell.model.commit import (
    Creation,
    Release,
    StateBatch,
    Unlock,
)
from stepwell.model.queue_item import Enqueue
from stepwell.stores.postgres.store import PostgresStore
from stepwell.testing.conformance.samples import HOUR, SampleExecution, acquire, landed, new_item, put, refused, write, write_state

store = postgres_store
other = other_postgres_store

_PATIENCE_SECONDS = 60.0


def heard(topics: queue.Queue[str], topic: str) -> None:
    """Wait until a topic is heard."""
    while topics.get(timeout=_PATIENCE_SECONDS) != topic:
        pass


@pytest.mark.parametrize("is_long_way", [False, True])
@pytest.mark.parametrize("topic", ["lock", "state", "due"])
def test_listener_is_told_by_a_write_of_another_process(
    topic: str, is_long_way: bool, store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_long_way:
        take_the_long_way(monkeypatch)
    run = SampleExecution(other, workflow="orders").create(
        creation=Creation("orders", 3, holder="a", lease_seconds=HOUR, is_runnable=True)
    )
    lease, topics = acquire(other), queue.Queue[str]()
    end = store.listen(topics.put)
    heard(topics, "")
    units = {"lock": Unlock("door", "a", lease.fence), "state": StateBatch((put("a"),)), "due": Release(run.id, "a", 1)}
    landed(write(other, units[topic]))
    heard(topics, topic)
    assert topics.empty()
    end()


def test_listener_is_told_once_for_a_group_and_not_of_what_was_refused(store: PostgresStore, other: PostgresStore) -> None:
    topics = queue.Queue[str]()
    store.listen(topics.put)
    heard(topics, "")
    refused(write(other, StateBatch((put("a", expected=3),))), Conflict)
    SampleExecution(other).create().grow(2)
    other.write([StateBatch((put(f"key-{number}"),)) for number in range(5)])
    heard(topics, "state")
    lease = acquire(other)
    landed(write(other, Unlock("door", "a", lease.fence)))
    assert topics.get(timeout=_PATIENCE_SECONDS) == "lock"


def test_listener_comes_back_when_its_connection_is_ended(
    store: PostgresStore, other: PostgresStore, postgres_server: PostgresServer
) -> None:
    """T41: and says so, since whatever was sent meanwhile is lost."""
    topics = queue.Queue[str]()
    store.listen(topics.put)
    heard(topics, "")
    with postgres_server.connect() as connection:
        ended = connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchall()
    assert set(ended) == {(True,)}  # the one of the test before may be on its way out
    heard(topics, "")
    write_state(other, put("a"))
    heard(topics, "state")


def test_listener_is_not_told_of_what_its_own_store_writes(store: PostgresStore, other: PostgresStore) -> None:
    """A store does not receive its own notifications: it has told its listeners already."""
    topics = queue.Queue[str]()
    store.listen(topics.put)
    heard(topics, "")
    write_state(store, put("a"))
    landed(write(store, Enqueue((new_item("a"),))))
    write_state(other, put("b"))
    assert topics.get(timeout=_PATIENCE_SECONDS) == "state"
    lease = acquire(other)
    landed(write(other, Unlock("door", "a", lease.fence)))
    assert topics.get(timeout=_PATIENCE_SECONDS) == "lock"


def test_what_a_connection_brings_to_an_end_after_it_was_given_up_is_news(store: PostgresStore) -> None:
    """T03: its server may commit what nobody here was told of, and only the notification says so."""
    link = store.writer.fresh_connection()
    assert store._is_served_by(link.server_process)
    link.close()
    assert not store._is_served_by(link.server_process)


def test_listeners_of_one_store_share_a_connection_and_other_schemas_are_not_heard(
    store: PostgresStore, other: PostgresStore, open_url: OpenUrl, fresh_postgres_url: str, postgres_server: PostgresServer
) -> None:
    first, second = queue.Queue[str](), queue.Queue[str]()
    end = store.listen(first.put)
    heard(first, "")
    store.listen(second.put)
    end()
    write_state(open_url(fresh_postgres_url), put("a"))
    write_state(other, put("a"))
    heard(second, "state")
    assert (first.empty(), second.empty()) == (True, True)
    with postgres_server.connect() as connection:
        count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        until(lambda: connection.execute(count).fetchone() == (1,))  # those of the tests before may be on their way out
        store.close()
        until(lambda: connection.execute(count).fetchone() == (0,))
    for thread in threading.enumerate():
        if thread.name == "stepwell-listener":
            thread.join(_PATIENCE_SECONDS)
            assert not thread.is_alive()
