"""A tier's concurrency counts every root execution of a workspace, however it began."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.queue_urls import queue_url

import stepwell
from stepwell import ExecutionFailed, InvalidInput, ItemStatus, LimitExceeded, NotFound, Status, Stepwell, step, workflow

__all__ = ["queue_url"]

WAIT = 60
gate, is_broken = threading.Event(), threading.Event()
entered = threading.Semaphore(0)
running: set[str] = set()
most: list[int] = []


_cleared = cleared(gate, is_broken, entered, running, most)


@pytest.fixture
def well(open_well: OpenWell, queue_url: str) -> Any:
    """A well that works, by the machine's clock, with a workspace that runs one execution at a time."""
    well = open_well(queue_url)
    well.workspaces.put("acme", tier="free")
    return well


@workflow(name="slots.hold")
async def hold(name: str) -> str:
    return await stepwell.wait_signal("go")


@step
async def count_in(name: str) -> str:
    running.add(name)
    most.append(len(running))
    running.discard(name)
    return name


@workflow(name="slots.short")
async def short(name: str) -> str:
    return await count_in(name)


@step
async def may_break(name: str) -> str:
    if is_broken.is_set():
        raise ValueError("broken")
    return name


@workflow(name="slots.fragile")
async def fragile(name: str) -> str:
    return await may_break(name)


@workflow(name="slots.family")
async def family(size: int) -> list[str]:
    return await stepwell.map(short, [str(number) for number in range(size)])


def test_start_beyond_the_tiers_concurrency_is_refused_until_one_ends(well: Stepwell):
    first = well.start(hold, "a", workspace="acme", execution_id="a")
    with pytest.raises(LimitExceeded, match=r"'acme' runs as many executions as its tier allows.*enqueue") as refusal:
        well.start(hold, "b", workspace="acme", execution_id="b")
    assert refusal.value.limit == "concurrency"
    with pytest.raises(NotFound):
        well.run("b").status()
    first.signal("go", "done")
    assert first.result(WAIT) == "done"
    second = well.start(hold, "b", workspace="acme", execution_id="b")
    second.signal("go", "too")
    assert second.result(WAIT) == "too"


def test_started_execution_holds_the_slot_of_a_queued_one(well: Stepwell):
    run = well.start(hold, "a", workspace="acme")
    item = well.enqueue(short, "b", workspace="acme")
    assert item.state().status == ItemStatus.QUEUED
    run.signal("go", None)
    assert item.result(WAIT) == "b"


def test_start_in_a_paused_or_unknown_workspace_is_refused(well: Stepwell):
    well.workspaces.pause("acme")
    with pytest.raises(LimitExceeded, match=r"'acme' is paused.*enqueue"):
        well.start(short, "a", workspace="acme")
    with pytest.raises(NotFound, match="no workspace 'nowhere'"):
        well.start(short, "a", workspace="nowhere")
    assert well.executions.list() == []


def test_start_again_with_the_id_of_the_run_that_fills_the_workspace_returns_it(well: Stepwell):
    run = well.start(hold, "a", workspace="acme", execution_id="a")
    assert well.start(hold, "a", workspace="acme", execution_id="a").execution_id == "a"
    run.signal("go", "done")
    assert run.result(WAIT) == "done"


def test_children_run_in_the_slot_of_their_root(well: Stepwell):
    assert well.start(family, 3, workspace="acme").result(WAIT) == ["0", "1", "2"]


def test_failed_start_is_retried_when_it_has_its_turn(well: Stepwell):
    is_broken.set()
    run = well.start(fragile, "a", workspace="acme")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    other = well.start(hold, "b", workspace="acme")
    is_broken.clear()
    run.retry()
    assert run.status() == Status.PENDING
    other.signal("go", None)
    assert run.result(WAIT) == "a"


def test_fork_takes_a_slot_like_a_start(well: Stepwell):
    run = well.start(short, "a", workspace="acme")
    assert run.result(WAIT) == "a"
    well.fork(run.execution_id, "again", at=0)
    assert well.run("again").result(WAIT) == "a"
    held = well.start(hold, "b", workspace="acme")
    with pytest.raises(LimitExceeded):
        well.fork(run.execution_id, "third", at=0)
    held.signal("go", None)


def test_default_workspace_takes_any_number_of_starts(well: Stepwell):
    runs = [well.start(short, str(number)) for number in range(12)]
    assert [run.result(WAIT) for run in runs] == [str(number) for number in range(12)]
    assert well.queue.list() == []


def test_execution_that_no_worker_has_yet_runs_when_one_comes(open_well: OpenWell, file_url: str):
    idle = open_well(file_url, worker=False)
    idle.workspaces.put("acme", tier="free")
    run = idle.start(short, "a", workspace="acme")
    assert run.status() == Status.PENDING
    with idle.transaction(run.execution_id) as tx:
        tx.set_variable("seen", True)
    working = open_well(file_url)
    assert working.run(run.execution_id).result(WAIT) == "a"


def test_worker_of_one_queue_gives_a_retried_start_its_turn(open_well: OpenWell, file_url: str):
    well = open_well(file_url, queues=["mail"])
    well.workspaces.put("acme", tier="free")
    is_broken.set()
    run = well.start(fragile, "a", workspace="acme")
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    is_broken.clear()
    run.retry()
    assert run.result(WAIT) == "a"


def test_queue_names_that_begin_with_a_dollar_are_refused(well: Stepwell):
    with pytest.raises(InvalidInput, match="does not begin with"):
        well.enqueue(short, "a", queue="$started")
    with pytest.raises(InvalidInput, match="does not begin with"):
        well.queue.pause("$started")


def test_cap_holds_when_starts_and_queued_runs_compete(well: Stepwell):
    well.workspaces.put_tier("two", concurrency=2)
    well.workspaces.put("acme", tier="two")

    def begin(number: int) -> str | None:
        if number % 2:
            return well.enqueue(short, str(number), workspace="acme").result(WAIT)
        try:
            return well.start(short, str(number), workspace="acme").result(WAIT)
        except LimitExceeded:
            return None

    with ThreadPoolExecutor(6) as pool:
        ended = list(pool.map(begin, range(30)))
    assert ended[1::2] == [str(number) for number in range(1, 30, 2)]
    assert max(most) <= 2
    assert well.start(short, "last", workspace="acme").result(WAIT) == "last"
