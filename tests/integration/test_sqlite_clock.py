"""SQLite's clock: leases, locks and lifetimes are counted from inside the transaction, not from before the wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from stepwell.clock import FakeClock
from stepwell.fault_points import armed
from stepwell.model.commit import Acquire, Claim, ClaimDue, Creation, Extension, Lease, Renew, StateBatch, Unit, Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Claimed, ClaimItems, Enqueue
from stepwell.stores.sqlite.store import SQLiteStore
from stepwell.testing.conformance.samples import SCOPE, SampleExecution, new_item, put

WAIT, LEASE = timedelta(seconds=60), 30


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[SQLiteStore]:
    store = SQLiteStore(f"sqlite:///{tmp_path / 'well.db'}", clock, Limits())
    store.open()
    yield store
    store.close()


def write_late(store: SQLiteStore, clock: FakeClock, unit: Unit) -> list[object]:
    """Write a unit while another process holds the file: a minute passes between the call and the transaction."""
    with armed(lambda point: clock.advance(WAIT) if point == "store.before_begin" else None):
        (outcome,) = store.write([unit])
    assert isinstance(outcome, Written), outcome
    return list(outcome.answers)


def due(store: SQLiteStore) -> SampleExecution:
    execution = SampleExecution(store, "run")
    return execution.create(creation=Creation(execution.workflow, 3, is_runnable=True))


@pytest.mark.parametrize("kind", ["claim", "claim due", "extension", "lock", "renewal"])
def test_lease_granted_after_a_wait_is_counted_from_then(store: SQLiteStore, clock: FakeClock, kind: str) -> None:
    execution = due(store)
    units: dict[str, Unit] = {
        "claim": Claim("run", "a", LEASE),
        "claim due": ClaimDue((execution.workflow,), "a", LEASE, 1),
        "extension": Extension("run", "a", 1, 3 * LEASE),
        "lock": Acquire("till", "a", LEASE),
        "renewal": Renew("till", "a", 1, 3 * LEASE),
    }
    if kind in ("extension", "renewal"):
        store.write([Claim("run", "a", 3 * LEASE), Acquire("till", "a", 3 * LEASE)])
    (lease,) = write_late(store, clock, units[kind])
    assert isinstance(lease, Lease)
    assert lease.until_ms == clock.now_ms() + (3 if kind in ("extension", "renewal") else 1) * LEASE * 1000


def test_queue_item_claimed_after_a_wait_is_leased_from_then(store: SQLiteStore, clock: FakeClock) -> None:
    store.write([Enqueue((new_item("a"),))])
    (claimed,) = write_late(store, clock, ClaimItems("a", LEASE, 1))
    assert isinstance(claimed, Claimed)
    item = store.item("a")
    assert item is not None
    assert item.lease_until_ms == clock.now_ms() + LEASE * 1000


def test_execution_created_after_a_wait_is_leased_from_then(store: SQLiteStore, clock: FakeClock) -> None:
    creation = Creation("shop", 3, holder="a", lease_seconds=LEASE, is_runnable=True)
    write_late(store, clock, SampleExecution(store, "run").creation(creation=creation))
    head = store.head("run")
    assert head is not None
    assert head.lease_until_ms == head.wake_ms == clock.now_ms() + LEASE * 1000


def test_value_written_after_a_wait_lives_from_then(store: SQLiteStore, clock: FakeClock) -> None:
    write_late(store, clock, StateBatch((put("k", ttl=LEASE),)))
    assert store.entries(SCOPE, ["k"])["k"].expires_ms == clock.now_ms() + LEASE * 1000
