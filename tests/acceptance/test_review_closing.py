"""A well that is closed has given everything back, and begins nothing new."""

from __future__ import annotations

import threading
from collections.abc import Callable

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


def test_closed_well_reads_no_more(url: str) -> None:
    well = Stepwell(url, worker=False)
    well.create("run")
    well.state.globals.set("k", 1)
    cache = well.state.globals.cached(3600)
    assert cache.get("k") == 1
    well.close()
    reads: list[Callable[[], object]] = [
        lambda: well.load("run"),
        well.executions.list,
        lambda: well.state.globals.get("k"),
        well.state.globals.all,
        well.state.scopes,
        lambda: cache.get("k"),
        well.queue.list,
        well.workspaces.list,
        lambda: well.conversations.get("c"),
    ]
    for each in reads:
        with pytest.raises(StoreUnavailable, match="closed"):
            each()
    assert not well.health().is_ok


def test_closed_well_ends_a_watch_under_way(url: str) -> None:
    well = Stepwell(url, worker=False)
    changes = well.state.globals.watch(since=0)
    well.state.globals.set("k", 1)
    assert next(changes).key == "k"
    closing = threading.Timer(0.05, well.close)
    closing.start()
    with pytest.raises(StoreUnavailable, match="closed"):
        next(changes)
    closing.join()
