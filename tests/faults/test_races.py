"""T05: of those who write the same revision of an execution, exactly one wins."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.callers import Blocking
from tests.faults.children import Child
from tests.faults.invariants import check_chain

from stepwell import AlreadyExists, AsyncStepwell, Conflict, Scope, Stepwell
from stepwell.app.awaited import AsyncTransaction
from stepwell.fault_points import armed

_COUNTER = Scope.globals()
_THREADS = 4


def run_races(races: int, begin: Callable[[int, int], Callable[[], object]], lost: type[Exception]) -> list[Counter[str]]:
    """Let threads begin together and finish together, race after race; how many won and lost each.

    All of a race have validated their commits before any is written, so that it is the store that decides.
    """
    barrier, results = threading.Barrier(_THREADS), [Counter[str]() for _ in range(races)]

    def wait_for_all(point: str) -> None:
        if point == "commit.validated":
            barrier.wait()

    def compete(racer: int) -> None:
        try:
            for race, result in enumerate(results):
                finish = begin(racer, race)
                barrier.wait()  # no caller may win before all have begun
                try:
                    finish()
                    outcome = "won"
                except lost:
                    outcome = "lost"
                result[outcome] += 1
                barrier.wait()
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=compete, args=(racer,)) for racer in range(_THREADS)]
    with armed(wait_for_all):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def check_result(well: Stepwell, races: int) -> None:
    assert well.load("run").revision == races
    assert well.state.globals.get("races") == races
    assert well.verify("run").ok


@pytest.mark.parametrize(
    ("store", "wells", "races"),
    [("memory", 1, 1000), ("sqlite", 1, 500), ("sqlite", _THREADS, 500)],
    ids=["memory, one well", "sqlite, one well", "sqlite, a well each"],
)
def test_of_racing_threads_exactly_one_commits_each_revision(store: str, wells: int, races: int, tmp_path: Path) -> None:
    """T05: 1,000 races on each store; the others get Conflict, and nothing of theirs is written."""
    opened = [Stepwell("memory://" if store == "memory" else f"sqlite:///{tmp_path}/well.db") for _ in range(wells)]
    opened[0].create("run")

    def begin(racer: int, race: int) -> Callable[[], object]:
        tx = opened[racer % wells].transaction("run").begin()
        tx.set_variable("winner", [racer, race])
        tx.state(_COUNTER).increment("races")
        return tx.commit

    results = run_races(races, begin, Conflict)
    assert all(result == {"won": 1, "lost": _THREADS - 1} for result in results)
    for well in opened:
        check_result(well, races)
        well.close()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_of_racing_threads_exactly_one_creates_each_execution(store: str, tmp_path: Path) -> None:
    """T05: the same for an id that is new."""
    well = Stepwell("memory://" if store == "memory" else f"sqlite:///{tmp_path}/well.db")
    results = run_races(200, lambda racer, race: lambda: well.create(f"run-{race}", context={"by": racer}), AlreadyExists)
    assert all(result == {"won": 1, "lost": _THREADS - 1} for result in results)
    assert all(well.verify(f"run-{race}").receipts == 1 for race in range(200))
    well.close()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_of_racing_tasks_exactly_one_commits_each_revision(store: str, tmp_path: Path) -> None:
    """T05: the same for callers that await; all of a race can share one transaction of the store."""
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/well.db"

    async def run() -> None:
        async with AsyncStepwell(url) as well:
            await well.create("run")
            for race in range(250):
                begun = [well.transaction("run") for _ in range(_THREADS)]
                await asyncio.gather(*(tx.__aenter__() for tx in begun))
                outcomes = await asyncio.gather(*(compete(tx) for tx in begun))
                assert Counter(outcomes) == {True: 1, False: _THREADS - 1}, race
            assert (await well.load("run")).revision == 250
            assert (await well.verify("run")).ok

    async def compete(tx: AsyncTransaction) -> bool:
        tx.increment_step_count()
        try:
            await tx.commit()
        except Conflict:
            return False
        return True

    asyncio.run(run())


def test_of_racing_processes_exactly_one_commits_each_revision(tmp_path: Path) -> None:
    """T05: 100 races between two processes on one file."""
    url = f"sqlite:///{tmp_path}/well.db"
    caller = Blocking(url)
    caller.create("run", "creation")
    with Child("racing_writer", url, "a") as a, Child("racing_writer", url, "b") as b:
        for race in range(100):
            assert ask(a, b, "begin") == ["ready", "ready"]
            assert sorted(ask(a, b, "go")) == ["lost", "won"], race
    check_result(caller.well, 100)
    check_chain(caller, "run")
    caller.close()


def ask(a: Child, b: Child, line: str) -> list[str]:
    a.tell(line)
    b.tell(line)
    return [a.hear(), b.hear()]
