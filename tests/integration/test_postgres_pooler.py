"""PostgreSQL behind a pooler in transaction mode: each transaction may be in another session; nothing rests on one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest
from tests.support.pooler import Pooler
from tests.support.postgres_server import PostgresServer

from stepwell import AsyncStepwell, Conflict, Stepwell, StoreUnavailable, step, workflow
from stepwell.model.commit import Outcome, Unit
from stepwell.testing.store_access import store_under


@step
def double(number: int) -> int:
    return 2 * number


@workflow
def doubling(number: int) -> int:
    return double(double(number))


@pytest.fixture
def pooler(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Pooler]:
    with Pooler(postgres_server.port) as pooler:
        yield pooler


@pytest.fixture
def url(pooler: Pooler, postgres_server: PostgresServer, postgres_schema: str) -> str:
    return postgres_server.url(postgres_schema, port=pooler.port, prepare="off")


def test_commits_state_and_locks_do_not_rest_on_a_session(url: str, pooler: Pooler) -> None:
    with Stepwell(url, worker=False) as well:
        well.create("run")
        for number in range(10):
            with well.transaction("run") as tx:
                tx.set_variable("n", number)
                tx.state(well.state.globals).increment("count")
        first = well.lock("door").acquire()
        with well.scheduled_lock("job", at_most="1m"):
            assert well.lock("other").acquire().fence > first.fence
        assert well.state.globals.get("count") == 10
        assert well.load("run").variables == {"n": 9}
        assert well.verify("run").ok
        assert well.health().is_ok
    assert pooler.moves > 10


def test_one_of_many_writers_wins_each_revision(url: str) -> None:
    """T05."""
    won: list[int] = []
    with Stepwell(url, worker=False) as left, Stepwell(url, worker=False) as right:
        left.create("run")

        def write(well: Stepwell) -> None:
            for _ in range(15):
                while True:
                    try:
                        with well.transaction("run") as tx:
                            tx.update_context(lambda context: {"n": context.get("n", 0) + 1})
                    except Conflict:
                        continue
                    won.append(1)
                    break

        threads = [threading.Thread(target=write, args=(well,)) for well in (left, right, left, right)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert right.load("run").context == {"n": len(won)} == {"n": 60}
        assert left.verify("run").ok


def test_a_waiter_gets_its_lock_though_no_notice_comes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice goes to the session that listened, and that is somebody else's by then: looking again is the way."""
    taken, asked = threading.Event(), threading.Semaphore(0)
    with Stepwell(url, worker=False) as holder, Stepwell(url, worker=False) as waiter:
        lock = holder.lock("door")
        lock.acquire()
        write = store_under(waiter).write

        def noted(units: Sequence[Unit]) -> list[Outcome]:
            outcomes = write(units)
            asked.release()
            return outcomes

        def wait() -> None:
            with waiter.lock("door", timeout="60s"):
                taken.set()

        thread = threading.Thread(target=wait)
        monkeypatch.setattr(store_under(waiter), "write", noted)
        thread.start()
        for _ in range(2):  # before it listens, and once it does
            assert asked.acquire(timeout=50)
        assert not taken.is_set()
        lock.release()
        assert taken.wait(50)
        thread.join()


def test_a_run_is_made_behind_a_pooler(url: str) -> None:
    with Stepwell(url) as well:
        assert well.start(doubling, 3).result(timeout="50s") == 12
        assert well.enqueue(doubling, 4).result(timeout="50s") == 16


def test_the_awaited_face_shares_a_few_sessions(url: str) -> None:
    async def count() -> object:
        async with AsyncStepwell(url, worker=False) as well:
            await asyncio.gather(*(well.state.globals.increment("n") for _ in range(100)))
            return await well.state.globals.get("n")

    assert asyncio.run(count()) == 100


def write_ten(url: str) -> None:
    with Stepwell(url, worker=False) as well:
        well.create("run")
        for number in range(10):
            with well.transaction("run") as tx:
                tx.set_variable("n", number)


def test_prepared_statements_that_a_pooler_loses_are_reported_with_the_remedy(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="prepare=off"):
        write_ten(url.replace("prepare=off", "prepare=on"))
    with Stepwell(url, worker=False) as well:
        assert all(well.verify(each.execution_id).ok for each in well.executions.list())
