"""Wrong requests are refused at once, with a message that says what to do, and nothing is written."""

from __future__ import annotations

from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell

import stepwell
from stepwell import Conflict, InvalidInput, Limits, Stepwell, step, workflow
from stepwell.flow import define


@workflow
async def greet(name: str = "world") -> str:
    return f"hello {name}"


@workflow
async def add(a: int = 1, b: int = 2) -> int:
    return a + b


@workflow
async def alone() -> int:
    return 1


@workflow
async def calls_alone() -> int:
    return await alone()


@workflow
async def waits() -> Any:
    return await stepwell.wait_signal("go")


def test_workflow_whose_parameters_have_defaults_needs_no_input(well: Stepwell) -> None:
    assert well.start(greet).result(60) == "hello world"
    assert well.start(add).result(60) == 3
    assert well.start(add, {"b": 5}).result(60) == 6


def test_input_for_a_workflow_without_parameters_is_refused_rather_than_dropped(well: Stepwell) -> None:
    with pytest.raises(InvalidInput, match="takes no input"):
        well.start(alone, {"lost": True})
    assert well.start(calls_alone).result(60) == 1
    assert {each.workflow_id for each in well.executions.list()} == {"alone", "calls_alone"}


def test_empty_execution_id_is_refused_rather_than_replaced(well: Stepwell) -> None:
    with pytest.raises(InvalidInput, match="execution_id is empty"):
        well.start(alone, execution_id="")
    assert well.executions.list() == []


def test_function_without_its_decorator_is_named(well: Stepwell) -> None:
    with pytest.raises(InvalidInput, match="decorate the function with @workflow"):
        well.start(print)  # pyright: ignore[reportArgumentType]


def test_timeout_names_the_step_that_nobody_has(well: Stepwell) -> None:
    run = well.start(define("lost", "no_such_step"))
    while not run.progress().waiting:
        pass
    with pytest.raises(TimeoutError, match="waits for a worker that has step 'no_such_step'"):
        run.result(0)


def test_only_a_failed_run_is_retried(well: Stepwell) -> None:
    ended = well.start(alone)
    ended.result(60)
    with pytest.raises(Conflict, match="COMPLETED; only one that failed"):
        ended.retry()

    waiting = well.start(waits)
    with pytest.raises(Conflict, match="only one that failed"):
        waiting.retry()
    waiting.signal("go", 5)
    assert waiting.result(60) == 5
    assert waiting.verify().ok


def test_item_that_waits_is_queued_wherever_its_status_is_shown(well: Stepwell) -> None:
    item = well.enqueue(alone, delay=60)
    [listed] = well.queue.list(status=item.status)
    assert {item.status, item.state().status, item.refresh().status, listed.status} == {"QUEUED"}
    with pytest.raises(InvalidInput, match="'PENDING' is no status of a queue item; use one of QUEUED, CLAIMED"):
        well.queue.list(status="PENDING")


def test_schedule_takes_the_nicknames_of_cron(well: Stepwell) -> None:
    daily = well.schedules.put("nightly", alone, cron="@daily")
    same = well.schedules.put("same", alone, cron="0 0 * * *")
    assert daily.next_at == same.next_at


def change_late(well: Stepwell) -> None:
    with well.transaction("e") as tx:
        tx.set_variable("kept", 1)
        tx.commit()
        tx.set_variable("late", 2)


def test_change_after_an_explicit_commit_is_refused_rather_than_dropped(well: Stepwell) -> None:
    well.create("e")
    with pytest.raises(InvalidInput, match="is committed"):
        change_late(well)
    assert well.load("e").variables == {"kept": 1}


def test_decorators_refuse_what_could_never_run() -> None:
    with pytest.raises(InvalidInput, match="names of its parameters"):

        @workflow
        async def spread(*numbers: int) -> None: ...

    with pytest.raises(InvalidInput, match="is a function"):

        @workflow
        class Thing: ...

    with pytest.raises(InvalidInput, match="is a generator"):

        @step
        def numbers() -> Any:
            yield 1

    with pytest.raises(InvalidInput, match=r"stepwell\.Retry"):
        step(retry=5)  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.parametrize(
    "setting", [{"lease_seconds": "x"}, {"limits": 5}, {"signing_key": "text"}], ids=["lease_seconds", "limits", "signing_key"]
)
def test_wrong_setting_is_refused_by_its_name(setting: dict[str, Any], open_well: OpenWell) -> None:
    with pytest.raises(InvalidInput, match=next(iter(setting))):
        open_well("memory://", **setting)
    open_well("memory://", limits=Limits())
