"""Asking for runs through the queue: they wait for capacity, run once, and can be followed by their handles."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.queue_urls import queue_url

import stepwell
from stepwell import (
    AlreadyExists,
    Conflict,
    ExecutionCancelled,
    ExecutionFailed,
    InvalidInput,
    ItemStatus,
    LimitExceeded,
    NotFound,
    QueueRequest,
    Status,
    ValidationFailed,
    step,
    workflow,
)
from stepwell.flow import call, define
from stepwell.queue.dispatcher import Dispatcher

__all__ = ["queue_url"]

WAIT = 60
calls: Counter[str] = Counter()
order: list[str] = []
gate = threading.Event()
entered = threading.Semaphore(0)


@dataclass
class Order:
    item: str
    pieces: int


_cleared = cleared(calls, order, gate, entered)


@pytest.fixture
def well(open_well: OpenWell, queue_url: str) -> Any:
    """A well that works, by the machine's clock."""
    return open_well(queue_url)


@pytest.fixture
def idle_well(open_well: OpenWell, queue_url: str) -> Any:
    """A well that takes requests and runs none."""
    return open_well(queue_url, worker=False)


@workflow(name="queue.echo")
async def echo(value: int) -> int:
    calls[f"echo {value}"] += 1
    return value


@workflow(name="queue.ship")
async def ship(order: Order) -> str:
    return f"{order.pieces} {order.item}"


@step
def pass_gate(name: str) -> str:
    entered.release()
    assert gate.wait(WAIT)
    calls[name] += 1
    return name


@workflow(name="queue.held")
def held(name: str) -> str:
    return pass_gate(name)


@workflow(name="queue.noted")
async def noted(name: str) -> None:
    order.append(name)


@workflow(name="queue.broken")
async def broken(value: int) -> int:
    raise RuntimeError(f"no {value}")


@workflow(name="queue.slow")
async def slow(value: int) -> Any:
    return await stepwell.wait_signal("go")


@step(name="queue.double")
async def double(number: int) -> int:
    return 2 * number


@step
def ask_for_two(value: int) -> int:
    stepwell.enqueue(echo, value, key=f"first-{value}")
    stepwell.enqueue("queue.echo", value + 1)
    return value


@step
def ask_by_key(value: int) -> list[str]:
    return [stepwell.enqueue(echo, value, key="order-7"), stepwell.enqueue(echo, value, key="order-7")]


@step
def ask_by_execution(value: int) -> list[str]:
    return [stepwell.enqueue(echo, value, execution_id="run-7")]


@step
def ask_by_name(value: int) -> list[str]:
    return [stepwell.enqueue(slow, value, singleton=True), stepwell.enqueue(echo, value, debounce="1h")]


@workflow(name="queue.asking_by_name")
async def asking_by_name(value: int) -> list[str]:
    return await ask_by_name(value)


@step
def ask_and_fail(value: int) -> int:
    stepwell.enqueue(echo, value)
    raise RuntimeError("after all not")


@workflow(name="queue.asking")
async def asking(value: int) -> int:
    return await ask_for_two(value)


@workflow(name="queue.asking_again")
async def asking_again(value: int) -> list[str]:
    return [*await ask_by_key(value), *await ask_by_execution(value)]


@workflow(name="queue.asking_in_vain")
async def asking_in_vain(value: int) -> int:
    return await ask_and_fail(value)


@step
def ask_elsewhere(value: int) -> int:
    stepwell.enqueue(echo, value, workspace="nowhere")
    return value


@workflow(name="queue.asking_elsewhere")
async def asking_elsewhere(value: int) -> int:
    return await ask_elsewhere(value)


def test_a_request_is_answered_at_once_and_run(well: Any):
    item = well.enqueue(ship, Order("cups", 3))
    assert item.status == "QUEUED"
    assert item.item_id in item.message
    assert item.result(WAIT) == "3 cups"
    assert item.refresh().status == ItemStatus.COMPLETED
    assert item.run().status() is Status.COMPLETED


