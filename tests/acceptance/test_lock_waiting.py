"""Waiting for a lock: woken by its release, not by looking; ended by a timeout or a cancellation, with nothing left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support import store_urls

from stepwell import AsyncStepwell, FakeClock, HeldLock, LockHeld, Stepwell
from stepwell.fault_points import armed
from stepwell.pipeline import notifications
from stepwell.pipeline.notifications import LOCK, Subscription
from stepwell.testing.store_access import parts_of

url = store_urls.url

LONG = 60
"""Seconds that a test waits for what must happen at once; reached only if it fails."""


class Waits:
    """Counts those who have begun to sleep, so that a test can go on when they have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun = threading.Semaphore(0)
        block, await_ = Subscription.wait, Subscription.wait_async

        def wait(listening: Subscription, seconds: float) -> None:
            self._begun.release()
            block(listening, seconds)

        async def wait_async(listening: Subscription, seconds: float) -> None:
            self._begun.release()
            await await_(listening, seconds)

        monkeypatch.setattr(Subscription, "wait", wait)
        monkeypatch.setattr(Subscription, "wait_async", wait_async)

    def next(self) -> None:
        """Wait until somebody begins to sleep."""
        assert self._begun.acquire(timeout=LONG), "nobody waits"

    async def next_async(self) -> None:
        """The same for a test that awaits."""
        await asyncio.get_running_loop().run_in_executor(None, self.next)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Nobody looks by themselves for an hour: whoever goes on was told to."""
    monkeypatch.setattr(notifications, "_LONGEST_SLEEP_SECONDS", 3600.0)
    return Waits(monkeypatch)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def wait_for(threads: ThreadPoolExecutor, well: Stepwell, name: str = "door") -> Future[HeldLock]:
    return threads.submit(lambda: well.lock(name, timeout=LONG).acquire())


def test_a_waiter_is_woken_by_the_release(well: Stepwell, waits: Waits, threads: ThreadPoolExecutor) -> None:
    lock = well.lock("door")
    first = lock.acquire()
    waiter = wait_for(threads, well)
    waits.next()
    assert not waiter.done()
    lock.release()
    assert waiter.result(LONG).fence > first.fence
    with pytest.raises(LockHeld):
        well.lock("door").acquire()


def test_a_waiter_without_a_timeout_waits_for_as_long_as_it_takes(
    well: Stepwell, waits: Waits, threads: ThreadPoolExecutor
) -> None:
    lock = well.lock("door")
    lock.acquire()
    waiter = threads.submit(well.lock("door", timeout=None).acquire)
    waits.next()
    lock.release()
    assert waiter.result(LONG).fence > 0


@store_urls.on_shared_stores
def test_a_waiter_is_woken_by_a_release_in_another_well(
    open_well: OpenWell, url: str, clock: FakeClock, waits: Waits, threads: ThreadPoolExecutor
) -> None:
    one, other = open_well(url, clock=clock), open_well(url, clock=clock)
    for _ in range(5):
        lock, other_lock = one.lock("door"), other.lock("door", timeout=LONG)
        lock.acquire()
        waiter = threads.submit(other_lock.acquire)
        waits.next()
        lock.release()
        waiter.result(LONG)
        assert other_lock.release() is True


def test_a_waiter_that_is_woken_for_another_lock_goes_on_waiting(well: Stepwell, waits: Waits, threads: ThreadPoolExecutor) -> None:
    door, window = well.lock("door"), well.lock("window")
    door.acquire()
    window.acquire()
    waiter = wait_for(threads, well)
    waits.next()
    window.release()
    waits.next()
    assert not waiter.done()
    door.release()
    waiter.result(LONG)


def test_waiters_get_the_lock_one_after_the_other(well: Stepwell, waits: Waits, threads: ThreadPoolExecutor) -> None:
    """Each hand-over is by notification; nobody ever meets another inside."""
    inside, most, fences = 0, 0, list[int]()
    counting = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        with well.lock("door", timeout=LONG) as held:
            with counting:
                inside += 1
                most = max(most, inside)
                fences.append(held.fence)
            with counting:
                inside -= 1

    with well.lock("door"):
        workers = [threads.submit(work) for _ in range(6)]
        for _ in workers:
            waits.next()
    for worker in workers:
        worker.result(LONG)
    assert most == 1
    assert fences == sorted(set(fences))
    assert len(fences) == 6


def test_a_waiter_gives_up_when_its_time_is_over(well: Stepwell) -> None:
    with well.lock("door") as held:
        with pytest.raises(LockHeld, match="held by another"):
            well.lock("door", timeout=0.02).acquire()
        held.check()
    with well.lock("door", timeout=0.02) as next_one:
        assert next_one.fence > held.fence


def test_a_waiter_gets_a_lock_whose_holder_is_gone(
    well: Stepwell, clock: FakeClock, waits: Waits, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells of an end: the waiter looks by itself, from time to time."""
    monkeypatch.setattr(notifications, "_LONGEST_SLEEP_SECONDS", 0.01)
    dead = well.lock("door", seconds=30).acquire()
    waiter = wait_for(threads, well)
    waits.next()
    clock.advance(31)
    assert waiter.result(LONG).fence > dead.fence


