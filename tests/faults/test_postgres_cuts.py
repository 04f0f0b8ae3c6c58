"""T03, T13: connections to PostgreSQL are cut before and after each packet of a write, on the fast path and on the general one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy, Verdict

from stepwell.clock import FakeClock
from stepwell.errors import CommitUnknown, StoreUnavailable
from stepwell.model.commit import Commit, Creation, Rest, Seen, Unit, Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import ClaimItems, Enqueue, ItemMark, ItemQuery
from stepwell.model.scoped_operations import Increment
from stepwell.stores.postgres import writer
from stepwell.stores.postgres.store import PostgresStore
from stepwell.testing.conformance.samples import (
    HOUR,
    SCOPE,
    SampleExecution,
    claim_items,
    content,
    landed,
    new_item,
    status,
    statuses,
    step,
    walk,
    write,
)

_LEASED = Creation("orders", 3, holder="d", lease_seconds=HOUR, is_runnable=True)


@dataclass(frozen=True)
class Case:
    """A write, and how often it has landed, seen from outside."""

    unit: Unit
    times_landed: Callable[[], int]


def step_commit(store: PostgresStore, name: str) -> Case:
    run = SampleExecution(store, name).create()
    return Case(run.commit(step("a")), lambda: run.head.revision)


def first_commit(store: PostgresStore, name: str) -> Case:
    landed(write(store, Enqueue((new_item(name),))))
    [item] = claim_items(store, 1)
    run = SampleExecution(store, item.execution_id)
    mark = ItemMark(name, "DISPATCHED", item.fence)

    def times_landed() -> int:
        head = store.head(run.id)
        assert statuses(store)[name] == ("CLAIMED" if head is None else "DISPATCHED")
        return 0 if head is None else head.revision + 1

    return Case(run.creation(status("RUNNING"), creation=_LEASED, mark=mark), times_landed)


def last_commit(store: PostgresStore, name: str) -> Case:
    run = SampleExecution(store, name).create(status("RUNNING"), creation=_LEASED)

    def times_landed() -> int:
        assert (run.head.status == "COMPLETED") is (run.head.holder is None) is (run.head.revision == 1)
        return run.head.revision

    return Case(run.commit(status("COMPLETED"), fence=1, rest=Rest(is_final=True)), times_landed)


def commit_with_state(store: PostgresStore, name: str) -> Case:
    run = SampleExecution(store, name).create()

    def times_landed() -> int:
        assert content(store).get(name, 0) == run.head.revision
        return run.head.revision

    return Case(run.commit(step("a"), ops=(Increment(SCOPE, name),)), times_landed)


def enqueue(store: PostgresStore, name: str) -> Case:
    return Case(Enqueue((new_item(name),)), lambda: sum(item.item_id == name for item in store.items(ItemQuery())))


def claim(store: PostgresStore, name: str) -> Case:
    landed(write(store, Enqueue((new_item(name),))))

    def times_landed() -> int:
        item = store.item(name)
        assert item is not None
        assert (item.status == "CLAIMED") is (item.holder is not None)
        return item.attempts

    return Case(ClaimItems("d", HOUR, 1), times_landed)


ACTS = (step_commit, first_commit, last_commit, commit_with_state, enqueue, claim)


class Site:
    """A store whose connections go through a proxy, and one that sees the server directly."""

    def __init__(self, server: PostgresServer, schema: str, proxy: Proxy) -> None:
        self.proxy = proxy
        self.direct = self._open(server.url(schema))
        self.store = self._open(server.url(schema, port=proxy.port))

    def _open(self, url: str) -> PostgresStore:
        store = PostgresStore(url, FakeClock(), Limits())
        store.open()
        return store

    def close(self) -> None:
        self.store.close()
        self.direct.close()

    def spoil_packet(self, number: int, verdict: Verdict) -> None:
        """Have the n-th packet that is sent from now on go wrong, and no other."""
        count = 0

        def judge(_: bytes) -> Verdict:
            nonlocal count
            count += 1
            return verdict if count == number else Verdict.PASS

        self.proxy.acted.clear()
        self.proxy.on_request = judge

    def heal(self) -> None:
        """Have everything pass again."""
        self.proxy.on_request = lambda _: Verdict.PASS


@pytest.fixture
def site(postgres_server: PostgresServer, postgres_schema: str, postgres_url: str) -> Iterator[Site]:
    with Proxy(postgres_server.port) as proxy:
        site = Site(postgres_server, postgres_schema, proxy)
        yield site
        site.close()


@pytest.mark.parametrize("verdict", [Verdict.CUT, Verdict.SWALLOW], ids=["before", "after"])
@pytest.mark.parametrize("is_prepared", [True, False], ids=["prepared", "unprepared"])
@pytest.mark.parametrize("path", ["fast", "general"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_write_cut_at_any_packet_lands_whole_or_not_and_its_retry_lands_once(
    act: Callable[[PostgresStore, str], Case],
    path: str,
    is_prepared: bool,
    verdict: Verdict,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if path == "general":
        monkeypatch.setattr(writer, "is_fast", lambda _: False)
    number = 0
    while True:
        number += 1
        if is_prepared:
            landed(write(site.store, act(site.direct, f"warm-{number}").unit))
        case = act(site.direct, f"run-{number}")
        assert case.times_landed() == 0
        assert writer.is_fast([case.unit]) is (path == "fast" and act is not commit_with_state)

        site.spoil_packet(number, verdict)
        try:
            outcome = write(site.store, case.unit)
        except CommitUnknown:
            outcome = None
        except StoreUnavailable:
            outcome = None
            assert case.times_landed() == 0
        if outcome is not None and not site.proxy.acted.is_set():
            break
        assert site.proxy.acted.wait(60)
        site.heal()

        if outcome is not None:
            landed(outcome)
            assert case.times_landed() == 1
        has_landed = case.times_landed() == 1
        again = write(site.store, case.unit)
        if isinstance(case.unit, Commit):
            assert isinstance(again, Seen if has_landed else Written)
            assert walk(site.direct, case.unit.execution_id).ok
        assert case.times_landed() == 1
    assert number > 1, "no packet was cut"
