"""Children of workflows: cancelled, retried and forked with their parents, under ids that are theirs alone."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from hashlib import sha256
from typing import Any

import pytest
from tests.acceptance.conftest import working_well
from tests.support.module_state import cleared

import stepwell
from stepwell import ExecutionCancelled, ExecutionFailed, InvalidInput, Limits, Status, Stepwell, step, workflow
from stepwell.flow import call, define, sequence, signal, subworkflow
from stepwell.runtime.inbox import CHILD, delivery, fresh_key
from stepwell.testing.store_access import write_unit_or_raise

well = working_well

WAIT = 60
calls: Counter[str] = Counter()
is_broken = threading.Event()


_cleared = cleared(calls, is_broken)


@step
async def count(name: str) -> str:
    calls[name] += 1
    return name


@step
async def fragile(name: str) -> str:
    calls[name] += 1
    if is_broken.is_set():
        raise ConnectionError("broken")
    return name


@workflow
async def leaf(name: str) -> str:
    try:
        return await stepwell.wait_signal("go")
    except ExecutionCancelled:
        await count(f"{name} cleaned up")
        raise


@workflow
async def endless(level: int) -> int:
    return await endless(level + 1)


def test_function_that_calls_itself_without_end_is_stopped_by_a_limit() -> None:
    with Stepwell("memory://", limits=Limits(child_depth=3)) as well:
        run = well.start(endless, 0)
        with pytest.raises(ExecutionFailed, match="ExecutionFailed"):
            run.result(WAIT)
        assert len(well.executions.list()) == 4


def test_definition_that_calls_itself_without_end_is_stopped_by_a_limit() -> None:
    with Stepwell("memory://", limits=Limits(child_depth=3)) as well:
        well.definitions.put(define("endless-twin", subworkflow("endless-twin", name="again")))
        run = well.start("endless-twin", 0)
        with pytest.raises(ExecutionFailed, match="ExecutionFailed"):
            run.result(WAIT)
        deepest = max(well.executions.list(), key=lambda each: each.execution_id.count(":"))
        assert "child_depth=3" in well.load(deepest.execution_id).result["error"]["message"]
        assert len(well.executions.list()) == 4


@workflow
async def middle(name: str) -> str:
    return await leaf(name)


@workflow
async def root(names: list[str]) -> list[str]:
    return await stepwell.map(middle, names)


def test_cancelling_a_parent_reaches_its_children_and_theirs(well: Any) -> None:
    """T40: one message each, down the whole tree."""
    run = well.start(root, ["a", "b"], execution_id="r")
    leaves = ["r:1/1:1", "r:2/1:1"]
    _wait_until(lambda: _status(well, *leaves) == [Status.WAITING] * 2)
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)
    for each in ["r:1/1", "r:2/1", *leaves]:
        with pytest.raises(ExecutionCancelled):
            well.run(each).result(WAIT)
    assert calls == {"a cleaned up": 1, "b cleaned up": 1}


def test_cancel_reaches_children_though_no_worker_was_there_when_it_came(file_url: str) -> None:
    """T40: the next session passes it on, whoever runs it, and once."""
    with Stepwell(file_url) as first:
        first.start(root, ["a"], execution_id="r")
        _wait_until(lambda: _status(first, "r", "r:1/1:1") == [Status.WAITING] * 2)
    with Stepwell(file_url, worker=False) as sender:
        sender.run("r").cancel()
    with Stepwell(file_url) as second:
        for each in ("r", "r:1/1", "r:1/1:1"):
            with pytest.raises(ExecutionCancelled):
                second.run(each).result(WAIT)
        sent = [str(receipt.mutations).count("'cancel'") for each in ("r", "r:1/1") for receipt in second.receipts(each)]
    assert calls == {"a cleaned up": 1}
    assert sum(sent) == 2


@workflow
async def tidy(name: str) -> str:
    try:
        return await leaf(name)
    except ExecutionCancelled:
        await stepwell.wait_signal("swept")
        raise


def test_children_learn_of_it_at_once_though_their_parent_takes_its_time(well: Any) -> None:
    run = well.start(tidy, "a", execution_id="t")
    _wait_until(lambda: _status(well, "t:1") == [Status.WAITING])
    run.cancel()
    with pytest.raises(ExecutionCancelled):
        well.run("t:1").result(WAIT)
    assert run.status() in (Status.RUNNING, Status.WAITING)
    run.signal("swept")
    with pytest.raises(ExecutionCancelled):
        run.result(WAIT)


@workflow
async def gives_up(name: str) -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf(name))
        group.create_task(fails_soon(name))
    return name


@workflow
async def fails_soon(name: str) -> str:
    await stepwell.wait_signal("fail")
    raise ValueError("enough")


def test_children_of_a_parent_that_failed_are_cancelled_since_nobody_waits_for_them(well: Any) -> None:
    run = well.start(gives_up, "a", execution_id="g")
    _wait_until(lambda: _status(well, "g:1", "g:2") == [Status.WAITING] * 2)
    well.run("g:2").signal("fail")
    with pytest.raises(ExecutionFailed, match="enough"):
        run.result(WAIT)
    with pytest.raises(ExecutionCancelled):
        well.run("g:1").result(WAIT)


@workflow
async def grandchild(name: str) -> str:
    return await fragile(name)


@workflow
async def child(name: str) -> str:
    return await count("child") + await grandchild(name)


@workflow
async def parent(name: str) -> str:
    return await count("parent") + await child(name)


def test_retrying_a_parent_retries_the_child_that_failed(well: Any) -> None:
    is_broken.set()
    run = well.start(parent, "x", execution_id="p")
    with pytest.raises(ExecutionFailed, match="broken"):
        run.result(WAIT)
    is_broken.clear()
    run.retry()
    assert run.result(WAIT) == "parentchildx"
    assert calls == {"parent": 1, "child": 1, "x": 2}
    assert all(well.verify(each).ok for each in ("p", "p:2", "p:2:2"))


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_child_told_before_it_was_retried_is_not_heard_again(times: int) -> None:
    """A parent that saw by itself how its child ended has left the child's message in its inbox."""
    with Stepwell("memory://") as well:
        is_broken.set()
        run = well.start(parent, "x", execution_id="p")
        with pytest.raises(ExecutionFailed, match="broken"):
            run.result(WAIT)
        news = well.load("p").step("child").output
        for _ in range(times):
            write_unit_or_raise(well, delivery("p", "default", CHILD, "p:2", news, fresh_key("old")))
        is_broken.clear()
        run.retry()
        assert run.result(WAIT) == "parentchildx"