def test_nobody_listens_to_the_store_when_nobody_waits(
    open_well: OpenWell, url: str, waits: Waits, threads: ThreadPoolExecutor
) -> None:
    well = open_well(url, worker=False)
    lock, notifications = well.lock("door"), parts_of(well).notifications
    lock.acquire()
    waiter = wait_for(threads, well)
    waits.next()
    assert notifications.is_listening
    lock.release()
    waiter.result(LONG)
    assert (notifications.topics, notifications.is_listening) == (frozenset(), False)
    with pytest.raises(LockHeld):
        well.lock("door", timeout=0.02).acquire()
    assert (notifications.topics, notifications.is_listening) == (frozenset(), False)


def run(url: str, clock: FakeClock, scenario: Callable[[AsyncStepwell], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncStepwell(url, clock=clock, worker=False) as well:
            await scenario(well)

    asyncio.run(main())


def test_tasks_wait_without_blocking_their_loop(url: str, clock: FakeClock, waits: Waits) -> None:
    async def scenario(well: AsyncStepwell) -> None:
        order: list[str] = []

        async def work(name: str) -> None:
            async with well.lock("door", timeout=LONG):
                order.append(f"{name} in")
                await asyncio.sleep(0)
                order.append(f"{name} out")

        async with well.lock("door"):
            tasks = [asyncio.create_task(work(name)) for name in "abc"]
            for _ in tasks:
                await waits.next_async()
            order.append("first out")
        await asyncio.gather(*tasks)
        assert order[0] == "first out"
        assert sorted(order[1::2]) == ["a in", "b in", "c in"]
        assert [each.split()[0] for each in order[1::2]] == [each.split()[0] for each in order[2::2]]

    run(url, clock, scenario)


def test_a_cancelled_waiter_leaves_nothing_behind(url: str, clock: FakeClock, waits: Waits) -> None:
    async def scenario(well: AsyncStepwell) -> None:
        lock = well.lock("door")
        await lock.acquire()
        waiter = asyncio.create_task(well.lock("door", timeout=LONG).acquire())
        await waits.next_async()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert LOCK not in parts_of(well).notifications.topics
        assert await lock.release() is True
        await well.lock("door").acquire()

    run(url, clock, scenario)


def test_a_block_that_is_cancelled_gives_its_lock_back(url: str, clock: FakeClock) -> None:
    async def scenario(well: AsyncStepwell) -> None:
        entered = asyncio.Event()

        async def work() -> None:
            async with well.lock("door"):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await well.lock("door").acquire()

    run(url, clock, scenario)


@store_urls.on_shared_stores
def test_an_acquire_that_is_cancelled_while_it_is_written_holds_nothing(url: str, clock: FakeClock) -> None:
    """T25, T08: at each point of the write; it may have been granted to somebody who went away, and is given back then."""

    async def scenario(well: AsyncStepwell) -> None:
        points: list[str] = []
        with armed(points.append):
            await well.lock("warm-up").acquire()
        assert {"store.before_begin", "store.committed"} <= set(points)
        for point in points:
            await cancel_acquire_at(point, well)
            await well.lock(point).acquire()

    run(url, clock, scenario)


async def cancel_acquire_at(point: str, well: AsyncStepwell) -> None:
    """Cancel a task that acquires the lock of the point's name, while its write is at the point."""
    loop, reached, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hook(name: str) -> None:
        if name == point and not reached.is_set():
            loop.call_soon_threadsafe(reached.set)
            assert go_on.wait(LONG)

    with armed(hook):
        task = asyncio.create_task(well.lock(point).acquire())
        await reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task


@store_urls.on_shared_stores
def test_an_acquire_that_is_cancelled_before_it_is_written_holds_nothing(url: str, clock: FakeClock) -> None:
    """T08: its turn to be written had not come."""

    async def scenario(well: AsyncStepwell) -> None:
        loop, reached, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def hook(name: str) -> None:
            if name == "store.before_begin" and not reached.is_set():
                loop.call_soon_threadsafe(reached.set)
                assert go_on.wait(LONG)

        with armed(hook):
            slow = asyncio.create_task(well.state.globals.set("k", 1))
            await reached.wait()
            task = asyncio.create_task(well.lock("door").acquire())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await slow
        await well.lock("door").acquire()

    run(url, clock, scenario)
