"""Messages of runs: which limit ended them, how far they came, and which answers they refuse."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from typing import Any

import pytest
from tests.acceptance.faces import Awaited

import stepwell
from stepwell import (
    Answer,
    ExecutionCancelled,
    ExecutionFailed,
    Governance,
    InvalidInput,
    ItemStatus,
    LeaseLost,
    Status,
    Stepwell,
    step,
    workflow,
)
from stepwell.flow import approval, call, define, sequence
from stepwell.flow import signal as signal_node
from stepwell.model.queue_item import ClaimItems
from stepwell.testing.store_access import write_unit_or_raise

WAIT = 20


@pytest.fixture
def well(working_well: Stepwell) -> Stepwell:
    """A well that works by the machine's clock."""
    return working_well


@step(name="messages.asks_for")
async def asks_for(what: str) -> None:
    places: dict[str, Any] = {"text": "global", "none": None, "number": 5}
    stepwell.current().state(places[what])


@workflow(name="messages.asks")
async def asks(what: str) -> None:
    await asks_for(what)


@pytest.mark.parametrize("what", ["text", "none", "number"])
def test_state_of_anything_but_a_scope_is_refused_with_what_to_write(well: Any, what: str) -> None:
    with pytest.raises(ExecutionFailed, match="a scope is a Scope or"):
        well.start(asks, what).result(WAIT)


@pytest.mark.parametrize("decorate", [step, workflow])
def test_a_method_is_refused_as_step_or_workflow(decorate: Any) -> None:
    def charge(self: Any, cents: int) -> int:
        return cents

    charge.__qualname__ = "Shop.charge"
    with pytest.raises(InvalidInput, match=r"'Shop\.charge' is a method"):
        decorate(charge)


def test_a_bound_method_is_refused_as_step() -> None:
    class Shop:
        def charge(self, cents: int) -> int:
            return cents

    with pytest.raises(InvalidInput, match="is a method"):
        step(Shop().charge)


def test_a_static_method_can_be_a_step() -> None:
    class Shop:
        @staticmethod
        @step
        def charge(cents: int) -> int:
            return cents

    assert Shop.charge(3) == Shop().charge(3) == 3


def answer(state: dict[str, Any], message: Any) -> Any:
    return Answer(message)


async def async_answer(state: dict[str, Any], message: Any) -> Any:
    return Answer(message)


def test_turn_function_of_the_other_face_is_refused_and_nothing_saved(well: Any) -> None:
    other, needed = (answer, "async def") if isinstance(well, Awaited) else (async_answer, "plain def")
    with pytest.raises(InvalidInput, match=f"the function of a turn is {needed} here"):
        well.conversations.turn("c", other, "hello")
    assert well.conversations.history("c") == []


def test_turn_function_may_be_any_callable_of_its_kind(well: Any) -> None:
    own = async_answer if isinstance(well, Awaited) else answer
    assert well.conversations.turn("c", functools.partial(own), "hello").reply == "hello"


@step(name="messages.fine")
async def fine() -> None:
    pass


@step(name="messages.broken")
async def broken() -> None:
    raise ValueError("broken")


@pytest.mark.parametrize(("nodes", "least"), [(1, 0), (2, 50), (4, 75)])
def test_failed_run_is_not_at_100_per_cent(well: Any, nodes: int, least: float) -> None:
    before = [call("messages.fine", name=f"n{number}") for number in range(nodes - 1)]
    run = well.start(define(f"messages-percent-{nodes}", sequence(*before, call("messages.broken"))))
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert (run.status(), run.progress().percent) == (Status.FAILED, least)


@workflow(name="messages.slow", timeout=0.1)
async def slow() -> None:
    await stepwell.wait_signal("go")


@workflow(name="messages.patient")
async def patient() -> None:
    await stepwell.wait_signal("go")


@workflow(name="messages.waits")
async def waits() -> None:
    await stepwell.wait_signal("go", timeout=0.05)


@step(name="messages.long", timeout_seconds=0.05)
async def long() -> None:
    await asyncio.Event().wait()


@workflow(name="messages.calls_long")
async def calls_long() -> None:
    await long()


declared_slow = define("messages-slow", signal_node("go"), timeout=0.1)