def test_a_run_without_waits_is_one_commit_with_the_end_of_its_item(well: Any):
    item = well.enqueue(echo, 4)
    assert item.result(WAIT) == 4
    (receipt,) = well.receipts(item.execution_id)
    assert receipt.revision == 0
    assert well.verify(item.execution_id).ok
    assert item.state().status is ItemStatus.COMPLETED


def test_a_long_run_is_visible_while_it_runs(well: Any):
    item = well.enqueue(slow, 1)
    while item.state().status is not ItemStatus.DISPATCHED:
        pass
    run = item.run()
    assert run.status() in (Status.RUNNING, Status.WAITING)
    run.signal("go", "there")
    assert item.result(WAIT) == "there"
    assert item.state().status is ItemStatus.COMPLETED


def test_a_failed_run_fails_its_item_with_the_error(well: Any):
    item = well.enqueue(broken, 7)
    with pytest.raises(ExecutionFailed, match="no 7"):
        item.result(WAIT)
    assert item.state().error == "RuntimeError: no 7"
    assert [dead.item_id for dead in well.queue.dead()] == [item.item_id]


def test_a_dead_item_runs_again_as_a_new_execution(well: Any):
    item = well.enqueue(broken, 7)
    with pytest.raises(ExecutionFailed):
        item.result(WAIT)
    again = well.queue.redrive(item.item_id)
    assert again.item_id == item.item_id
    assert again.execution_id != item.execution_id
    with pytest.raises(ExecutionFailed):
        again.result(WAIT)
    with pytest.raises(Conflict):
        well.queue.redrive(well.enqueue(slow, 1).item_id)


def test_the_same_key_is_the_same_item(idle_well: Any):
    first = idle_well.enqueue(echo, 1, key="order-7")
    second = idle_well.enqueue(echo, 1, key="order-7")
    assert second.item_id == first.item_id
    assert not second.is_new
    assert "no second one" in second.message
    with pytest.raises(Conflict):
        idle_well.enqueue(echo, 2, key="order-7")
    assert [(item.item_id, item.input) for item in idle_well.queue.list()] == [(first.item_id, 1)]


def test_the_same_execution_id_is_the_same_item(well: Any):
    first = well.enqueue(echo, 1, execution_id="order-7")
    assert first.result(WAIT) == 1
    second = well.enqueue(echo, 1, execution_id="order-7")
    assert (second.item_id, second.execution_id) == (first.item_id, "order-7")
    assert second.result(WAIT) == 1
    assert calls["echo 1"] == 1


def test_a_taken_execution_id_fails_the_item_and_keeps_no_slot(well: Any):
    well.queue.pause("default")
    item = well.enqueue(echo, 1, execution_id="mine")
    well.create("mine")
    well.queue.resume("default")
    while item.state().status is not ItemStatus.FAILED:
        pass
    assert "mine" in str(item.state().error)
    assert all(lane.running == 0 for lane in well.queue.stats())
    assert well.load("mine").revision == 0


def test_the_id_of_a_run_that_did_not_come_from_the_queue_is_refused(well: Any):
    """Of the same workflow in the same workspace, too: the item could only fail, after its caller has gone."""
    assert well.start(echo, 1, execution_id="mine").result(WAIT) == 1
    with pytest.raises(AlreadyExists, match="'mine' exists already"):
        well.enqueue(echo, 1, execution_id="mine")
    with pytest.raises(AlreadyExists, match="'mine' exists already"):
        well.enqueue_many([QueueRequest(workflow=echo, value=1, execution_id="mine")])
    assert well.queue.list() == []


def test_the_id_of_an_item_that_was_dropped_since_does_not_run_again(well: Any):
    """Its workflow would be run up to its first commit, with all that this does, and only then be refused."""
    assert well.enqueue(echo, 1, execution_id="mine").result(WAIT) == 1
    well.workspaces.put_tier("unlimited", retention_seconds=0)
    while well.queue.list():
        well.retention.apply()
    well.workspaces.put_tier("unlimited", retention_seconds=None)
    with pytest.raises(AlreadyExists, match="'mine' exists already"):
        well.enqueue(echo, 1, execution_id="mine")
    assert well.enqueue(echo, 2).result(WAIT) == 2
    assert calls["echo 1"] == 1


