"""Hooks: functions of the user before and after changes; one that fails or hangs is cut off, and spoils no commit."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.polling import until

import stepwell
from stepwell import (
    AsyncStepwell,
    Cancel,
    ChangeCancelled,
    ExecutionFailed,
    InvalidInput,
    Modify,
    NotFound,
    ProposedChange,
    Retry,
    Scope,
    Stepwell,
    step,
    workflow,
)
from stepwell.state import hooks as hooks_module

seen: list[Any] = []
stuck = threading.Event()
_cleared = cleared(seen, stuck)


@pytest.fixture
def working(open_well: OpenWell, url: str) -> Any:
    """A well with a worker, on each store, through each face."""
    return open_well(url)


@step(retry=Retry(attempts=2, first_seconds=0.01))
async def stock_up(count: int) -> int:
    stepwell.current().state(Scope.custom("shop")).set("stock", count)
    return count


@workflow(name="hooks.fill")
async def fill(count: int) -> int:
    return await stock_up(count)


@step(retry=Retry(attempts=2, first_seconds=0.01))
async def stumble() -> str:
    seen.append("tried")
    if seen.count("tried") == 1:
        raise OSError("once")
    return "ok"


@workflow(name="hooks.stumble")
async def stumbling() -> str:
    return await stumble()


def no_debt(change: ProposedChange) -> Any:
    if change.key == "stock" and change.action == "set":
        if isinstance(change.value, int) and change.value < 0:
            return Cancel("stock is never negative")
        if isinstance(change.value, int) and change.value > 100:
            return Modify(100)
    return None


def test_hook_lets_a_change_go_on_modifies_or_cancels_it(well: Any):
    well.hooks.before_change(no_debt)
    shop = well.state.custom("shop")
    shop.set("stock", 7)
    assert shop.get("stock") == 7
    shop.set("stock", 700)
    assert shop.get("stock") == 100
    with pytest.raises(ChangeCancelled, match=r"no_debt refused to set key 'stock' .*: stock is never negative"):
        shop.set("stock", -1)
    with pytest.raises(ChangeCancelled):
        shop.set_many({"other": 1, "stock": -1})
    assert shop.all() == {"stock": 100}


def test_cancelled_change_takes_its_whole_transaction_with_it(well: Any):
    well.create("order")
    well.hooks.before_change(no_debt)
    tx = well.transaction("order").begin()
    tx.set_variable("paid", True)
    tx.state(Scope.custom("shop")).set("stock", -1)
    with pytest.raises(ChangeCancelled):
        tx.commit()
    assert well.load("order").variables == {}
    assert well.load("order").revision == 0
    with well.transaction("order") as tx:
        tx.state(Scope.custom("shop")).set("stock", 101)
    assert well.state.custom("shop").get("stock") == 100
    assert well.verify("order").ok


def test_step_whose_change_is_cancelled_fails_and_writes_nothing(working: Any):
    working.hooks.before_change(no_debt)
    with pytest.raises(ExecutionFailed, match="never negative"):
        working.start(fill, -5).result(timeout=30)
    assert working.state.custom("shop").all() == {}
    assert working.start(fill, 500).result(timeout=30) == 500
    assert working.state.custom("shop").get("stock") == 100


def test_hook_of_a_scope_is_called_for_no_other_and_for_no_record_of_stepwells_own(well: Any):
    well.hooks.before_change(seen.append, scope=Scope.custom("shop"))
    well.state.custom("other").set("k", 1)
    well.state.custom("shop").set("k", 1)
    well.state.custom("shop").increment("k", by=2)
    well.state.custom("shop").delete("k")
    well.state.custom("shop").clear()
    well.workspaces.put("acme")
    well.conversations.set("c", {"k": 1})
    assert [(each.action, each.key, each.value) for each in seen] == [
        ("set", "k", 1),
        ("increment", "k", 2),
        ("delete", "k", None),
        ("clear", "", None),
    ]


def test_failing_hook_is_cut_off_and_shown_and_changes_go_on(well: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hooks_module, "_CUT_OFF_SECONDS", 2)

    def broken(_: ProposedChange) -> None:
        seen.append("called")
        raise RuntimeError("no such host")

    hook = well.hooks.before_change(broken)
    shop = well.state.custom("shop")
    for number in range(10):
        shop.set("k", number)
    assert shop.get("k") == 9
    assert (len(seen), hook.failures, hook.is_cut_off) == (3, 3, True)
    health = well.health()
    assert "broken" in health.parts["hooks"]
    assert "no such host" in health.parts["hooks"]
    assert health.is_ok
    until(lambda: not hook.is_cut_off)
    shop.set("k", 10)  # tried again, by one call
    assert (len(seen), hook.is_cut_off) == (4, True)
    hook.remove()
    assert "hooks" not in well.health().parts


def test_hanging_hook_is_cut_off_and_holds_no_commit_up_for_long(well: Any):
    def hang(_: ProposedChange) -> None:
        seen.append("called")
        stuck.wait(60)

    hook = well.hooks.before_change(hang, timeout=0.05)
    shop = well.state.custom("shop")
    for number in range(10):
        shop.set("k", number)
    assert (len(seen), hook.is_cut_off, shop.get("k")) == (3, True, 9)
    assert "longer than 0.05 s" in (hook.last_error or "")
    stuck.set()


@pytest.mark.parametrize("answer", [RuntimeError("down"), 7, Modify(1)])
def test_changes_are_refused_while_a_required_hook_fails(well: Any, answer: Any):
    def gate(_: ProposedChange) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    well.hooks.before_change(gate, is_required=True)
    shop = well.state.custom("shop")
    for _ in range(5):
        with pytest.raises(ChangeCancelled, match="nothing was written"):
            shop.delete("k")
    if isinstance(answer, Modify):
        return
    with pytest.raises(ChangeCancelled):
        shop.set("k", 1)
    assert shop.all() == {}


def test_value_that_a_hook_makes_is_checked_like_any_other(well: Any):
    well.hooks.before_change(lambda _: Modify(float("nan")))
    with pytest.raises(InvalidInput):
        well.state.custom("shop").set("k", 1)
    assert well.state.custom("shop").all() == {}


def test_observer_is_told_of_what_has_landed_and_of_nothing_else(well: Any):
    well.hooks.after_change(seen.append)
    well.hooks.before_change(no_debt)
    shop = well.state.custom("shop")
    with pytest.raises(ChangeCancelled):
        shop.set("stock", -1)
    shop.set("stock", 500)
    well.create("order")
    with well.transaction("order") as tx:
        tx.state(Scope.custom("shop")).set("sold", 1)
    until(lambda: len(seen) == 2)
    assert [(each.key, each.value, each.execution_id) for each in seen] == [("stock", 100, None), ("sold", 1, "order")]


def test_observers_are_told_of_executions_and_of_each_attempt_at_a_step(working: Any):
    runs: list[Any] = []
    steps: list[Any] = []
    working.hooks.on_execution(runs.append)
    working.hooks.on_step(steps.append)
    run = working.start(stumbling)
    assert run.result(timeout=30) == "ok"
    until(lambda: len(runs) == 2 and len(steps) == 4)
    assert [(each.kind, each.execution_id, each.workflow_id, each.status) for each in runs] == [
        ("started", run.execution_id, "hooks.stumble", "RUNNING"),
        ("ended", run.execution_id, "hooks.stumble", "COMPLETED"),
    ]
    assert [(each.kind, each.step, each.attempt, each.error) for each in steps] == [
        ("started", "stumble", 1, None),
        ("ended", "stumble", 1, "OSError: once"),
        ("started", "stumble", 2, None),
        ("ended", "stumble", 2, None),
    ]


@step(name="hooks.mute")
def mute() -> None:
    raise Mute


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@workflow(name="hooks.muted")
async def muted() -> None:
    await mute()


def test_error_that_cannot_be_shown_fails_its_step_and_is_told(working: Any):
    """An observer, or the text of an error, must not replace the failure of a step by one of the run."""
    told: list[Any] = []
    working.hooks.on_step(told.append)
    run = working.start(muted)
    with pytest.raises(ExecutionFailed, match=r"step 'hooks\.mute' failed: Mute: what it says cannot be shown"):
        run.result(timeout=30)
    until(lambda: len(told) == 2)
    assert told[1].error == "Mute: what it says cannot be shown"


def test_slow_observer_delays_no_writer_and_what_it_cannot_take_is_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hooks_module, "_MOST_WAITING", 5)
    with Stepwell("memory://", worker=False) as well:
        well.hooks.after_change(lambda _: stuck.wait(60), timeout=50)
        shop = well.state.custom("shop")
        for number in range(20):
            shop.set("k", number)
        assert shop.get("k") == 19
        assert well.hooks.dropped >= 14
        assert "dropped" in well.health().parts["hooks"]
        stuck.set()


@pytest.mark.parametrize("wrong", [7, "f", None])
def test_what_is_no_function_is_refused(well: Any, wrong: Any):
    async def waits(_: object) -> None: ...

    for function in (wrong, waits):
        with pytest.raises(InvalidInput, match="plain function"):
            well.hooks.before_change(function)
    with pytest.raises(InvalidInput):
        well.hooks.after_change(print, timeout=0)
    with pytest.raises(InvalidInput):
        well.hooks.after_change(print, scope="shop")
    assert well.hooks.list() == ()


def test_commit_that_is_sent_again_returns_its_receipt_even_if_a_hook_refuses_by_now(well: Any):
    well.create("order")

    def put(value: int) -> Any:
        tx = well.transaction("order", commit_id="once")
        with tx:
            tx.state(Scope.custom("shop")).set("stock", value)
        return tx.receipt

    first = put(7)
    well.hooks.before_change(lambda _: Cancel("closed"))
    assert put(7).digest == first.digest
    with pytest.raises(NotFound):
        well.load("nothing")


def test_hook_that_waits_for_the_event_loop_does_not_hold_it_up(url: str):
    async def main() -> list[bool]:
        async with AsyncStepwell(url, worker=False) as well:
            released, answers = threading.Event(), list[bool]()
            well.hooks.before_change(lambda _: answers.append(released.wait(5)), timeout=10)

            async def release() -> None:
                await asyncio.sleep(0.01)
                released.set()

            await well.create("one")
            task = asyncio.create_task(release())
            await well.state.globals.set("k", 1)
            await task
            released.clear()
            task = asyncio.create_task(release())
            async with well.transaction("one") as tx:
                tx.state(Scope.globals()).set("k", 2)
            await task
            return answers

    assert asyncio.run(main()) == [True, True]