def test_child_that_failed_again_fails_its_parent_again(well: Any) -> None:
    is_broken.set()
    run = well.start(parent, "x", execution_id="p")
    for attempt in range(2):
        with pytest.raises(ExecutionFailed, match="broken"):
            run.result(WAIT)
        assert calls["x"] == attempt + 1
        run.retry()
        _wait_until(lambda: calls["x"] == attempt + 2)  # noqa: B023 - looked at inside the loop


def test_id_that_a_user_took_is_left_to_him(well: Any) -> None:
    """T46: an execution that is no child of the caller is never taken for one."""
    other = well.start(leaf, "user", execution_id="p:2")
    run = well.start(parent, "x", execution_id="p")
    assert run.result(WAIT) == "parentchildx"
    assert well.load("p:2~1").identity.parent_id == "p"
    assert other.status() != Status.COMPLETED
    other.signal("go", "mine")
    assert other.result(WAIT) == "mine"


def test_children_far_down_have_ids_that_are_short_enough(well: Any) -> None:
    run = well.start(parent, "x", execution_id="p" * 511)
    assert run.result(WAIT) == "parentchildx"


@workflow
async def counts_thrice() -> list[str]:
    first = await count("first")
    second = await count("second")
    return [first, second, await stepwell.wait_signal("go")]


def test_fork_of_a_run_goes_on_from_the_revision(well: Any) -> None:
    """B7: a new run from the middle of another, which is left as it is."""
    run = well.start(counts_thrice, execution_id="original")
    run.signal("go", "old")
    assert run.result(WAIT) == ["first", "second", "old"]
    after_first = next(each.revision for each in run.receipts() if "first" in str(each.mutations))
    well.fork("original", "copy", at=after_first)
    copy = well.run("copy")
    copy.signal("go", "new")
    assert copy.result(WAIT) == ["first", "second", "new"]
    assert calls == {"first": 1, "second": 2}
    assert run.result(WAIT) == ["first", "second", "old"]


@workflow
async def counts_what_it_is_told(first: str, second: str) -> list[str]:
    told = await count(first)
    answer = await stepwell.wait_signal("go")
    return [told, await count(second), answer, stepwell.current().variables.get("note", "none")]


declared_counts = define(
    "counts_declared",
    sequence(
        call("count", {"name": "{{ trigger.input.first }}"}, name="one"),
        signal("go"),
        call("count", {"name": "{{ trigger.input.second }}"}, name="two"),
    ),
    input_schema={"type": "object", "required": ["first", "second"]},
)


