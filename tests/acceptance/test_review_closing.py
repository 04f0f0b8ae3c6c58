"""A well that is closed has given everything back, and begins nothing new."""

from __future__ import annotations

import threading

import pytest
from tests.support.store_urls import url_of
from tests.support.stores import STORES

from stepwell import Stepwell, StoreUnavailable, step, workflow


@step
def one() -> int:
    return 1


@workflow
async def count() -> int:
    return await one()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param, request)


def own_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("stepwell")}


def test_closed_well_leaves_no_thread(url: str) -> None:
    before = own_threads()
    with Stepwell(url) as well:
        assert well.start(count).result(60) == 1
        assert well.enqueue(count).result(60) == 1
        with well.lock("door"):
            pass
    left = own_threads() - before
    for thread in left:
        thread.join(60)
    assert not any(thread.is_alive() for thread in left)


def test_closed_well_starts_no_worker() -> None:
    well = Stepwell("memory://")
    well.close()
    before = own_threads()
    with pytest.raises(StoreUnavailable, match="closed"):
        well.start(count)
    assert own_threads() <= before
