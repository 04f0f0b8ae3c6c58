"""T08: a caller that is cancelled in the middle of a commit leaves nothing behind: no stuck writer, no open transaction."""

from __future__ import annotations

import asyncio
import random
import threading
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faults.hooks import at

from stepwell import AsyncStepwell, Scope, StoreUnavailable
from stepwell.fault_points import POINTS, armed
from stepwell.state.transaction_buffer import Buffer
from stepwell.testing.store_access import parts_of

_COUNTER = Scope.globals()
_CANCELS = 2_000


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(store: str, tmp_path: Path) -> str:
    return "memory://" if store == "memory" else f"sqlite:///{tmp_path}/well.db"


@asynccontextmanager
async def open_well(url: str) -> AsyncIterator[AsyncStepwell]:
    """A well with an execution; at the end it must close, and its writer thread must be gone."""
    before = set(threading.enumerate())
    well = AsyncStepwell(url)
    await well.create("run")
    yield well
    await asyncio.wait_for(well.close(), 60)
    assert not [thread.name for thread in set(threading.enumerate()) - before if thread.name == "stepwell-writer"]


def count(tx: Buffer) -> None:
    tx.increment_step_count()
    tx.state(_COUNTER).increment("n")


async def commit(well: AsyncStepwell, commit_id: str, execution_id: str = "run") -> None:
    async with well.transaction(execution_id, commit_id=commit_id) as tx:
        count(tx)


async def check_counts(well: AsyncStepwell, *commit_ids: str) -> int:
    """Each id landed or not, whole; how many did."""
    await well.state.custom("barrier").increment("n")  # whatever was under way is over when this is written
    landed = [commit_id for commit_id in commit_ids if await well.receipt("run", commit_id) is not None]
    assert (await well.load("run")).step_count == await well.state.globals.get("n", 0) == len(landed)
    assert (await well.verify("run")).ok
    return len(landed)


@types.coroutine
def cancelled_at(number: int, operation: Coroutine[Any, Any, object]) -> Generator[Any, Any, bool]:
    """Drive a coroutine and cancel it at one of its awaits, as a task would; False if it ended before."""
    awaits = 0
    try:
        waiting = operation.send(None)
        while True:
            awaits += 1
            if awaits == number:
                if waiting is not None:
                    waiting.cancel()
                waiting = operation.throw(asyncio.CancelledError())
            yield waiting
            waiting = operation.send(None)
    except StopIteration:
        return False
    except asyncio.CancelledError:
        return True


def test_a_commit_cancelled_at_each_await_has_landed_or_not_and_the_well_goes_on(store: str, url: str) -> None:
    """T08: every await of a transaction; what did not land can be retried."""

    async def run() -> None:
        async with open_well(url) as well:
            number, ids = 1, list[str]()
            while await cancelled_at(number, commit(well, f"cancelled-{number}")):
                ids += [f"cancelled-{number}", f"next-{number}"]
                await well.state.custom("barrier").increment("n")
                await commit(well, f"next-{number}")
                await check_counts(well, *ids)
                await commit(well, f"cancelled-{number}")
                assert await check_counts(well, *ids) == len(ids)
                number += 1
            has_awaits = number > 1
            assert has_awaits is (store == "sqlite"), "a commit in memory awaits nothing, and any other does"

    asyncio.run(run())


