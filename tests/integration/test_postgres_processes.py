"""Several processes on one PostgreSQL schema: one winner of each race, and no circle of waits."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from tests.integration.commit_paths import take_the_long_way
from tests.integration.conftest import OpenUrl, other_postgres_store, postgres_store
from tests.support.postgres_server import PostgresServer

from stepwell.model.commit import (
    Acquire,
    Claim,
    Commit,
    StateBatch,
    Unit,
    Written,
)
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Increment
from stepwell.stores.postgres.store import PostgresStore
from stepwell.testing.conformance.samples import HOUR, SCOPE, SampleExecution, content, put, walk, write

store = postgres_store
other = other_postgres_store

T = TypeVar("T")
_PATIENCE_SECONDS = 60.0


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_every_isolation_level_gives_the_same_results(isolation: str, open_url: OpenUrl, postgres_url: str) -> None:
    """T15: head-row lock, revision and fence decide; a stricter level only makes for more tries."""
    url = f"{postgres_url}&options=-c%20default_transaction_isolation={isolation.replace(' ', '%5C%20')}"
    stores = [open_url(url) for _ in range(3)]
    run = SampleExecution(stores[0]).create()
    wins = [0] * len(stores)

    def race(number: int) -> None:
        store, view = stores[number], SampleExecution(stores[number])
        for turn in range(25):
            view.follow()
            outcome = write(store, view.commit(ops=(Increment(SCOPE, "wins"),)))
            wins[number] += isinstance(outcome, Written)
            # Write skew: both see that the duty is free, and both would take it.
            write(store, StateBatch((put(f"duty-{turn}", number, expected=0, strict=False), Increment(SCOPE, f"asked-{turn}"))))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = content(stores[0])
    assert run.head.revision == sum(wins) == found["wins"]
    assert [found[f"asked-{turn}"] for turn in range(25)] == [3] * 25
    assert walk(stores[0], run.id).ok
    assert stores[0].totals(SCOPE).revision == max(entry.revision for _, entry in stores[0].scan(SCOPE))


def together(*acts: Callable[[], T]) -> list[T]:
    """Have several things done at the same moment; what came of each."""
    gate = threading.Barrier(len(acts))
    with ThreadPoolExecutor(len(acts)) as pool:
        done = [pool.submit(lambda act=act: (gate.wait(), act())[1]) for act in acts]
        return [each.result() for each in done]


def test_every_race_for_a_lease_has_exactly_one_winner(store: PostgresStore, other: PostgresStore) -> None:
    """T31: also if both found the execution free."""
    for number in range(40):
        run = SampleExecution(store, f"run-{number}").create()
        first, second = Claim(run.id, "a", HOUR), Claim(run.id, "b", HOUR)
        outcomes = together(lambda unit=first: write(store, unit), lambda unit=second: write(other, unit))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LockHeld", "Written"]
        assert run.head.fence == 1


@pytest.mark.parametrize("is_long_way", [False, True])
def test_groups_of_the_same_executions_in_opposite_order_never_wait_in_a_circle(
    is_long_way: bool,
    store: PostgresStore,
    other: PostgresStore,
    postgres_server: PostgresServer,
    postgres_schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are stopped halfway: if each held what the other needs next, neither could go on."""
    if is_long_way:
        take_the_long_way(monkeypatch)
    since = len(postgres_server.complaints())
    runs = [SampleExecution(store, f"run-{number}").create() for number in range(9)]
    forth, back = [run.commit() for run in runs], [run.commit() for run in reversed(runs)]
    with postgres_server.connect() as blocker, ThreadPoolExecutor(2) as pool:
        with blocker.transaction():
            blocker.execute(f"SELECT 1 FROM {postgres_schema}.executions WHERE execution_id = 'run-4' FOR UPDATE")
            writes = [pool.submit(store.write, forth), pool.submit(other.write, back)]
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while blocker.execute(waiting).fetchone() != (2,):
                blocker.execute("SELECT pg_stat_clear_snapshot()")
        outcomes = [outcome for each in writes for outcome in each.result()]
    assert sum(isinstance(outcome, Written) for outcome in outcomes) == len(runs)
    assert "deadlock detected" not in postgres_server.complaints(since)


def test_processes_that_write_the_same_things_in_any_order_never_wait_in_a_circle(
    open_url: OpenUrl, postgres_url: str, postgres_server: PostgresServer
) -> None:
    since = len(postgres_server.complaints())
    stores = [open_url(postgres_url) for _ in range(3)]
    for number in range(6):
        SampleExecution(stores[0], f"run-{number}").create()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng, store = random.Random(seed), stores[seed]
        try:
            for _ in range(40):
                units: list[Unit] = []
                for number in rng.sample(range(6), 4):
                    view = SampleExecution(store, f"run-{number}")
                    view.follow()
                    units.append(rng.choice([view.commit, lambda view=view: view.commit(ops=(Increment(SCOPE, view.id),))])())
                    units.append(StateBatch((Increment(Scope.custom(f"s{rng.randrange(4)}").path, "n"), put("x", scope=SCOPE))))
                    units.append(Acquire(f"lock-{rng.randrange(4)}", f"{seed}", 0.001))
                rng.shuffle(units)
                store.write(
                    units if rng.random() < 0.5 else [unit for unit in units if isinstance(unit, Commit) and not unit.ops] or units
                )
        except Exception as error:  # noqa: BLE001 - the test looks at what there is
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert "deadlock detected" not in postgres_server.complaints(since)
    for number in range(6):
        assert walk(stores[0], f"run-{number}").ok
