"""The result of a queue item is that of its own run, whatever else runs under an id that it has or had."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from tests.support.module_state import cleared
from tests.support.queue_urls import queue_url

import stepwell
from stepwell import ExecutionCancelled, ExecutionFailed, ItemStatus, Status, Stepwell, step, workflow
from stepwell.pipeline.completions import Completion
from stepwell.testing.store_access import parts_of, run_operation, store_under

__all__ = ["queue_url"]

WAIT = 60
is_broken, may_end = threading.Event(), threading.Event()


@workflow(name="result.told")
async def told(value: int) -> Any:
    """Ends with whatever it is told; while things are broken, it fails at once."""
    if is_broken.is_set():
        raise RuntimeError("broken")
    return await stepwell.wait_signal("go")


@workflow(name="result.held")
async def held(value: int) -> int:
    """Ends when it may."""
    await hold()
    return value


@step
async def hold() -> None:
    await asyncio.to_thread(may_end.wait, WAIT)


@workflow(name="result.plain")
async def plain(value: int) -> int:
    return value


_cleared = cleared(is_broken)


@pytest.fixture
def well(queue_url: str) -> Iterator[Stepwell]:
    with Stepwell(queue_url) as well:
        well.workspaces.put("acme", tier="scale")
        yield well


def waiting(well: Stepwell, item: Any, execution_id: str, pool: ThreadPoolExecutor) -> Future[Any]:
    """Somebody waits for the item's result, and watches the execution, which is run here."""
    endings = parts_of(well).executions.endings
    while not endings.is_here(execution_id):
        pass
    work = pool.submit(item.result, WAIT)
    while execution_id not in endings._watches:
        pass
    return work


@pytest.mark.parametrize(("end", "error"), [("resume", ExecutionFailed), ("cancel", ExecutionCancelled)])
def test_a_run_that_took_the_items_execution_id_is_not_its_result(well: Stepwell, end: str, error: type[Exception]):
    well.queue.pause("default")
    item = well.enqueue(told, 1, workspace="acme", execution_id="run-7")
    run = well.start(told, 2, workspace="acme", execution_id="run-7")
    with ThreadPoolExecutor(1) as pool:
        work = waiting(well, item, "run-7", pool)
        run.signal("go", "of another")
        assert run.result(WAIT) == "of another"
        if end == "resume":
            well.queue.resume("default")
        else:
            item.cancel()
        with pytest.raises(error, match="before it started"):
            work.result(WAIT)


def test_the_result_of_an_item_that_was_driven_again_is_that_of_its_new_run(well: Stepwell):
    is_broken.set()
    item = well.enqueue(told, 1)
    with pytest.raises(ExecutionFailed):
        item.result(WAIT)
    is_broken.clear()
    well.queue.pause()
    again = well.queue.redrive(item.item_id)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(item.result, WAIT)  # whose handle knows the old run only
        well.queue.resume()
        while again.state().status != "DISPATCHED":
            pass
        again.run().signal("go", "of the new run")
        assert work.result(WAIT) == again.result(WAIT) == "of the new run"


def finished(operation: Any, effect: Any) -> Any:
    while True:
        try:
            effect = operation.send(effect.query())
        except StopIteration as end:
            return end.value


def test_a_result_is_there_though_the_item_was_dropped_when_it_ended(well: Stepwell):
    item = well.enqueue(plain, 5)
    assert item.result(WAIT) == 5
    before = msgspec.structs.replace(run_operation(well, parts_of(well).queue.items.item(item.item_id)), status=ItemStatus.QUEUED)
    operation = parts_of(well).queue.items.result(item.item_id, item.execution_id, None, None)
    operation.send(None)
    operation.send(before)  # it waits, and so does the caller
    parts_of(well).executions.endings.tell(item.execution_id, Completion(Status.COMPLETED, None))
    operation.send(None)
    effect: Any = operation.send(None)  # it is not there any more: its run is asked
    assert finished(operation, effect) == 5


def test_result_of_a_run_that_is_seen_to_end_here_is_told_without_asking_the_store(well: Stepwell, monkeypatch: pytest.MonkeyPatch):
    looks: list[str] = []
    may_end.clear()
    item = well.enqueue(held, 7)
    store = store_under(well)
    for name in ("item", "head", "load"):
        look = getattr(store, name)
        monkeypatch.setattr(store, name, lambda *asked, name=name, look=look: looks.append(name) or look(*asked))
    with ThreadPoolExecutor(1) as pool:
        work = waiting(well, item, item.execution_id, pool)
        may_end.set()
        assert work.result(WAIT) == 7
    assert looks == []
