"""While a worker runs, Python looks for garbage in rings less often; afterwards all is as it was."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from stepwell import AsyncStepwell, Stepwell, step, workflow
from stepwell.runtime.host_tuning import YOUNG, GcTuning

WAIT = 60
USUAL = (700, 10, 10)
thresholds: list[tuple[int, int, int]] = []


@step
async def tell() -> int:
    thresholds.append(gc.get_threshold())
    return 1


@step
def tell_plainly() -> int:
    return 1


@workflow(name="collecting.tell_twice")
async def tell_twice() -> int:
    return await tell() + await tell_plainly()  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _as_python_has_it() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


def test_collections_are_rare_while_anybody_wants_it_and_not_after() -> None:
    with GcTuning():
        with GcTuning():
            assert gc.get_threshold() == (YOUNG, 10, 10)
        assert gc.get_threshold() == (YOUNG, 10, 10)
    assert gc.get_threshold() == USUAL


@pytest.mark.parametrize("threshold", [(2 * YOUNG, 5, 5), (0, 10, 10)], ids=["rarer", "none at all"])
def test_what_its_user_has_chosen_stays(threshold: tuple[int, int, int]) -> None:
    gc.set_threshold(*threshold)
    with GcTuning():
        assert gc.get_threshold() == threshold
    assert gc.get_threshold() == threshold


def test_what_somebody_sets_meanwhile_stays() -> None:
    with GcTuning():
        gc.set_threshold(1_000, 10, 10)
    assert gc.get_threshold() == (1_000, 10, 10)


def test_worker_has_rare_collections_and_puts_them_back() -> None:
    thresholds.clear()
    with Stepwell("memory://") as well:
        assert well.start(tell_twice).result(WAIT) == 2
    assert thresholds == [(YOUNG, 10, 10)]
    assert gc.get_threshold() == USUAL


def test_well_without_a_worker_leaves_them_alone() -> None:
    with Stepwell("memory://", worker=False) as well:
        well.create("a")
        assert gc.get_threshold() == USUAL


def test_run_that_is_over_leaves_no_ring_behind() -> None:
    """Else there would be much to be found, and rare collections would cost memory."""

    async def main() -> int:
        async with AsyncStepwell("memory://") as well:

            async def some_runs() -> None:
                runs = [await well.start(tell_twice) for _ in range(20)]
                items = [await well.enqueue(tell_twice) for _ in range(20)]
                await asyncio.gather(*(each.result(WAIT) for each in [*runs, *items]))

            await some_runs()
            gc.collect()
            gc.disable()
            try:
                await some_runs()
                return gc.collect()
            finally:
                gc.enable()

    assert asyncio.run(main()) < 40  # less than an object for each
