"""Pause and resume one run: nothing new begins meanwhile, nothing is lost, and a receipt says who paused it and why."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from tests.acceptance.conftest import working_well
from tests.support.command_line import Shell, shell
from tests.support.module_state import cleared
from tests.support.polling import until

import stepwell
from stepwell import (
    Conflict,
    ExecutionCancelled,
    ExecutionEnded,
    ExecutionFailed,
    InvalidInput,
    NotFound,
    Stepwell,
    step,
    workflow,
)
from stepwell.flow import call, define, signal
from stepwell.flow import sequence as seq
from stepwell.kernel.commit_planner import CommitPlanner
from stepwell.runtime.sessions import declared_session
from stepwell.testing.store_access import store_under

__all__ = ["shell"]

well = working_well

WAIT = 60
entered, gate = threading.Event(), threading.Event()
short_entered, short_gate = threading.Event(), threading.Event()
made: list[str] = []


_cleared = cleared(entered, gate, short_entered, short_gate, made)


@step(name="pause.held")
def held() -> str:
    made.append("held")
    entered.set()
    assert gate.wait(WAIT)
    return "held"


@step(name="pause.short")
def short() -> str:
    short_entered.set()
    assert short_gate.wait(WAIT)
    return "short"


@step(name="pause.after")
def after() -> str:
    made.append("after")
    return "after"


@step(name="pause.broken")
def broken() -> None:
    entered.set()
    assert gate.wait(WAIT)
    raise ValueError("broken")


@workflow(name="pause.plain")
def plain() -> list[str]:
    return [held(), after()]


@workflow(name="pause.coroutine")
async def coroutine() -> list[str]:
    return [await held(), await after()]


@workflow(name="pause.waiting")
async def waiting() -> Any:
    return await stepwell.wait_signal("go")


@workflow(name="pause.sleeping")
async def sleeping() -> str:
    await stepwell.sleep(5)
    return await after()


async def short_then_after() -> list[str]:
    return [await short(), await after()]


@workflow(name="pause.branches")
async def branches() -> list[Any]:
    return await asyncio.gather(held(), short_then_after())


def plain_branch(name: str) -> Any:
    return held() if name == "long" else [short(), after()]


@workflow(name="pause.plain-branches")
def plain_branches() -> list[Any]:
    return stepwell.map(plain_branch, ["long", "short"])


@workflow(name="pause.failing")
async def failing() -> str:
    await broken()
    return await after()


@workflow(name="pause.undoing")
async def undoing() -> Any:
    stepwell.compensate(held)
    return await stepwell.wait_signal("go")


HOLDING = {
    "plain": plain,
    "coroutine": coroutine,
    "declared": define("pause-declared", seq(call("pause.held", name="held"), call("pause.after", name="after"))),
}
UNDOING = {
    "function": undoing,
    "declared": define("pause-undoing", seq(call("pause.after", name="after", compensate=call("pause.held")), signal("go"))),
}
WAITING = {"function": waiting, "declared": define("pause-waiting", signal("go"))}


def rests(run: Any) -> bool:
    progress = run.progress()
    return progress.held_by is None and progress.pause is not None and run.status() == "WAITING"


def changes_of(run: Any) -> list[str]:
    """Return the operations on its inbox that its history has."""
    told = [each for receipt in run.receipts() for each in receipt.mutations if each["type"] == "write_state"]
    return [f"{each['op']['op']} {each['op']['key']}" for each in told]


def deleted_by(receipt: Any) -> list[str]:
    """Return the keys of the messages that a commit takes from the inbox."""
    told = [each["op"] for each in receipt.mutations if each["type"] == "write_state"]
    return [each["key"] for each in told if each["op"] == "delete" and each["scope"].startswith("inbox/")]


@pytest.mark.parametrize("kind", HOLDING)
def test_step_under_way_ends_and_nothing_new_begins_until_resume(well: Any, kind: str) -> None:
    run = well.start(HOLDING[kind])
    assert entered.wait(WAIT)
    receipt = run.pause("the bank is down", by="alice")
    assert receipt.revision == run.receipts()[receipt.revision].revision
    gate.set()
    until(lambda: rests(run))
    assert made == ["held"]
    on = run.waiting_on()
    assert (on.kind, on.name) == ("paused", "alice")
    assert "the bank is down" in on.message
    assert [each.status for each in run.steps() if each.output == "held"] == ["COMPLETED"]
    run.resume()
    run.result(timeout=WAIT)
    assert made == ["held", "after"]
    assert run.progress().pause is None
    assert [each for each in changes_of(run) if each.endswith(" pause")] == ["put pause", "delete pause"]
    assert run.verify().ok


@pytest.mark.parametrize("way", [branches, plain_branches], ids=["coroutine", "plain"])
def test_run_that_is_resumed_while_a_step_is_under_way_goes_on(well: Any, way: Any) -> None:
    run = well.start(way)
    assert entered.wait(WAIT)
    assert short_entered.wait(WAIT)
    run.pause()
    short_gate.set()
    until(lambda: [each.status for each in run.steps() if each.output == "short"] == ["COMPLETED"])
    run.resume()
    gate.set()
    assert run.result(timeout=WAIT) == ["held", ["short", "after"]]
    assert sorted(made) == ["after", "held"]


@pytest.mark.parametrize("kind", WAITING)
def test_signal_of_a_paused_run_is_kept_and_taken_after_resume(well: Any, kind: str) -> None:
    run = well.start(WAITING[kind])
    until(lambda: run.waiting_on() is not None)
    run.pause()
    until(lambda: rests(run))
    run.signal("go", "now")
    until(lambda: run.progress().untaken == ("go",) and rests(run))
    run.resume()
    result = run.result(timeout=WAIT)
    assert kind == "declared" or result == "now"


def test_time_that_passes_during_a_pause_is_taken_after_resume(well: Any) -> None:
    run = well.start(sleeping)
    until(lambda: run.waiting_on() is not None and run.waiting_on().kind == "timer")
    due = run.waiting_on().until
    run.pause()
    until(lambda: rests(run))
    until(lambda: datetime.now(UTC) > due)
    assert made == []
    run.resume()
    assert run.result(timeout=WAIT) == "after"


@pytest.mark.parametrize("kind", WAITING)
def test_cancel_ends_a_paused_run(well: Any, kind: str) -> None:
    run = well.start(WAITING[kind])
    run.pause()
    until(lambda: rests(run))
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(timeout=WAIT)


def test_cancel_takes_the_pause_in_the_same_commit(well: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run whose worker dies after that commit would be paused while it is being cancelled."""
    monkeypatch.setattr(declared_session, "CommitPlanner", partial(CommitPlanner, slice_size=1))
    run = well.start(WAITING["declared"])
    run.pause()
    until(lambda: rests(run))
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(timeout=WAIT)
    taken = [deleted for each in run.receipts() if (deleted := deleted_by(each))]
    assert [(len(keys), "pause" in keys) for keys in taken] == [(2, True)]


