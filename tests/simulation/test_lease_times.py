"""When a lease ends and who works then, to the second: by a virtual clock, so that a slow machine is no slow worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stepwell import step, workflow
from stepwell.model.commit import ClaimDue, Extension, Outcome, Unit
from stepwell.model.limits import Limits
from stepwell.runtime.steps.context import StepContext
from stepwell.stores.memory import MemoryStore
from stepwell.testing.clock import VirtualClock, as_monotonic
from stepwell.testing.event_loop import SkippingPace, VirtualLoop
from stepwell.testing.simulated_process import LATE_SECONDS, Fate, SharedStore, SimulatedProcess

LEASE_SECONDS = 30
SWEEP_SECONDS = 5
MOMENTS = [0.1, 9.9, 10.1, 29.0, 47.0]
"""Before, between and after renewals."""

ended: list[float] = []


@step
async def endless() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(asyncio.get_running_loop().time())


@workflow
async def never_ends() -> None:
    await endless()


@step
async def longer_than_a_lease() -> None:
    await asyncio.sleep(1.5)


@workflow
async def ends_late() -> None:
    await longer_than_a_lease()


class Site:
    """Two workers on one store, the first of which makes a step that does not end."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.shared = SharedStore(MemoryStore(clock, Limits()))
        self.began: list[tuple[str, float]] = []
        self.slow: tuple[type[Unit], ...] = ()
        """The units whose replies come late."""
        self.first = SimulatedProcess("first", self.shared, self, clock, lease_seconds=LEASE_SECONDS)
        self.second = SimulatedProcess("second", self.shared, self, clock, lease_seconds=LEASE_SECONDS)

    async def before(self, process: SimulatedProcess, unit: Unit) -> Fate:
        return Fate.REPLIES_LATE if isinstance(unit, self.slow) else Fate.LANDS

    def landed(self, process: SimulatedProcess, unit: Unit, outcome: Outcome) -> None:
        pass

    def attempted(self, process: SimulatedProcess, step: StepContext) -> None:
        self.began.append((process.name, self.clock.elapsed))

    @property
    def fence(self) -> int:
        head = self.shared.store.head("x")
        assert head is not None
        return head.fence

    def lease_left(self) -> float:
        """How long it is until another may take over."""
        head = self.shared.store.head("x")
        assert head is not None
        assert head.lease_until_ms is not None
        return (head.lease_until_ms - self.shared.store.now_ms()) / 1000

    def status_of(self, item_id: str) -> str:
        item = self.shared.store.item(item_id)
        assert item is not None
        return item.status

    async def start(self) -> None:
        await self.first.run(self.first.well.start(never_ends, execution_id="x"))
        await self.until(lambda: len(self.began) == 1)

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert self.clock.elapsed < 1_000
            await asyncio.sleep(0.1)


def play(scenario: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    ended.clear()
    clock = VirtualClock()

    async def main() -> None:
        site = Site(clock)
        try:
            await site.start()
            await scenario(site)
        finally:
            await site.first.bury()
            await site.second.bury()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, SkippingPace())) as runner, as_monotonic(clock):
        runner.run(main())


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_workers_step_is_made_again_when_its_lease_ends_and_within_a_sweep(moment: float) -> None:
    """T30, P4."""

    async def scenario(site: Site) -> None:
        await asyncio.sleep(moment)
        site.first.kill()
        may_begin = site.clock.elapsed + site.lease_left()
        await site.until(lambda: len(site.began) == 2)
        who, when = site.began[1]
        assert who == "second"
        assert may_begin <= when <= may_begin + SWEEP_SECONDS

    play(scenario)


def test_worker_that_renews_is_never_rescued_however_long_its_step_takes() -> None:
    """T32: twenty leases, while another looks for work."""

    async def scenario(site: Site) -> None:
        fence = site.fence
        for _ in range(20):
            await asyncio.sleep(LEASE_SECONDS)
            assert 0 < site.lease_left() <= LEASE_SECONDS
        assert [who for who, _ in site.began] == ["first"]
        assert (site.fence, ended) == (fence, [])

    play(scenario)


@pytest.mark.parametrize("moment", MOMENTS)
def test_worker_that_cannot_renew_stops_itself_before_another_may_begin(moment: float) -> None:
    """T32: it reaches the store no more; its step is ended within its lease, and only then somebody else begins it."""

    async def scenario(site: Site) -> None:
        await asyncio.sleep(moment)
        site.first.is_connected = False
        may_begin = site.clock.elapsed + site.lease_left()
        await site.until(lambda: len(site.began) == 2)
        assert site.began[1][0] == "second"
        assert ended[0] < may_begin <= site.began[1][1] <= may_begin + SWEEP_SECONDS

    play(scenario)


def test_lease_whose_renewal_is_answered_late_counts_from_the_question() -> None:
    """The store counts from the moment when it grants it, which is before the reply arrives."""

    async def scenario(site: Site) -> None:
        site.slow = (Extension,)
        fence = site.fence
        await site.until(lambda: site.lease_left() > LEASE_SECONDS - 1 and site.clock.elapsed > LEASE_SECONDS / 3)
        await asyncio.sleep(LATE_SECONDS + 1)
        assert (site.fence, ended) == (fence, [])
        site.first.is_connected = False
        may_begin = site.clock.elapsed + site.lease_left()
        await site.until(lambda: len(site.began) == 2)
        assert ended[0] < may_begin

    play(scenario)


def test_lease_whose_claim_is_answered_late_counts_from_the_question() -> None:
    async def scenario(site: Site) -> None:
        site.first.kill()
        site.second.kill()
        site.slow = (ClaimDue,)
        third = SimulatedProcess("third", site.shared, site, site.clock, lease_seconds=LEASE_SECONDS)
        try:
            await site.until(lambda: len(site.began) == 2)
            third.is_connected = False
            may_begin = site.clock.elapsed + site.lease_left()
            await site.until(lambda: bool(ended))
            assert ended[0] < may_begin
        finally:
            await third.bury()

    play(scenario)


@pytest.mark.parametrize("lease_seconds", [1, 2])
def test_item_that_has_committed_nothing_yet_is_not_lost_at_a_renewal(lease_seconds: float) -> None:
    """Whenever it begins between two renewals: until its first commit it has a claim, and no lease that could be renewed."""

    async def scenario(site: Site) -> None:
        site.first.kill()
        site.second.kill()
        began = len(site.began)
        short = SimulatedProcess("short", site.shared, site, site.clock, lease_seconds=lease_seconds)
        items: list[str] = []
        try:
            await asyncio.sleep(0.01 * lease_seconds)  # so that looks at what has begun and renewals do not fall together
            for _ in range(200):
                items.append((await short.run(short.well.enqueue(ends_late))).item_id)
                await asyncio.sleep(0.013)
            await site.until(lambda: all(site.status_of(item_id) == "COMPLETED" for item_id in items))
        finally:
            await short.bury()
        assert len(site.began) - began == len(items)

    play(scenario)
