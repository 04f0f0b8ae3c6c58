"""``run.waiting_on()``: why a run does not move, in one answer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.acceptance.conftest import working_well

import stepwell
from stepwell import ExecutionFailed, Retry, Stepwell, StoreUnavailable, WaitingOn, step, workflow
from stepwell.flow import approval, call, deferred, define, signal, subworkflow, wait
from stepwell.testing.store_access import store_under

well = working_well

WAIT = 60


@step(name="wo.failing", retry=Retry(attempts=3, first_seconds=1000))
async def failing() -> None:
    raise ConnectionError("the bank is away")


@workflow(name="wo.resting")
async def resting(how: str) -> None:
    match how:
        case "signal":
            await stepwell.wait_signal("approve", timeout="1h")
        case "timer":
            await stepwell.sleep("1h")
        case "child":
            await resting("signal")
        case _:
            await failing()


@step(name="wo.broken")
async def broken() -> None:
    raise ValueError("broken")


@workflow(name="wo.breaking")
async def breaking() -> None:
    await broken()


@workflow(name="wo.done")
async def done() -> int:
    return 1


DECLARED = {
    "signal": define("wo-signal", signal("approve")),
    "approval": define("wo-approval", approval("Large order", name="boss")),
    "timer": define("wo-timer", wait("1h")),
    "child": define("wo-child", subworkflow("wo.resting", "signal")),
    "retry": define("wo-retry", call("wo.failing", {})),
    "worker_missing": define("wo-missing", call("wo.nobody-has-it", {})),
}


def answer_of(run: Any, kind: str) -> WaitingOn:
    ends = time.monotonic() + WAIT
    while (found := run.waiting_on()) is None or found.kind != kind:
        assert time.monotonic() < ends, found
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("how", ["signal", "timer", "child", "retry"])
def test_function_says_what_it_waits_for(well: Any, how: str) -> None:
    run = well.start(resting, how)
    found = answer_of(run, how)
    names = {"signal": "approve", "timer": "", "retry": "wo.failing", "child": f"{run.execution_id}:1"}
    assert found.name == names[how]
    assert (found.until is None) == (how == "child")
    assert (found.error is None) == (how != "retry")
    assert run.progress().waiting_on == found
    assert found.to_dict()["kind"] == how
    run.cancel()


@pytest.mark.parametrize("kind", DECLARED)
def test_declared_run_says_what_it_waits_for(well: Any, kind: str) -> None:
    run = well.start(DECLARED[kind])
    found = answer_of(run, kind)
    names = {"signal": "approve", "approval": "boss", "retry": "wo.failing", "worker_missing": "wo.nobody-has-it"}
    assert found.name == names.get(kind, found.name)
    run.cancel()


def test_deferred_choice_names_every_signal_that_it_waits_for(well: Any) -> None:
    run = well.start(define("wo-deferred", deferred({"approve": call("wo.broken"), "reject": wait(1), "drop": wait(2)})))
    found = answer_of(run, "signal")
    assert (found.name, found.step) == ("approve", "deferred")
    assert found.message == "it waits for signal 'approve' or 'reject' or 'drop'"
    run.cancel()


def test_run_that_has_ended_waits_for_nothing(well: Any) -> None:
    run = well.start(done)
    run.result(WAIT)
    assert run.waiting_on() is None


def test_retried_run_of_a_full_workspace_waits_for_capacity(well: Any) -> None:
    well.workspaces.put("acme", tier="free")
    item = well.enqueue(breaking, workspace="acme")
    with pytest.raises(ExecutionFailed):
        item.result(WAIT)
    holding = well.enqueue(resting, "signal", workspace="acme")
    run = well.run(item.execution_id)
    while well.queue.item(holding.item_id).status != "DISPATCHED":
        time.sleep(0.01)
    run.retry()
    found = answer_of(run, "capacity")
    assert (found.name, found.until) == ("acme", None)
    well.run(holding.execution_id).cancel()


def test_run_without_a_worker_says_so(file_url: str) -> None:
    with Stepwell(file_url, worker=False) as well:
        found = well.start(done, execution_id="r").waiting_on()
        assert found is not None
        assert (found.kind, found.name) == ("worker_missing", "wo.done")


def test_store_that_does_not_answer_is_the_answer(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Stepwell(file_url, worker=False) as well:
        run = well.start(done, execution_id="r")

        def refuse(*_arguments: Any, **_options: Any) -> Any:
            raise StoreUnavailable("the disk is gone")

        for name in ("head", "load"):
            monkeypatch.setattr(store_under(well), name, refuse)
        found = run.waiting_on()
        assert found is not None
        assert (found.kind, found.error is not None and "the disk is gone" in found.error) == ("store_away", True)
