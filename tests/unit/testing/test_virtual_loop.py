"""The event loop on virtual time: nobody waits, threads take turns, and processes are stopped between two callbacks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from stepwell.model.limits import Limits
from stepwell.stores.memory import MemoryStore
from stepwell.testing.clock import VirtualClock
from stepwell.testing.event_loop import SkippingPace, Stuck, VirtualLoop
from stepwell.testing.simulated_process import Fate, SharedStore, SimulatedProcess


class Calm:
    """Lets everything land."""

    async def before(self, *_: object) -> Fate:
        return Fate.LANDS

    def landed(self, *_: object) -> None:
        pass

    def attempted(self, *_: object) -> None:
        pass


def run(work: Any, clock: VirtualClock | None = None) -> Any:
    own = clock or VirtualClock()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(own, SkippingPace())) as runner:
        return runner.run(work)


def make_process(name: str = "one", order: Callable[[int], int] | None = None) -> SimulatedProcess:
    clock = VirtualClock()
    return SimulatedProcess(name, SharedStore(MemoryStore(clock, Limits())), Calm(), clock, has_worker=False, order=order)


def test_sleeping_for_a_week_takes_no_time():
    clock = VirtualClock()
    run(asyncio.sleep(7 * 86_400), clock)
    assert clock.elapsed == 7 * 86_400


def test_timers_fire_in_the_order_of_their_times():
    fired: list[float] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for seconds in (3, 1, 2):
            loop.call_later(seconds, fired.append, seconds)
        await asyncio.sleep(4)

    run(work())
    assert fired == [1, 2, 3]


def test_what_is_due_at_a_time_is_due_by_the_clock_then():
    clock = VirtualClock()

    async def work() -> None:
        for _ in range(1_000):
            due = clock.now_ms() + 7
            await asyncio.sleep(clock.until_ms(due))
            assert clock.now_ms() >= due

    run(work(), clock)


def test_threads_take_turns_so_that_their_order_is_the_same_every_time():
    def chatter(loop: asyncio.AbstractEventLoop, name: int, said: list[tuple[int, int]]) -> None:
        for number in range(5):
            asyncio.run_coroutine_threadsafe(say(name, number, said), loop).result()

    async def say(name: int, number: int, said: list[tuple[int, int]]) -> None:
        await asyncio.sleep((name * 7 + number) % 3)
        said.append((name, number))

    async def work() -> list[tuple[int, int]]:
        loop, said = asyncio.get_running_loop(), list[tuple[int, int]]()
        await asyncio.gather(*(loop.run_in_executor(None, chatter, loop, name, said) for name in range(4)))
        return said

    assert len({tuple(run(work())) for _ in range(5)}) == 1


def test_time_stands_while_a_thread_is_at_work():
    clock, release = VirtualClock(), threading.Event()

    async def work() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(1, release.set)
        inside = loop.run_in_executor(None, lambda: clock.elapsed)
        return await inside

    assert run(work(), clock) == 0


def test_loop_that_nothing_will_ever_wake_says_so():
    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run(work())


def test_paused_process_does_nothing_until_it_goes_on():
    done: list[float] = []

    async def task() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            done.append(asyncio.get_running_loop().time())

    async def work() -> None:
        process = make_process()
        inside = process.run(task())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        assert done == [1]
        process.go_on()
        await inside
        await process.bury()

    run(work())
    assert done == [1, 11.5, 12.5]


def test_timer_that_was_cancelled_in_a_pause_does_not_fire_after_it():
    fired: list[str] = []

    async def inside() -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(2, fired.append, "late")
        loop.call_later(1, timer.cancel)
        await asyncio.sleep(5)

    async def work() -> None:
        process = make_process()
        task = process.run(inside())
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(3)
        process.go_on()
        await task
        await process.bury()

    run(work())
    assert fired == []


def test_killed_process_runs_nothing_more_not_even_what_cleans_up():
    seen: list[str] = []

    async def task() -> None:
        try:
            seen.append("begun")
            await asyncio.sleep(5)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    async def work() -> list[str]:
        process = make_process()
        process.run(task())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)
        before_burial = list(seen)
        await process.bury()
        return before_burial

    assert run(work()) == ["begun"]
    assert seen == ["begun", "cleaned up"]


def test_tasks_that_are_ready_together_go_on_in_the_order_that_is_chosen():
    went: list[int] = []

    async def one(number: int) -> None:
        went.append(number)

    async def work() -> None:
        process = make_process(order=lambda tasks: tasks - 1)
        await asyncio.gather(*(process.run(one(number)) for number in range(4)))
        await process.bury()

    run(work())
    assert went == [3, 2, 1, 0]