def test_a_workflow_has_a_version_that_every_store_can_count_to(well: Any):
    async def newest(value: int) -> int:
        return value

    for version in (2**53 + 1, 2**63, 2**70, 0, True, 1.0):
        with pytest.raises(InvalidInput, match="version is a whole number"):
            workflow(name="queue.newest", version=version)(newest)
    assert well.enqueue(workflow(name="queue.newest", version=2**53)(newest), 1).result(WAIT) == 1


def test_item_whose_execution_id_was_taken_by_another_run_fails(well: Any):
    """Of the same workflow in the same workspace: only the item's own id tells them apart."""
    well.queue.pause("default")
    item = well.enqueue(echo, 1, execution_id="mine")
    assert well.start(echo, 2, execution_id="mine").result(WAIT) == 2
    well.queue.resume("default")
    while item.state().status is not ItemStatus.FAILED:
        pass
    with pytest.raises(ExecutionFailed, match="failed before it started: AlreadyExists"):
        item.result(WAIT)


def test_step_that_enqueues_by_name_gets_the_id_of_a_new_item_or_of_none(well: Any):
    """Which item stands for the request is seen with the step's commit alone."""
    given = well.start(asking_by_name, 1).result(WAIT)
    assert [well.queue.item(item_id).state().input for item_id in given] == [1, 1]
    for item_id in well.start(asking_by_name, 2).result(WAIT):
        with pytest.raises(NotFound, match="a step asked for it by singleton or debounce, and another item stands for it"):
            well.queue.item(item_id)
    assert {item.item_id: item.input for item in well.queue.list() if item.item_id in given} == dict(
        zip(given, [1, 2], strict=True)
    )
    well.queue.item(given[0]).cancel()


def test_a_singleton_is_not_asked_for_twice_while_it_has_not_ended(idle_well: Any):
    first = idle_well.enqueue(echo, 1, singleton=True)
    assert idle_well.enqueue(echo, 2, singleton=True).item_id == first.item_id
    assert idle_well.enqueue(echo, 2, singleton="other").item_id != first.item_id
    first.cancel()
    assert idle_well.enqueue(echo, 3, singleton=True).item_id != first.item_id


def test_a_debounced_request_gets_the_newest_input(idle_well: Any):
    first = idle_well.enqueue(echo, 1, debounce=60)
    second = idle_well.enqueue(echo, 2, debounce=60)
    assert second.item_id == first.item_id
    assert first.state().input == 2
    assert idle_well.enqueue(echo, 1, debounce=60, key="apart").item_id != first.item_id


