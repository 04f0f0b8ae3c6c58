"""Redis loses its connection, or dies, before and after each packet of a write: the state is old or new, never between.

Every write is made on the fast path, where it has one, and on the general one. Its caller gets the outcome, ``StoreUnavailable`` or
``CommitUnknown``, and the same write again lands once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.proxy import Proxy, Verdict, at_match
from tests.support.redis_server import RedisServer

from stepwell.clock import FakeClock
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import CommitUnknown, StoreUnavailable
from stepwell.model.commit import Commit, CommitKind, Creation, Outcome, Rest, Seen, Unit, Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import ClaimItems, Enqueue, ItemMark
from stepwell.model.scoped_operations import Increment
from stepwell.stores.redis.fast_path import is_fast
from stepwell.stores.redis.scripts import SCRIPTS
from stepwell.stores.redis.store import RedisStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SCOPE,
    SampleExecution,
    add,
    claimed_item,
    content,
    new_item,
    put,
    status,
    statuses,
    walk,
)

_WORKER = Creation("orders", 3, holder="w", lease_seconds=HOUR, is_runnable=True)
_WRITING = [SCRIPTS[name].sha.encode() for name in ("commit", "fast_commits", "enqueue", "claim_items")]


def steps(store: Store) -> list[Unit]:
    return [SampleExecution(store, f"run-{number}").create().commit() for number in range(3)]


def first(store: Store) -> list[Unit]:
    item = claimed_item(store)
    mark = ItemMark(item.item_id, "DISPATCHED", item.fence)
    return [SampleExecution(store, item.execution_id).creation(status("RUNNING"), creation=_WORKER, mark=mark)]


def last(store: Store) -> list[Unit]:
    item = claimed_item(store)
    mark = ItemMark(item.item_id, "DISPATCHED", item.fence)
    execution = SampleExecution(store, item.execution_id).create(status("RUNNING"), creation=_WORKER, mark=mark)
    ends = ItemMark(item.item_id, "COMPLETED")
    return [execution.commit(status("COMPLETED"), fence=1, rest=Rest(is_final=True), mark=ends)]


def run(store: Store) -> list[Unit]:
    item = claimed_item(store)
    mark = ItemMark(item.item_id, "COMPLETED", item.fence)
    ends = (status("RUNNING"), status("COMPLETED"))
    return [SampleExecution(store, item.execution_id).creation(*ends, creation=_WORKER, rest=Rest(is_final=True), mark=mark)]


def with_state(store: Store) -> list[Unit]:
    execution = SampleExecution(store, "run").create()
    return [execution.commit(commit_id="mine", ops=(Increment(SCOPE, "n"), put("k")), items=(new_item("child", key="c"),))]


def group(store: Store) -> list[Unit]:
    return [*steps(store), *with_state(store)]


def enqueue(_: Store) -> list[Unit]:
    return [Enqueue((new_item("a"), new_item("b", key="k")))]


def claim(store: Store) -> list[Unit]:
    add(store, "a")
    return [ClaimItems("d", HOUR, 1)]


WRITES: dict[str, Callable[[Store], list[Unit]]] = {
    each.__name__: each for each in (steps, first, last, run, with_state, group, enqueue, claim)
}
"""Each prepares a store, and returns the units that are written next."""


def view(store: Store) -> tuple[object, ...]:
    """Return the content of a store as users see it, without ids, digests and times."""
    heads = store.find(ExecutionQuery(limit=100))
    runs = {head.execution_id: (head.revision, head.status, head.holder, walk(store, head.execution_id).ok) for head in heads}
    return runs, content(store), statuses(store)


def write(store: Store, units: list[Unit]) -> list[Outcome]:
    try:
        return store.write(units)
    except (StoreUnavailable, CommitUnknown) as error:
        return [error] * len(units)


class Places:
    """Opens stores on empty prefixes of a server: one that sees it directly, and one through a proxy."""

    def __init__(self, server: RedisServer, proxy: Proxy) -> None:
        self.server, self.proxy = server, proxy
        self._opened: list[RedisStore] = []

    def open(self) -> tuple[RedisStore, RedisStore]:
        self.proxy.on_request, self.proxy.on_reply = (lambda _: Verdict.PASS), (lambda data: data)
        self.proxy.acted.clear()
        url = self.server.url()
        return self._open(url), self._open(url.replace(f":{self.server.port}/", f":{self.proxy.port}/") + "&timeout=20")

    def _open(self, url: str) -> RedisStore:
        store = RedisStore(url, FakeClock(), Limits())
        store.open()
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()

    def undisturbed(self, name: str) -> tuple[object, int]:
        """Return the result of an undisturbed write, and the number of packets that it sends."""
        direct, through = self.open()
        units, packets = WRITES[name](direct), 0

        def count(_: bytes) -> Verdict:
            nonlocal packets
            packets += 1
            return Verdict.PASS

        self.proxy.on_request = count
        assert {type(outcome) for outcome in through.write(units)} == {Written}
        return view(direct), packets


@pytest.fixture
def places(redis_server: RedisServer) -> Iterator[Places]:
    with Proxy(redis_server.port) as proxy:
        places = Places(redis_server, proxy)
        yield places
        places.close()


def check(outcomes: list[Outcome], found: object, old: object, new: object) -> None:
    assert found in (old, new)
    for outcome in outcomes:
        match outcome:
            case Written() | Seen():
                assert found == new
            case CommitUnknown():
                pass
            case _:
                assert isinstance(outcome, StoreUnavailable)
                assert found == old


def test_the_cases_cover_the_fast_path_and_the_general_one(places: Places) -> None:
    direct, _ = places.open()
    assert {is_fast(unit) for unit in steps(direct)} == {True}
    made = [unit for make in (first, last, run, with_state) for unit in make(places.open()[0])]
    kinds = [unit.kind for unit in made if isinstance(unit, Commit)]
    assert kinds == [CommitKind.FIRST, CommitKind.LAST, CommitKind.RUN, CommitKind.GENERAL]


@pytest.mark.parametrize("verdict", [Verdict.CUT, Verdict.SWALLOW], ids=["before", "after"])
@pytest.mark.parametrize("path", ["fast", "general"])
@pytest.mark.parametrize("name", WRITES)
def test_connection_that_breaks_around_a_packet_leaves_old_or_new(
    places: Places, name: str, path: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T03, T28."""
    if path == "general":
        monkeypatch.setattr("stepwell.stores.redis.writer.is_fast", lambda _: False)
    new, packets = places.undisturbed(name)
    for number in range(packets):
        direct, through = places.open()
        units = WRITES[name](direct)
        old = view(direct)
        places.proxy.on_request = at_match(b"", verdict, after=number)
        outcomes = write(through, units)
        assert places.proxy.acted.wait(60)
        check(outcomes, view(direct), old, new)
        assert {type(outcome) for outcome in write(through, units)} <= {Written, Seen}
        assert view(direct) == new


