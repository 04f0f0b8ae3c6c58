"""T24: five nodes whose clocks differ fire each tick once, and sweep once in a while, however often they look."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from threading import Barrier
from typing import Any, TypeVar

import pytest
from tests.support.queue_urls import shared_url

from stepwell import FakeClock, Stepwell, workflow
from stepwell.clock import from_ms, to_ms
from stepwell.model.queue_item import ItemQuery
from stepwell.queue.recovery import recover_alone
from stepwell.queue.scheduler import fire_due
from stepwell.testing.store_access import parts_of, run_operation, store_under

__all__ = ["shared_url"]

T = TypeVar("T")
SKEWS_MS = (-2_000, -1_000, 0, 1_000, 2_000)
TICKS = 1_000


class SkewedClock(FakeClock):
    """The clock of a machine that is wrong. A server's is not moved by it; a file has no other clock than its writer's."""

    def __init__(self, true: FakeClock, skew_ms: int) -> None:
        super().__init__()
        self._true, self._skew_ms = true, skew_ms

    def now(self) -> datetime:
        return from_ms(self.now_ms())

    def now_ms(self) -> int:
        return self._true.now_ms() + self._skew_ms

    def ahead_ms(self) -> int:
        return self._true.ahead_ms()


@workflow(name="ticks.report")
async def report(number: int) -> int:
    return number


@pytest.fixture
def nodes(shared_url: str, clock: FakeClock) -> Any:
    with ExitStack() as stack:
        clocks = [SkewedClock(clock, skew) for skew in SKEWS_MS]
        yield [stack.enter_context(Stepwell(shared_url, worker=False, clock=each)) for each in clocks]


def together(nodes: list[Stepwell], rounds: int, before: Callable[[], object], act: Callable[[Stepwell], T]) -> list[list[T]]:
    """Have all nodes act at the same moment, again and again; what each of them said in each round."""
    start = Barrier(len(nodes))

    def act_at_once(node: Stepwell) -> T:
        start.wait()
        return act(node)

    answers: list[list[T]] = []
    with ThreadPoolExecutor(len(nodes)) as threads:
        for _ in range(rounds):
            before()
            answers.append(list(threads.map(act_at_once, nodes)))
    return answers


def fired(well: Stepwell) -> list[int]:
    """The ticks that became items, each as often as it did."""
    keys = (item.key or "" for item in store_under(well).items(ItemQuery(limit=10_000)))
    return sorted(int(key.rpartition(":")[2]) for key in keys)


def test_five_schedulers_with_skewed_clocks_fire_each_tick_once(nodes: list[Stepwell], clock: FakeClock) -> None:
    """T24: a thousand ticks, 25 of them between two looks."""
    summary = nodes[2].schedules.put("often", report, 1, every=1, catch_up="all")
    first = to_ms(nodes[2].schedules.next(summary.name, 1)[0])
    together(
        nodes, TICKS // 25, lambda: clock.advance(25), lambda node: run_operation(node, fire_due(parts_of(node).queue.schedules))
    )
    # A server's time has gone on meanwhile; a file's ticks come early, by as much as its fastest clock.
    until = store_under(nodes[2]).now_ms() + max(SKEWS_MS)
    ticks = fired(nodes[0])
    assert ticks == [first + 1_000 * number for number in range(len(ticks))]
    assert TICKS <= len(ticks) <= (until - first) // 1_000 + 1


def test_five_sweepers_with_skewed_clocks_sweep_once_in_each_round(nodes: list[Stepwell], clock: FakeClock) -> None:
    """T24: a sweep of a millisecond, whose lock is kept for ten seconds, so that a late node finds it taken."""
    sweeps = together(
        nodes,
        50,
        lambda: clock.advance(30),
        lambda node: run_operation(node, recover_alone(parts_of(node).queue.items, parts_of(node).locks)) is not None,
    )
    assert [sum(each) for each in sweeps] == [1] * 50
