"""Waking others on Redis: executions that come due, and what is published to those who listen."""

from __future__ import annotations

import queue
import threading

import pytest
from tests.support.redis_server import RedisSite as Site

from stepwell.model.commit import (
    Acquire,
    ClaimDue,
    Creation,
    Release,
    Rest,
    StateBatch,
    Unlock,
)
from stepwell.stores.redis.store import RedisStore
from stepwell.testing.conformance.samples import HOUR, SampleExecution, answers, claim, landed, put, write

# What is due


def runnable(store: RedisStore, name: str, workflow: str = "orders") -> SampleExecution:
    execution = SampleExecution(store, name, workflow=workflow)
    return execution.create(creation=Creation(workflow, 3, is_runnable=True))


@pytest.mark.parametrize("name", ["é", "a/b", "{x}", "%41", "a b", "😀", "~._-"])
def test_execution_of_any_name_is_found_when_it_is_due(site: Site, name: str) -> None:
    """T46: the script builds the names of heads itself."""
    runnable(site.store, name, workflow=name)
    assert [lease.name for lease in answers(write(site.store, ClaimDue((name,), "worker", HOUR, 5)))] == [name]


def test_due_execution_whose_ttl_ended_does_not_take_the_place_of_another(site: Site) -> None:
    """T33: what is left of it in the list is dropped, and the page is filled with those behind it."""
    for number in range(6):
        runnable(site.store, f"run-{number}")
    for number in range(4):
        site.client.delete(*site.keys.execution(f"run-{number}"))
    leases = answers(write(site.store, ClaimDue(("orders",), "worker", HOUR, 2)))
    assert [lease.name for lease in leases] == ["run-4", "run-5"]
    assert site.client.zrange(f"{site.keys.due.decode()}:orders", 0, -1) == [b"run-4", b"run-5"]


def test_taking_what_is_due_starts_its_ttl_anew(site: Site) -> None:
    store = site.open(execution_ttl=1000)
    runnable(store, "run")
    keys = site.keys.execution("run")
    for key in keys:
        site.client.pexpire(key, 500_000)
    assert len(answers(write(store, ClaimDue(("orders",), "worker", HOUR, 2)))) == 1
    assert all(site.client.pttl(key) > 800_000 for key in keys if site.client.exists(key))


def test_listener_hears_that_something_came_due(site: Site) -> None:
    topics = Topics()
    end = site.store.listen(topics)
    assert topics.next() == ""
    other = site.open()
    execution = runnable(other, "run")
    assert topics.next() == "due"
    [lease] = answers(write(other, ClaimDue(("orders",), "worker", HOUR, 1)))
    execution.land(fence=lease.fence, rest=Rest())
    assert topics.next() == "due"
    landed(write(other, StateBatch((), nudges=("run",))))
    assert topics.next() == "due"
    lease = claim(other, "run", holder="worker")
    landed(write(other, Release("run", "worker", lease.fence)))
    assert topics.next() == "due"
    lease = claim(other, "run", holder="worker")
    execution.land(fence=lease.fence, rest=Rest(is_final=True))
    assert topics.is_quiet()
    end()


# Listening


class Topics:
    """Collects what a listener is woken with."""

    def __init__(self) -> None:
        self._queue: queue.Queue[str] = queue.Queue()

    def __call__(self, topic: str) -> None:
        self._queue.put(topic)

    def next(self) -> str:
        return self._queue.get(timeout=60)

    def is_quiet(self) -> bool:
        return self._queue.empty()


def test_listener_hears_what_other_processes_write(site: Site) -> None:
    other, topics = site.open(), Topics()
    end = site.store.listen(topics)
    assert topics.next() == ""
    [lease] = answers(write(other, Acquire("door", "a", 60)))
    write(other, StateBatch((put("k"),)))
    assert topics.next() == "state"
    write(other, Unlock("door", "a", lease.fence))
    assert topics.next() == "lock"
    execution = SampleExecution(other, "run").create()
    execution.land()
    execution.land(ops=(put("k", 2),))
    assert topics.next() == "state"
    assert topics.is_quiet()
    end()


def test_listener_comes_back_after_its_connection_was_cut(site: Site) -> None:
    topics = Topics()
    end = site.store.listen(topics)
    assert topics.next() == ""
    site.client.client_kill_filter(_type="pubsub")
    assert topics.next() == ""
    write(site.open(), StateBatch((put("k"),)))
    assert topics.next() == "state"
    end()


def test_listener_that_was_ended_leaves_no_thread_and_no_connection(site: Site) -> None:
    topics = Topics()
    end = site.store.listen(topics)
    assert topics.next() == ""
    end()
    for thread in threading.enumerate():
        if thread.name == "stepwell-listener":
            thread.join(timeout=60)
            assert not thread.is_alive()
    # The server sees the end of a connection in its own time; the test's own time limit ends this.
    while [each for each in site.client.client_list(_type="pubsub") if each["sub"] != "0"]:
        pass