@pytest.mark.parametrize("moment", ["before", "after"])
def test_server_that_is_killed_around_a_write_comes_back_with_old_or_new(tmp_path: Path, moment: str) -> None:
    """T16, T41: what was acknowledged is in its log, and what was not is there whole or not at all."""
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server, Proxy(server.port) as proxy:
        places = Places(server, proxy)
        for name, make in WRITES.items():
            new, _ = places.undisturbed(name)
            direct, through = places.open()
            units = make(direct)
            old, killed = view(direct), threading.Event()
            kill_around(places, moment, killed)
            outcomes = write(through, units)
            assert killed.wait(60)
            server.start()
            check(outcomes, view(direct), old, new)
            assert view(direct) == (old if moment == "before" else new)
            assert {type(outcome) for outcome in write(through, units)} <= {Written, Seen}
            assert view(direct) == new
        places.close()


def kill_around(places: Places, moment: str, killed: threading.Event) -> None:
    """Have the server killed before the next write reaches it, or once it has answered it."""
    is_sent = False

    def kill() -> None:
        if not killed.is_set():
            places.server.kill()
            killed.set()

    def on_request(data: bytes) -> Verdict:
        nonlocal is_sent
        is_sent = is_sent or any(sha in data for sha in _WRITING)
        if is_sent and moment == "before" and not killed.is_set():
            kill()
            return Verdict.CUT
        return Verdict.PASS

    def on_reply(data: bytes) -> bytes:
        if not is_sent or killed.is_set():
            return data
        kill()
        return b""

    places.proxy.on_request, places.proxy.on_reply = on_request, on_reply