OVER: list[tuple[Any, dict[str, Any], str]] = [
    (slow, {}, r"the run took longer than 0\.1 s, its timeout"),
    (declared_slow, {}, r"the run took longer than 0\.1 s, its timeout"),
    (patient, {"governance": Governance(seconds=0.1)}, r"the run took longer than 0\.1 s, the budget Governance\(seconds=...\)"),
    (waits, {}, r"signal 'go' did not come within 0\.05 s, the timeout of wait_signal"),
    (calls_long, {}, r"step 'messages.long' took longer than 0\.05 s, its timeout_seconds"),
]


@pytest.mark.parametrize(("way", "options", "message"), OVER)
def test_timeout_says_which_limit_it_was_and_how_long(well: Any, way: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ExecutionFailed, match=message):
        well.start(way, **options).result(WAIT)


def test_caller_that_waits_no_longer_hears_how_long_it_waited(well: Any) -> None:
    with pytest.raises(TimeoutError, match=r"is still (RUNNING|WAITING) after timeout=0\.05 s"):
        well.start(patient).result(0.05)


def test_caller_that_waits_no_longer_for_an_item_hears_why_it_waits(well: Any) -> None:
    well.queue.pause()
    with pytest.raises(TimeoutError, match=r"is still QUEUED after timeout=0\.05 s; .* waits: queue 'default' is paused"):
        well.enqueue(patient).result(0.05)
    well.queue.resume()
    with pytest.raises(TimeoutError, match=r"is still (RUNNING|WAITING) after timeout=2 s; "):
        well.enqueue(patient).result(2)


def test_run_that_a_late_approval_cancelled_says_so(well: Any) -> None:
    with pytest.raises(ExecutionCancelled, match=r"was cancelled: approval 'boss' was not answered within 0\.05 s"):
        well.start(define("messages-late", approval("Large order", name="boss", timeout=0.05))).result(WAIT)
    run = well.start(patient)
    run.cancel()
    with pytest.raises(ExecutionCancelled, match=r"was cancelled \["):
        run.result(WAIT)


def test_lock_that_was_lost_has_the_name_that_its_user_gave_it(well: Any) -> None:
    with pytest.raises(LeaseLost, match=r"^lock 'night/ly' expired"):
        well.locks.renew("night/ly", workspace="acme", holder="ada", fence=1)
    well.create("books")
    for lock, title in (
        (well.lock("a/b"), "lock 'a/b'"),
        (well.conversations.lock("c1"), "conversation 'c1'"),
        (well.scheduled_lock("job", at_most=60), "scheduled lock 'job'"),
    ):
        held = lock.acquire()
        lock.release()
        lock.acquire()
        with pytest.raises(LeaseLost, match=rf"^{title} was lost; nothing was written"):
            well.transaction("books", lock=held).commit()


def test_item_whose_attempts_were_cut_short_does_not_say_that_it_never_started(url: str) -> None:
    with Stepwell(url, worker=False) as well:
        item = well.enqueue(slow, max_attempts=2)
        while item.state().status is not ItemStatus.FAILED:
            write_unit_or_raise(well, ClaimItems("dead", 0.001, 1))
            well.queue.recover()
        with pytest.raises(ExecutionFailed, match=r"failed after 2 attempts without a commit: the worker .* died"):
            item.result(WAIT)


SCRIPT = """
import os, signal
import stepwell
from stepwell import Stepwell, workflow

@workflow
def waits() -> None:
    stepwell.wait_signal("approve")

with Stepwell("memory://") as well:
    run = well.start(waits, execution_id="order-7")
    while not run.progress().offers:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    run.result()
"""


ASYNC_SCRIPT = """
import asyncio, os, signal
import stepwell
from stepwell import AsyncStepwell, workflow

@workflow
async def waits() -> None:
    await stepwell.wait_signal("approve")

async def main() -> None:
    async with AsyncStepwell("memory://") as well:
        run = await well.start(waits, execution_id="order-7")
        while not (await run.progress()).offers:
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        await run.result()

asyncio.run(main())
"""


def test_interrupted_async_script_says_what_it_waited_for_beside_the_cancelled_call() -> None:
    done = subprocess.run([sys.executable, "-c", ASYNC_SCRIPT], capture_output=True, text=True, check=False)
    cancelled, interrupted = done.stderr.split("During handling of the above exception")
    assert "it waits for signal 'approve'" in cancelled.strip().splitlines()[-1]
    assert interrupted.strip().endswith("KeyboardInterrupt")


def test_interrupted_script_says_what_it_waited_for_and_how_to_go_on() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("execution 'order-7' is WAITING: it waits for signal 'approve'")
    assert last.endswith("follow it with: stepwell watch order-7")