@pytest.mark.parametrize("kind", UNDOING)
def test_pause_of_a_run_that_is_being_cancelled_is_refused(well: Any, kind: str) -> None:
    run = well.start(UNDOING[kind])
    until(lambda: run.waiting_on() is not None)
    run.cancel()
    assert entered.wait(WAIT)
    with pytest.raises(Conflict, match="being cancelled"):
        run.pause()
    gate.set()
    with pytest.raises(ExecutionCancelled):
        run.result(timeout=WAIT)
    assert made[-1] == "held"


def test_pause_of_a_run_that_ends_meanwhile_does_not_hold_its_retry(well: Any) -> None:
    run = well.start(failing)
    assert entered.wait(WAIT)
    run.pause()
    gate.set()
    with pytest.raises(ExecutionFailed):
        run.result(timeout=WAIT)
    assert run.waiting_on() is None
    run.retry()
    with pytest.raises(ExecutionFailed):
        run.result(timeout=WAIT)


def test_pause_again_replaces_the_reason(well: Any) -> None:
    run = well.start(waiting)
    run.pause("first", by="alice")
    run.pause("second", by="bob")
    pause = run.progress().pause
    assert (pause.by, pause.reason) == ("bob", "second")
    run.cancel()


def test_wait_for_the_result_of_a_paused_run_says_that_it_is_paused(well: Any) -> None:
    run = well.start(waiting)
    run.pause("lunch", by="alice")
    with pytest.raises(TimeoutError, match=r"paused by alice .*lunch"):
        run.result(timeout=0.01)
    run.cancel()


