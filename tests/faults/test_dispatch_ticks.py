"""Five schedulers, on machines whose clocks differ, fire each tick once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from threading import Barrier

from stepwell import FakeClock, Stepwell, SystemClock, workflow
from stepwell.clock import to_ms
from stepwell.model.queue import ItemQuery
from stepwell.queue.scheduler import fire_due

ROUNDS = 20


class SkewedClock(SystemClock):
    """The clock of a machine that is wrong; the database's is not moved by it."""

    def __init__(self, seconds: float) -> None:
        self._skew = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._skew

    def now_ms(self) -> int:
        return to_ms(self.now())


@workflow(name="ticks.report")
async def report(number: int) -> int:
    return number


def fire_together(wells: list[Stepwell], before: Callable[[], object]) -> None:
    start = Barrier(len(wells))

    def fire(well: Stepwell) -> None:
        start.wait()
        well._driver.run(fire_due(well._parts.queue.schedules))

    with ThreadPoolExecutor(len(wells)) as threads:
        for _ in range(ROUNDS):
            before()
            list(threads.map(fire, wells))


def fired(well: Stepwell) -> list[int]:
    """The ticks that became items, each as often as it did."""
    keys = (item.key or "" for item in well._parts.store.items(ItemQuery(limit=10_000)))
    return sorted(int(key.rpartition(":")[2]) for key in keys)


def test_five_schedulers_that_look_at_once_fire_each_tick_once(tmp_path: Path):
    url, clock = f"sqlite:///{tmp_path}/well.db?synchronous=NORMAL", FakeClock()
    with ExitStack() as stack:
        wells = [stack.enter_context(Stepwell(url, worker=False, clock=clock)) for _ in range(5)]
        wells[0].schedules.put("often", report, 1, every=1, catch_up="all")
        start = clock.now_ms()
        fire_together(wells, lambda: clock.advance(2))
        assert fired(wells[0]) == [start + 1_000 * number for number in range(1, 2 * ROUNDS + 1)]


def test_clocks_that_differ_do_not_matter(postgres_url: str):
    with ExitStack() as stack:
        wells = [
            stack.enter_context(Stepwell(postgres_url, worker=False, clock=SkewedClock(30 * (number - 2)))) for number in range(5)
        ]
        wells[0].schedules.put("often", report, 1, every=0.1, catch_up="all")
        first = wells[0].schedules.next("often", 1)[0]
        while not wells[0].schedules.get("often").last_at:
            fire_together(wells, lambda: None)
        ticks = fired(wells[0])
        assert ticks == [to_ms(first) + 100 * number for number in range(len(ticks))]
        assert ticks[-1] <= wells[0]._parts.store.now_ms()