@pytest.fixture
def _no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatchers that look again only when there is a reason to."""
    monkeypatch.setitem(Dispatcher.__init__.__kwdefaults__, "poll_seconds", 3_600)


@pytest.mark.usefixtures("_no_poll")
def test_a_delayed_item_runs_when_its_time_has_come(well: Any):
    before = datetime.now(UTC)
    item = well.enqueue(echo, 1, delay=0.3)
    other = well.enqueue(echo, 2, run_at=before + timedelta(seconds=0.3))
    assert item.result(WAIT) == 1
    assert other.result(WAIT) == 2
    state = item.state()
    assert state.claimed_at >= state.run_at >= before + timedelta(seconds=0.299)  # times of stores are whole milliseconds


def test_higher_priority_goes_first_then_first_come(well: Any):
    well.workspaces.put("one", tier="free", is_paused=True)
    wanted = [("low", -1), ("first", 0), ("second", 0), ("high", 5)]
    items = [well.enqueue(noted, name, workspace="one", priority=priority) for name, priority in wanted]
    well.workspaces.resume("one")
    for item in items:
        item.result(WAIT)
    assert order == ["high", "first", "second", "low"]


def test_no_more_run_at_once_than_the_tier_allows(well: Any):
    well.workspaces.put("acme", tier="startup")
    items = [well.enqueue(held, str(number), workspace="acme") for number in range(5)]
    for _ in range(3):
        assert entered.acquire(timeout=WAIT)
    (lane,) = well.queue.stats("acme")
    assert (lane.running, lane.ready, lane.cap) == (3, 2, 3)
    reason = items[-1].why()
    assert reason.codes[0] == "at_capacity"
    assert "3 of the 3 slots" in str(reason)
    assert not entered.acquire(blocking=False)
    gate.set()
    assert [item.result(WAIT) for item in items] == list("01234")


def test_a_larger_tier_is_effective_at_once(well: Any):
    well.workspaces.put("acme", tier="free")
    items = [well.enqueue(held, str(number), workspace="acme") for number in range(2)]
    assert entered.acquire(timeout=WAIT)
    assert items[1].state().status is ItemStatus.QUEUED
    well.workspaces.put("acme", tier="Scale")
    assert entered.acquire(timeout=WAIT)
    gate.set()
    assert [item.result(WAIT) for item in items] == ["0", "1"]


def test_a_waiting_item_that_is_cancelled_never_runs(idle_well: Any):
    item = idle_well.enqueue(echo, 1)
    assert item.cancel().status is ItemStatus.CANCELLED
    with pytest.raises(ExecutionCancelled):
        item.result(WAIT)
    assert calls == {}


def test_a_running_item_that_is_cancelled_ends_with_its_run(well: Any):
    item = well.enqueue(slow, 1)
    while item.state().status is not ItemStatus.DISPATCHED:
        pass
    item.cancel()
    with pytest.raises(ExecutionCancelled):
        item.result(WAIT)
    while item.state().status is ItemStatus.DISPATCHED:
        pass
    assert item.state().status is ItemStatus.CANCELLED


def test_many_requests_are_taken_at_once(well: Any):
    items = well.enqueue_many([QueueRequest(workflow=echo, value=number) for number in range(250)])
    assert [item.result(WAIT) for item in items] == list(range(250))
    assert set(calls.values()) == {1}


def test_one_refused_request_stops_no_other(idle_well: Any):
    requests = [QueueRequest(workflow=echo, value=1, workspace=name) for name in ("default", "nowhere", "default")]
    answers = idle_well.enqueue_many(requests)
    assert isinstance(answers[1], NotFound)
    assert len(idle_well.queue.list()) == 2


def test_one_bad_request_of_many_is_found_before_any_is_stored(idle_well: Any):
    requests = [QueueRequest(workflow=echo, value=1), QueueRequest(workflow=echo, value="one")]
    with pytest.raises(InvalidInput):
        idle_well.enqueue_many(requests)
    assert idle_well.queue.list() == []


def test_what_a_step_asks_for_lands_with_its_output(well: Any):
    assert well.enqueue(asking, 5).result(WAIT) == 5
    found = {item.input: item for item in well.queue.list(workflow="queue.echo")}
    assert sorted(found) == [5, 6]
    assert well.queue.item(found[5].item_id).result(WAIT) == 5
    assert well.queue.item(found[6].item_id).result(WAIT) == 6


@pytest.mark.parametrize("is_first", [True, False])
def test_a_step_that_asks_for_what_is_there_is_told_of_that_item(well: Any, is_first: bool):
    def ask() -> list[str]:
        keyed, own = well.enqueue(echo, 5, key="order-7"), well.enqueue(echo, 5, execution_id="run-7")
        return [keyed.item_id, keyed.item_id, own.item_id]

    before = ask() if is_first else None
    told = well.start(asking_again, 5).result(WAIT)
    assert told == (before or ask())
    assert sorted({*told}) == sorted(item.item_id for item in well.queue.list(workflow="queue.echo"))
    assert [well.queue.item(item_id).result(WAIT) for item_id in told] == [5, 5, 5]


def test_a_step_whose_key_has_another_body_has_failed(well: Any):
    well.enqueue(echo, 6, key="order-7")
    with pytest.raises(ExecutionFailed, match="something else"):
        well.start(asking_again, 5).result(WAIT)


def test_what_a_failed_step_asked_for_is_not_asked_for(well: Any):
    with pytest.raises(ExecutionFailed):
        well.enqueue(asking_in_vain, 5).result(WAIT)
    assert well.queue.list(workflow="queue.echo") == []


def test_a_step_whose_request_is_refused_has_failed(well: Any):
    run = well.start(asking_elsewhere, 5)
    with pytest.raises(ExecutionFailed, match="nowhere"):
        run.result(WAIT)
    assert [(step.status, step.error.kind) for step in run.steps()] == [("FAILED", "NotFound")]


def test_asking_is_for_the_code_of_steps():
    with pytest.raises(InvalidInput, match=r"well\.enqueue"):
        stepwell.enqueue(echo, 1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"workspace": "nowhere"}, NotFound),
        ({"workflow": "unknown"}, NotFound),
        ({"workflow": 7}, InvalidInput),
        ({"value": "text"}, InvalidInput),
        ({"value": None}, InvalidInput),
        ({"priority": "high"}, InvalidInput),
        ({"priority": 10**9}, InvalidInput),
        ({"priority": True}, InvalidInput),
        ({"delay": -1}, InvalidInput),
        ({"delay": 1, "run_at": datetime.now(UTC)}, InvalidInput),
        ({"run_at": datetime(2027, 1, 1)}, InvalidInput),  # noqa: DTZ001 - refused for that
        ({"max_attempts": 0}, InvalidInput),
        ({"key": ""}, InvalidInput),
        ({"queue": "a\0b"}, InvalidInput),
        ({"execution_id": ""}, InvalidInput),
        ({"singleton": 1}, InvalidInput),
        ({"singleton": True, "debounce": 1}, InvalidInput),
        ({"workspace": "full"}, LimitExceeded),
    ],
)
def test_a_bad_request_is_refused_and_nothing_stored(idle_well: Any, options: dict[str, Any], error: type[Exception]):
    idle_well.workspaces.put_tier("none", queue_depth=0)
    idle_well.workspaces.put("full", tier="none")
    with pytest.raises(error):
        idle_well.enqueue(**({"workflow": echo, "value": 1} | options))
    assert idle_well.queue.list() == []


def test_a_declared_workflow_is_asked_for_in_the_same_way(well: Any):
    definition = define("queue.declared", call("queue.double", {"number": "{{ trigger.input }}"}))
    assert well.enqueue(definition, 4).result(WAIT) == 8
    item = well.enqueue("queue.declared", 5)
    assert item.result(WAIT) == 10
    assert well.verify(item.execution_id).ok
    assert item.state().status is ItemStatus.COMPLETED


@step(name="queue.count")
async def count(number: int) -> int:
    """It ends before anybody can look."""
    calls[f"count {number}"] += 1
    return number


def test_steps_of_a_declared_workflow_are_made_once_each(well: Any):
    """The first commit brings the run's state, and its session begins anew: what has ended by then is not asked for again."""
    first, second = (call("queue.count", {"number": f"{{{{ trigger.input + {more} }}}}"}, name=f"n{more}") for more in (0, 1000))
    definition = define("queue.counted", first, second)
    items = [well.enqueue(definition, number) for number in range(10)]
    assert [item.result(WAIT) for item in items] == [number + 1000 for number in range(10)]
    assert calls == Counter(f"count {number + more}" for number in range(10) for more in (0, 1000))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"workspace": "nobody"}, NotFound),
        ({"workspace": "full"}, LimitExceeded),
        ({"key": "taken"}, Conflict),
        ({"value": "five"}, ValidationFailed),
        ({"priority": 1.5}, InvalidInput),
    ],
)
def test_nothing_stays_of_a_definition_that_comes_with_a_bad_request(
    idle_well: Any, options: dict[str, Any], error: type[Exception]
):
    definition = define("queue.typed", call("queue.double", {"number": "{{ trigger.input }}"}), input_schema={"type": "integer"})
    idle_well.workspaces.put_tier("none", queue_depth=0)
    idle_well.workspaces.put("full", tier="none")
    other = idle_well.enqueue(echo, 1, key="taken")
    bad = {"workflow": definition, "value": 5} | options
    with pytest.raises(error):
        idle_well.enqueue(**bad)
    if "value" in options or "priority" in options:  # of many, each has its own refusal by the store
        with pytest.raises(error):
            idle_well.enqueue_many([QueueRequest(workflow=definition, value=1), QueueRequest(**bad)])
    assert [item.item_id for item in idle_well.queue.list()] == [other.item_id]
    assert [each.name for each in idle_well.definitions.list()] == []