def test_a_first_use_cancelled_at_each_await_leaves_a_well_that_opens(tmp_path: Path) -> None:
    """T08: the first await opens the store; the next caller opens it, whoever gave up."""

    async def run() -> None:
        number, is_cancelled = 0, True
        while is_cancelled:
            number += 1
            async with open_well(f"sqlite:///{tmp_path}/{number}.db") as maker:
                await commit(maker, "before")
            well = AsyncStepwell(f"sqlite:///{tmp_path}/{number}.db")
            is_cancelled = await cancelled_at(number, commit(well, "first"))
            await well.state.custom("barrier").increment("n")
            await commit(well, "first")
            assert await check_counts(well, "before", "first") == 2
            await well.close()
        assert number > 2

    asyncio.run(run())


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop go round until something is so that nobody announces."""
    while not is_so():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)


class HeldWriter:
    """Holds the writer thread at a point until it is let go."""

    def __init__(self, point: str) -> None:
        self.is_there, self.may_go = threading.Event(), threading.Event()
        self.hook = at(point, 1, self._hold)

    def _hold(self) -> None:
        self.is_there.set()
        assert self.may_go.wait(60)


def test_a_commit_cancelled_before_it_was_taken_is_not_written(tmp_path: Path) -> None:
    """T08: it waits behind a transaction that is under way, and is withdrawn."""

    async def run() -> None:
        async with open_well(f"sqlite:///{tmp_path}/well.db") as well:
            for number in range(3):
                await well.create(f"other-{number}")
            held = HeldWriter("store.begun")
            with armed(held.hook):
                first = asyncio.create_task(commit(well, "first"))
                await asyncio.to_thread(held.is_there.wait)
                waiting = [asyncio.create_task(commit(well, "waiting", f"other-{number}")) for number in range(3)]
                await until(lambda: parts_of(well).group.waiting_count == 3)
                waiting[1].cancel()
                await asyncio.gather(waiting[1], return_exceptions=True)
                held.may_go.set()
                results = await asyncio.gather(first, *waiting, return_exceptions=True)
            assert isinstance(results[2], asyncio.CancelledError)
            assert await well.receipt("run", "first") is not None
            assert [await well.receipt(f"other-{number}", "waiting") is not None for number in range(3)] == [True, False, True]

    asyncio.run(run())


@pytest.mark.parametrize("point", POINTS)
def test_a_commit_cancelled_while_it_is_under_way_lands_whole_or_not_at_all(url: str, point: str) -> None:
    """T08: the task is cancelled exactly when the commit reaches each point, in whichever thread that is."""

    async def run() -> None:
        async with open_well(url) as well:
            await commit(well, "before")
            task = asyncio.create_task(commit(well, "cancelled"))
            with armed(at(point, 1, cancel_from_anywhere(task))):
                await asyncio.gather(task, return_exceptions=True)
            await check_counts(well, "before", "cancelled")
            await commit(well, "cancelled")
            await commit(well, "after")
            assert await check_counts(well, "before", "cancelled", "after") == 3

    asyncio.run(run())


def cancel_from_anywhere(task: asyncio.Task[None]) -> Callable[[], None]:
    loop, loop_thread = asyncio.get_running_loop(), threading.get_ident()

    def cancel() -> None:
        if threading.get_ident() == loop_thread:
            task.cancel()
            return
        is_cancelled = threading.Event()
        loop.call_soon_threadsafe(lambda: (task.cancel(), is_cancelled.set()))
        assert is_cancelled.wait(60)

    return cancel


def test_after_thousands_of_random_cancels_the_same_well_works(tmp_path: Path) -> None:
    """T08: 2,000 cancels at random moments of 50 commits at a time; whatever landed is whole, and the same well goes on."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    choice, runs = random.Random(seed), [f"run-{number}" for number in range(50)]

    async def run() -> None:
        cancelled: list[tuple[str, str]] = []
        async with open_well(f"sqlite:///{tmp_path}/well.db") as well:
            for execution_id in runs:
                await well.create(execution_id)
            while len(cancelled) < _CANCELS:
                commit_id = f"commit-{len(cancelled)}"
                tasks = {execution_id: asyncio.create_task(commit(well, commit_id, execution_id)) for execution_id in runs}
                for execution_id in choice.sample(runs, 45):
                    for _ in range(choice.randrange(10)):
                        await asyncio.sleep(0)
                    if tasks[execution_id].cancel():
                        cancelled.append((execution_id, commit_id))
                await asyncio.gather(*tasks.values(), return_exceptions=True)
            await check_all(well)
            landed = [each for each in cancelled if await well.receipt(*each) is not None]
            assert 0 < len(landed) < len(cancelled)
            for execution_id in runs:
                await commit(well, "last", execution_id)
            await check_all(well)

    async def check_all(well: AsyncStepwell) -> None:
        await well.state.custom("barrier").increment("n")
        counts = [(await well.load(execution_id)).step_count for execution_id in runs]
        assert counts == [(await well.verify(execution_id)).receipts - 1 for execution_id in runs]
        assert all([(await well.verify(execution_id)).ok for execution_id in runs])
        assert await well.state.globals.get("n", 0) == sum(counts)

    asyncio.run(run())


def test_a_loop_that_closes_during_a_write_leaves_a_well_that_works_in_the_next_loop(tmp_path: Path) -> None:
    """T08: nobody is left to be told, so the writer goes on with others."""
    well, held = AsyncStepwell(f"sqlite:///{tmp_path}/well.db"), HeldWriter("store.begun")

    async def go_on() -> None:
        await check_counts(well, "abandoned")
        await commit(well, "next")
        assert await check_counts(well, "abandoned", "next") == 2
        await asyncio.wait_for(well.close(), 60)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(well.create("run"))
    with armed(held.hook):
        task = loop.create_task(commit(well, "abandoned"))
        loop.run_until_complete(asyncio.to_thread(held.is_there.wait))
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        held.may_go.set()
    asyncio.run(go_on())


def test_closing_writes_what_was_accepted_and_refuses_what_comes_later(tmp_path: Path) -> None:
    """T08: close() returns, with every accepted commit written and its caller told."""

    async def run() -> None:
        async with open_well(f"sqlite:///{tmp_path}/well.db") as well:
            runs = [f"run-{number}" for number in range(5)]
            for execution_id in runs:
                await well.create(execution_id)
            held = HeldWriter("store.begun")
            with armed(held.hook):
                first = asyncio.create_task(commit(well, "first"))
                await asyncio.to_thread(held.is_there.wait)
                accepted = [asyncio.create_task(commit(well, "accepted", run)) for run in runs]
                await until(lambda: parts_of(well).group.waiting_count == len(runs))
                closing = asyncio.create_task(well.close())
                await until(lambda: parts_of(well).group._is_closed)
                with pytest.raises(StoreUnavailable):
                    await commit(well, "late")
                held.may_go.set()
                await asyncio.gather(closing, first, *accepted)
        async with AsyncStepwell(f"sqlite:///{tmp_path}/well.db") as again:
            assert all([await again.receipt(run, "accepted") is not None for run in runs])
            assert await again.receipt("run", "late") is None

    asyncio.run(run())