@pytest.mark.parametrize("kind", WAITING)
def test_wait_for_the_result_of_a_run_that_cannot_be_read_ends_as_a_timeout(file_url: str, kind: str) -> None:
    with Stepwell(file_url, worker=False) as well:
        well.start(WAITING[kind], execution_id="damaged")
    with closing(sqlite3.connect(file_url.removeprefix("sqlite:///"))) as file, file:
        file.execute("UPDATE commits SET body = x'ff'")
    with (
        Stepwell(file_url, worker=False) as well,
        pytest.raises(TimeoutError, match=r"still PENDING after .*cannot be read: .*quarantined"),
    ):
        well.run("damaged").result(timeout=0.01)


def test_wrong_uses_are_refused(well: Any) -> None:
    with pytest.raises(NotFound):
        well.run("nobody").pause()
    run = well.start(waiting)
    with pytest.raises(Conflict, match="not paused"):
        run.resume()
    with pytest.raises(InvalidInput):
        run.pause(7)
    run.signal("go")
    run.result(timeout=WAIT)
    for refused in (run.pause, run.resume):
        with pytest.raises(ExecutionEnded):
            refused()
    well.create("by-hand")
    with pytest.raises(InvalidInput, match="driven by hand"):
        well.run("by-hand").pause()


def test_run_that_no_worker_has_begun_is_paused(file_url: str) -> None:
    with Stepwell(file_url, worker=False) as away:
        away.start(plain, execution_id="early").pause("not yet")
    gate.set()
    with Stepwell(file_url) as well:
        run = well.run("early")
        until(lambda: run.progress().held_by is None and not is_due(well, "early"))
        assert made == []
        assert run.waiting_on().kind == "paused"
        run.resume()
        assert run.result(timeout=WAIT) == ["held", "after"]


def test_pause_outlives_its_worker(file_url: str) -> None:
    with Stepwell(file_url) as first:
        run = first.start(waiting, execution_id="kept")
        until(lambda: run.waiting_on() is not None)
        run.pause("over night", by="alice")
    with Stepwell(file_url) as second:
        run = second.run("kept")
        run.signal("go", 7)
        until(lambda: rests(run) and not is_due(second, "kept"))
        assert run.waiting_on().name == "alice"
        run.resume()
        assert run.result(timeout=WAIT) == 7


def test_run_of_a_queue_item_is_paused_and_keeps_its_slot(well: Any) -> None:
    item = well.enqueue(waiting)
    until(lambda: item.refresh().status == "DISPATCHED")
    run = well.run(item.execution_id)
    run.pause()
    until(lambda: rests(run))
    assert item.refresh().status == "DISPATCHED"
    run.resume()
    run.signal("go", 1)
    assert run.result(timeout=WAIT) == 1


def test_pause_of_a_run_on_temporal_is_refused(file_url: str) -> None:
    with Stepwell(file_url, worker=False) as well:
        run = well.start(waiting, engine="temporal")
        for refused in (run.pause, run.resume):
            with pytest.raises(InvalidInput, match="runs on temporal"):
                refused()


def test_command_line_pauses_and_resumes(shell: Shell) -> None:
    assert shell("start", "shop.py:approval", "--id", "shown", "-i", '"ada"').code == 0
    paused = shell("pause", "shown", "--reason", "lunch", "--by", "alice")
    assert "stepwell resume shown" in paused.err
    assert "paused by alice" in shell("show", "shown").out
    resumed = shell("--json", "resume", "shown").json
    assert (resumed["execution_id"], resumed["resume"]) == ("shown", "recorded")
    assert shell("resume", "shown").code != 0


def is_due(well: Any, execution_id: str) -> bool:
    head = store_under(well).head(execution_id)
    return head is not None and head.wake_ms is not None