@pytest.mark.parametrize("of", [counts_what_it_is_told, declared_counts], ids=["function", "declared"])
def test_fork_with_another_input_keeps_what_is_recorded_and_uses_it_for_the_rest(well: Any, of: Any) -> None:
    well.start(of, {"first": "a", "second": "b"}, execution_id="original")
    _wait_until(lambda: _status(well, "original") == [Status.WAITING])
    with pytest.raises(InvalidInput):
        well.fork("original", "refused", input={"first": "c"})
    well.fork("original", "edited", input={"first": "c", "second": "d"}, variables={"note": "by hand"})
    run = well.run("edited")
    run.signal("go", "yes")
    result = run.result(WAIT)
    assert calls == {"a": 1, "d": 1}
    if of is counts_what_it_is_told:
        assert result == ["a", "d", "yes", "by hand"]
    assert well.load("original").trigger == {"first": "a", "second": "b"}
    assert well.verify("edited").ok


def test_fork_of_a_parent_has_children_of_its_own(well: Any) -> None:
    run = well.start(middle, "a", execution_id="m")
    _wait_until(lambda: _status(well, "m:1") == [Status.WAITING])
    well.fork("m", "n")
    _wait_until(lambda: _status(well, "n:1") == [Status.WAITING])
    well.run("n").cancel()
    with pytest.raises(ExecutionCancelled):
        well.run("n:1").result(WAIT)
    well.run("m:1").signal("go", "still here")
    assert run.result(WAIT) == "still here"


DECLARED = define("declared-middle", subworkflow("leaf"))
WAYS = pytest.mark.parametrize(("way", "call"), [(middle, "1"), (DECLARED, "leaf")], ids=["function", "declared"])


def wait_and_fork(url: str, way: Any, call: str, fork_id: str) -> Stepwell:
    """A run ``m:7`` that waits for its child, and its fork, which nobody has taken up: all its tokens are the original's."""
    with Stepwell(url) as first:
        first.start(way, "a", execution_id="m:7")
        _wait_until(lambda: _status(first, "m:7", f"m:7:{call}") == [Status.WAITING] * 2)
    well = Stepwell(url, worker=False)
    well.fork("m:7", fork_id)
    return well


def goes_on(well: Stepwell, call: str) -> bool:
    """Whether the original's child waits as before, and its end is the original's."""
    well.run(f"m:7:{call}").signal("go", "still here")
    return well.run("m:7").result(WAIT) == "still here" and calls == {}


@pytest.mark.parametrize("fork_id", ["n", "m"], ids=["of another name", "of a name that the original's begins with"])
@WAYS
def test_child_of_the_original_goes_on_when_a_fork_is_cancelled_before_it_began(
    file_url: str, way: Any, call: str, fork_id: str
) -> None:
    with wait_and_fork(file_url, way, call, fork_id) as sender:
        sender.run(fork_id).cancel()
    with Stepwell(file_url) as well:
        with pytest.raises(ExecutionCancelled):
            well.run(fork_id).result(WAIT)
        assert goes_on(well, call)


@WAYS
def test_child_of_the_original_goes_on_when_a_fork_is_given_up_before_it_began(file_url: str, way: Any, call: str) -> None:
    with wait_and_fork(file_url, way, call, "n") as sender, sender.transaction("n") as tx:
        tx.set_metadata({"$crashes": {"counts": {"tell": 3}}})
    with Stepwell(file_url) as well:
        with pytest.raises(ExecutionFailed, match="WorkerCrashed"):
            well.run("n").result(WAIT)
        assert goes_on(well, call)


@WAYS
def test_parent_whose_id_is_as_long_as_it_may_be_has_children(well: Any, way: Any, call: str) -> None:
    """With its own id and the call's in it, a child's would be too long."""
    run = well.start(way, "a", execution_id="m" * 512)
    child_id = f"{sha256(run.execution_id.encode()).hexdigest()}:{call}"
    _wait_until(lambda: _status(well, child_id) == [Status.WAITING])
    well.run(child_id).signal("go", "still here")
    assert run.result(WAIT) == "still here"


def _status(well: Any, *names: str) -> list[Any]:
    try:
        return [well.run(name).status() for name in names]
    except stepwell.NotFound:
        return []


def _wait_until(is_so: Any) -> None:
    """Look again and again until something is so; the test's own time limit ends it."""
    while not is_so():
        threading.Event().wait(0.005)


@workflow
async def with_default(number: int | None = 5) -> int | None:
    return number


@workflow
async def with_a_number(number: int = 5) -> int:
    return number


@workflow
async def calls_with_none() -> list[int | None]:
    given = [await with_default(None), await with_default(number=None), await with_default(), await with_default(7)]
    return given + await stepwell.map(with_default, [None, 8])


@workflow
async def calls_wrongly() -> int:
    return await with_a_number(None)  # pyright: ignore[reportArgumentType] - that is the point


def test_none_that_is_given_to_a_child_is_not_its_default(well: Stepwell) -> None:
    assert well.start(calls_with_none).result(WAIT) == [None, None, 5, 7, None, 8]
    with pytest.raises(ExecutionFailed, match="does not fit its parameter 'number'"):
        well.start(calls_wrongly).result(WAIT)
