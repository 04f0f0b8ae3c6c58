"""Workers: the slots in use, the runs that one has, draining, and taking over from one that is gone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.support.module_state import cleared
from tests.support.polling import until

from stepwell import Conflict, InvalidInput, NotFound, Stepwell, step, workflow
from stepwell.model.commit import Claim
from stepwell.queue.worker_presence import Heartbeat, WorkerPresence, presence
from stepwell.testing.store_access import parts_of, worker_of, write_unit, write_unit_or_raise

WAIT = 60
entered, gate = threading.Event(), threading.Event()
made: list[str] = []


_cleared = cleared(entered, gate, made)


@step(name="workers.held")
def held() -> str:
    entered.set()
    assert gate.wait(WAIT)
    made.append("held")
    return "held"


@step(name="workers.after")
def after() -> None:
    made.append("after")


@workflow(name="workers.holding")
async def holding() -> str:
    first = await held()
    await after()
    return first


def beat(well: Any) -> None:
    """Have the worker of a well renew its heartbeat now."""
    worker = worker_of(well)
    [heartbeat] = [each for each in worker.companions if isinstance(each, Heartbeat)]
    worker._loop.call_soon_threadsafe(heartbeat.wake)


def own(well: Any) -> WorkerPresence | None:
    name = worker_of(well).holder
    return next((each for each in well.queue.workers() if each.name == name), None)


def test_worker_that_drains_hands_back_and_takes_nothing_until_it_is_resumed(file_url: str) -> None:
    with Stepwell(file_url) as well:
        run = well.start(holding)
        assert entered.wait(WAIT)
        name = worker_of(well).holder
        until(lambda: own(well) is not None)
        beat(well)
        until(lambda: own(well).running == 1)
        assert [each.execution_id for each in well.queue.worker_leases(name)] == [run.execution_id]
        assert well.queue.drain_worker(name).name == name
        beat(well)
        until(lambda: own(well).is_draining)
        gate.set()
        until(lambda: not well.queue.worker_leases(name))
        assert made == ["held"]
        waits = well.start(holding)
        beat(well)
        until(lambda: own(well).running == 0)
        assert well.queue.worker_leases(name) == []
        well.queue.resume_worker(name)
        beat(well)
        assert run.result(timeout=WAIT) == "held"
        assert waits.result(timeout=WAIT) == "held"


def test_runs_of_a_worker_that_is_gone_are_released_before_its_leases_expire(file_url: str) -> None:
    with Stepwell(file_url, worker=False) as well:
        run = well.start(holding, execution_id="left")
        write_unit(well, Claim("left", "gone", 3_600))
        with Stepwell(file_url) as working:
            gate.set()
            assert working.queue.mark_worker_dead("gone") == ["left"]
            assert working.run("left").result(timeout=WAIT) == "held"
        assert run.status() == "COMPLETED"
        with pytest.raises(NotFound):
            well.queue.mark_worker_dead("gone")


def test_worker_that_lives_is_not_marked_dead_unless_forced_and_one_of_temporal_is_not_drained(file_url: str) -> None:
    with Stepwell(file_url, worker=False) as well:
        now = parts_of(well).clock.now()
        for name, engine in (("alive", "local"), ("other", "temporal")):
            write_unit_or_raise(well, presence(WorkerPresence(name, engine, (), (), 10, now)))
        with pytest.raises(Conflict, match="alive"):
            well.queue.mark_worker_dead("alive")
        assert well.queue.mark_worker_dead("alive", force=True) == []
        assert [each.name for each in well.queue.workers()] == ["other"]
        with pytest.raises(InvalidInput, match="temporal"):
            well.queue.drain_worker("other")
        with pytest.raises(NotFound):
            well.queue.drain_worker("nobody")
