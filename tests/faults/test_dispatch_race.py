"""Many dispatchers at once: nothing runs twice, no cap is passed, one end wins; and lost replies and stores that go away."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from tests.support.places import url_of
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy, Verdict

from stepwell import CommitUnknown, Conflict, ItemStatus, QueueRequest, Status, Stepwell, StoreUnavailable, workflow
from stepwell.model.commit import Outcome
from stepwell.model.queue import Enqueue

WAIT = 30
SHARED = ["sqlite", "postgres", "redis"]
runs: Counter[int] = Counter()


class Log:
    """How many run at once: now, and at most so far."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.wanted = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        yield
        with self.lock:
            self.now -= 1


log = Log()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    runs.clear()
    log.__init__()


@workflow(name="race.count")
async def count(number: int) -> int:
    runs[number] += 1
    return number


@workflow(name="race.crowd")
async def crowd(number: int) -> int:
    with log.inside():
        for _ in range(20):  # as long as others need to come in, if they may
            await asyncio.sleep(0.001)
            if log.most >= log.wanted:
                break
        await asyncio.sleep(0.002)
    return number


@contextmanager
def wells(url: str, number: int, **options: Any) -> Iterator[list[Stepwell]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Stepwell(url, concurrency=10, **options)) for _ in range(number)]


@pytest.mark.parametrize("store", SHARED)
def test_eight_dispatchers_run_each_item_once(request: pytest.FixtureRequest, store: str):
    """T27."""
    with wells(url_of(store, request), 8) as working:
        for name in range(5):
            working[0].workspaces.put(f"w{name}", tier="enterprise")
        requests = [QueueRequest(workflow=count, value=number, workspace=f"w{number % 5}") for number in range(300)]
        items = [item for item in working[0].enqueue_many(requests) if not isinstance(item, Exception)]
        assert [item.result(WAIT) for item in items] == list(range(300))
        assert runs == dict.fromkeys(range(300), 1)
        states = [item.state() for item in items]
        assert {state.status for state in states} == {ItemStatus.COMPLETED}
        assert {state.attempts for state in states} == {1}
        assert len({state.execution_id for state in states}) == 300


@pytest.mark.parametrize("store", SHARED)
@pytest.mark.parametrize("cap", [1, 7])
def test_the_cap_is_reached_and_never_passed(request: pytest.FixtureRequest, store: str, cap: int):
    """T34."""
    log.wanted = cap
    with wells(url_of(store, request), 8) as working:
        working[0].workspaces.put_tier("capped", concurrency=cap)
        working[0].workspaces.put("acme", tier="capped")
        items = working[0].enqueue_many([QueueRequest(workflow=crowd, value=number, workspace="acme") for number in range(40)])
        assert [item.result(WAIT) for item in items if not isinstance(item, Exception)] == list(range(40))
        assert log.most == cap
        assert all(lane.running == 0 for lane in working[0].queue.stats())


def test_waiting_for_capacity_uses_no_attempts(request: pytest.FixtureRequest):
    """T38: a hundred looks at an item that has no slot."""
    with Stepwell(url_of("sqlite", request)) as well:
        well.workspaces.put_tier("none", concurrency=0)
        well.workspaces.put("acme", tier="none")
        item = well.enqueue(count, 1, workspace="acme")
        for number in range(100):
            assert well.enqueue(count, 100 + number).result(WAIT) == 100 + number
        assert (item.state().status, item.state().attempts) == (ItemStatus.PENDING, 0)
        well.workspaces.put("acme", tier="free")
        assert item.result(WAIT) == 1


@pytest.mark.parametrize("store", SHARED)
def test_one_end_wins_when_items_are_cancelled_while_they_run(request: pytest.FixtureRequest, store: str):
    """T40: a cancel that meets a claim, a start or an end; whichever it was, the item and its execution say the same."""
    with Stepwell(url_of(store, request)) as well:
        items = [well.enqueue(count, number) for number in range(100)]

        def cancel(item: Any) -> None:
            with suppress(Conflict):  # it had ended
                item.cancel()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(cancel, items))
        for item in items:
            while (state := item.state()).status not in (ItemStatus.COMPLETED, ItemStatus.CANCELLED):
                pass
            heads = [each for each in well.executions.list(limit=1_000) if each.execution_id == state.execution_id]
            if state.status is ItemStatus.COMPLETED:
                assert [head.status for head in heads] == [Status.COMPLETED]
            else:
                assert [head.status for head in heads] in ([], [Status.CANCELLED])
        assert all(lane.running == 0 for lane in well.queue.stats())


class LosesReplies:
    """Stands before a store's ``write``: the first enqueue lands, and its reply is lost."""

    def __init__(self, well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write, self.lost = well._parts.store.write, 0
        monkeypatch.setattr(well._parts.store, "write", self.write)

    def write(self, units: Any) -> list[Outcome]:
        outcomes = self._write(units)
        if any(isinstance(unit, Enqueue) for unit in units) and not self.lost:
            self.lost += 1
            raise CommitUnknown("the reply was lost")
        return outcomes


@pytest.mark.parametrize("key", [None, "order-7"])
def test_a_request_whose_reply_was_lost_is_one_item(monkeypatch: pytest.MonkeyPatch, key: str | None):
    """T39."""
    with Stepwell("memory://", worker=False) as well:
        faulty = LosesReplies(well, monkeypatch)
        item = well.enqueue(count, 1, key=key)
        assert faulty.lost == 1
        assert [each.item_id for each in well.queue.list()] == [item.item_id]


@pytest.mark.usefixtures("postgres_url")  # which empties the schema
def test_consumption_resumes_after_the_store_was_away(postgres_server: PostgresServer, postgres_schema: str):
    """T41: connections are cut, nobody gets through for a while, and it flaps; then items run again by themselves."""
    with (
        Proxy(postgres_server.port) as proxy,
        Stepwell(postgres_server.url(postgres_schema, port=proxy.port, reply_timeout=2, connect_timeout=2)) as well,
    ):
        assert well.enqueue(count, 1).result(WAIT) == 1
        for _ in range(3):
            proxy.on_request = lambda _: Verdict.CUT
            proxy.cut()
            with pytest.raises((StoreUnavailable, CommitUnknown)):
                well.enqueue(count, 2)
            proxy.on_request = lambda _: Verdict.PASS
        while True:
            try:
                item = well.enqueue(count, 3)
                break
            except (StoreUnavailable, CommitUnknown):
                continue
        assert item.result(10) == 3
