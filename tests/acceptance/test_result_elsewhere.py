"""A wait for a run of another process ends soon after the run, with any store's kind of notification."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.queue_urls import SHARED_STORES
from tests.support.store_urls import url_of

from stepwell import AsyncStepwell, Stepwell, step, workflow
from stepwell.pipeline import notifications
from stepwell.pipeline.completions import Completions

WAIT = 60
may_end = threading.Event()


@step
async def hold() -> None:
    await asyncio.to_thread(may_end.wait, WAIT)


@workflow(name="elsewhere.held")
async def held(value: int) -> int:
    """Ends when it may."""
    await hold()
    return value


@pytest.fixture(params=SHARED_STORES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that is left alone by those who sleep: they would look at it in an hour, if nothing else wakes them."""
    monkeypatch.setattr(notifications, "_LONGEST_SLEEP_SECONDS", 3_600.0)
    may_end.clear()
    return url_of(request.param, request)


def started(well: Stepwell) -> Callable[[float], object]:
    return well.start(held, 7).result


def enqueued(well: Stepwell) -> Callable[[float], object]:
    return well.enqueue(held, 7).result


@pytest.mark.parametrize("ask", [started, enqueued])
def test_blocking_caller_is_told(place: str, ask: Callable[[Stepwell], Callable[[float], object]]) -> None:
    with Stepwell(place, worker=False) as asking, ThreadPoolExecutor(1) as pool:
        result = pool.submit(ask(asking), WAIT)
        with Stepwell(place):
            may_end.set()
            assert result.result(WAIT) == 7


def test_awaiting_caller_is_told(place: str) -> None:
    async def ask() -> int:
        async with AsyncStepwell(place, worker=False) as asking, AsyncStepwell(place):
            item = await asking.enqueue(held, 7)
            result = asyncio.ensure_future(item.result(WAIT))
            may_end.set()
            return await result

    assert asyncio.run(asyncio.wait_for(ask(), WAIT)) == 7


def test_looks_become_rarer_the_longer_one_waits_and_the_more_others_do() -> None:
    endings = Completions()
    with endings.watch("a", may_end.set):
        assert 0 < endings.look_again_seconds(0) < endings.look_again_seconds(1) < endings.look_again_seconds(60) <= 60 / 8
        alone = endings.look_again_seconds(0)
        with endings.watch("b", may_end.set):
            assert endings.look_again_seconds(0) == 2 * alone
