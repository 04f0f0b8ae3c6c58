"""How runs end, rest and go on: cancel inside tasks, hand-over on close, retries, patches in loops, replies that are lost."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from tests.support.module_state import cleared

import stepwell
from stepwell import (
    CommitUnknown,
    ExecutionCancelled,
    ExecutionFailed,
    Retry,
    Status,
    StepFailed,
    Stepwell,
    fault_points,
    step,
    workflow,
)

WAIT = 60
calls: Counter[str] = Counter()
entered = threading.Event()
release = threading.Event()


_cleared = cleared(calls, entered, release)


@pytest.fixture(params=["memory", "sqlite"])
def well(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with Stepwell("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/well.db") as opened:
        yield opened


@step
async def note(text: str) -> str:
    calls[text] += 1
    return text


@workflow
async def cleans_up(numbers: list[int]) -> None:
    async def one(number: int) -> Any:
        return await stepwell.wait_signal(f"go {number}")

    try:
        await stepwell.map(one, numbers)
    except ExecutionCancelled:
        await note("cleaned up")
        await note("twice")
        raise


def test_cancel_inside_of_tasks_lets_the_main_branch_clean_up(well: Any) -> None:
    run = well.start(cleans_up, [1, 2, 3])
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    assert calls == {"cleaned up": 1, "twice": 1}


@workflow
async def tidy() -> str:
    try:
        await stepwell.wait_signal("go")
    finally:
        await note("in finally")
    return "done"


def test_what_finally_calls_is_made_at_the_end_and_not_when_the_execution_rests(well: Any) -> None:
    run = well.start(tidy)
    _wait_until(lambda: run.status() == Status.WAITING)
    assert calls["in finally"] == 0
    run.signal("go")
    assert run.result(WAIT) == "done"
    assert calls["in finally"] == 1


@step
def blocks(number: int) -> int:
    entered.set()
    assert release.wait(WAIT)
    return number


@workflow
async def chain() -> list[int]:
    return [await blocks(1), await blocks(2)]


def test_close_hands_an_execution_back_after_the_step_under_way(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/well.db"
    well = Stepwell(url)
    run = well.start(chain, execution_id="c")
    assert entered.wait(WAIT)
    closing = threading.Thread(target=well.close)
    closing.start()
    release.set()
    closing.join(WAIT)
    with Stepwell(url, worker=False) as reader:
        assert reader.run("c").status() in (Status.WAITING, Status.COMPLETED)
        assert reader.run("c").state().get_step_output("blocks").output == 1
    with Stepwell(url) as other:
        assert other.run("c").result(WAIT) == [1, 2]
    assert run.execution_id == "c"


@workflow
def plain_code(number: int) -> int:
    return plain_step(number)


@step
def plain_step(number: int) -> int:
    return number + 1


def test_plain_workflows_never_wait_for_each_others_threads(tmp_path: Any) -> None:
    with Stepwell(f"sqlite:///{tmp_path}/well.db", concurrency=1) as well:
        assert well.start(plain_code, 1).result(WAIT) == 2
    with Stepwell("memory://", concurrency=80) as well:
        runs = [well.start(plain_code, number) for number in range(160)]
        assert [run.result(WAIT) for run in runs] == list(range(1, 161))


@step(retry=Retry(attempts=1))
async def fails(name: str) -> str:
    calls[name] += 1
    if calls[name] == 1:
        raise ConnectionError(name)
    return name


@workflow
async def handles_one_failure() -> list[str]:
    try:
        first = await fails("first")
    except StepFailed:
        first = await note("instead of first")
    return [first, await fails("second")]


def test_retry_goes_on_from_the_step_that_failed_the_run_and_leaves_what_was_handled(well: Any) -> None:
    run = well.start(handles_one_failure)
    with pytest.raises(ExecutionFailed, match="second"):
        run.result(WAIT)
    run.retry()
    assert run.result(WAIT) == ["instead of first", "second"]
    assert calls == {"first": 1, "instead of first": 1, "second": 2}


def test_patch_in_a_loop_holds_from_the_iteration_on_that_it_came_in(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/well.db"

    @workflow(name="looping")
    async def before() -> None:
        for number in range(4):
            await note(f"old {number}")
            await stepwell.wait_signal("next")

    with Stepwell(url) as well:
        run = well.start(before, execution_id="l")
        run.signal("next")
        _wait_until(lambda: calls["old 1"] == 1 and run.status() == Status.WAITING)

    @workflow(name="looping")
    async def after() -> None:
        for number in range(4):
            await note(f"{'new' if stepwell.patched('p') else 'old'} {number}")
            await stepwell.wait_signal("next")

    with Stepwell(url) as well:
        run = well.run("l")
        for _ in range(3):
            run.signal("next")
        run.result(WAIT)
    assert calls == {"old 0": 1, "old 1": 1, "new 2": 1, "new 3": 1}
    assert after is not before


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{folder}/well.db"])
def test_lost_reply_to_a_commit_of_a_run_is_looked_up_and_nothing_is_done_twice(url: str, tmp_path: Any) -> None:
    lost = iter([False, True, False, True])

    def lose_some(point: str) -> None:
        is_the_workers = threading.current_thread() is not threading.main_thread()
        if point == "store.committed" and is_the_workers and next(lost, False):
            raise ConnectionError("the reply was lost")

    with Stepwell(url.format(folder=tmp_path), lease_seconds=5) as well, fault_points.armed(lose_some):
        run = _started(well)
        assert run.result(WAIT) == ["a", "b"]
        assert calls == {"a": 1, "b": 1}
        assert run.verify().ok


def _started(well: Stepwell) -> Any:
    """Start the run; if the reply to that is lost, again with the same id, which is the same run."""
    while True:
        with suppress(CommitUnknown):
            return well.start(two_notes, execution_id="r")


@workflow
async def two_notes() -> list[str]:
    return [await note("a"), await note("b")]


def _wait_until(is_so: Any) -> None:
    while not is_so():
        threading.Event().wait(0.005)
