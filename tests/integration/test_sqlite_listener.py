"""SQLite's listener: writes of other processes wake this one, and its own do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from stepwell.clock import SystemClock
from stepwell.model.limits import Limits
from stepwell.stores.sqlite.connection import Database, parse_url
from stepwell.stores.sqlite.listener import POLL_SECONDS, start_listener
from stepwell.stores.sqlite.store import SQLiteStore
from stepwell.testing.conformance.samples import SampleExecution

LONG = 60  # for a busy machine; nothing waits for this unless it hangs

OpenStore = Callable[[], SQLiteStore]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    opened: list[SQLiteStore] = []

    def open_one() -> SQLiteStore:
        opened.append(SQLiteStore(f"sqlite:///{tmp_path / 'well.db'}", SystemClock(), Limits()))
        opened[-1].open()
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def test_each_write_of_another_store_wakes_the_listener(open_store: OpenStore) -> None:
    ours, theirs, woken = open_store(), open_store(), SimpleQueue[str]()
    execution = SampleExecution(theirs, "run")
    end = ours.listen(woken.put)
    execution.create()
    assert woken.get(timeout=LONG) == ""
    execution.land()
    assert woken.get(timeout=LONG) == ""
    end()


def test_own_writes_do_not_wake_the_listener(open_store: OpenStore) -> None:
    ours, woken = open_store(), SimpleQueue[str]()
    end = ours.listen(woken.put)
    execution = SampleExecution(ours, "run").create()
    for _ in range(5):
        execution.land()
        with pytest.raises(Empty):
            woken.get(timeout=2 * POLL_SECONDS)
    end()


def test_write_of_another_store_between_own_ones_wakes_the_listener(open_store: OpenStore) -> None:
    ours, theirs, woken = open_store(), open_store(), SimpleQueue[str]()
    end = ours.listen(woken.put)
    mine, yours = SampleExecution(ours, "mine").create(), SampleExecution(theirs, "yours").create()
    for _ in range(5):
        mine.land()
        yours.land()
        mine.land()
        assert woken.get(timeout=LONG) == ""
    end()


def test_own_writes_of_a_busy_writer_do_not_wake_the_listener(open_store: OpenStore, tmp_path: Path) -> None:
    store, woken, asked = open_store(), SimpleQueue[str](), SimpleQueue[None]()
    versions = iter([7, None, None, None, 7])

    def version() -> object:
        asked.put(None)
        return next(versions)

    end = start_listener(Database(parse_url(f"sqlite:///{tmp_path / 'well.db'}"), is_writer=False), version, woken.put)
    SampleExecution(store, "run").create()
    for _ in range(5):
        asked.get(timeout=LONG)
    with pytest.raises(Empty):
        woken.get(timeout=2 * POLL_SECONDS)
    end()


def test_write_wakes_the_listener_if_the_writer_stays_busy(open_store: OpenStore, tmp_path: Path) -> None:
    store, woken = open_store(), SimpleQueue[str]()
    end = start_listener(Database(parse_url(f"sqlite:///{tmp_path / 'well.db'}"), is_writer=False), lambda: None, woken.put)
    SampleExecution(store, "run").create()
    assert woken.get(timeout=LONG) == ""
    end()
