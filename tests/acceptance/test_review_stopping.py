"""Code that orders everything to stop (exits, cancels itself, lets a ``StopIteration`` through) fails its run, and no other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared

import stepwell
from stepwell import ExecutionFailed, Stepwell, step, workflow
from stepwell.flow import call, define


async def _give_up() -> None:
    doomed = asyncio.ensure_future(asyncio.sleep(60))
    doomed.cancel()
    await doomed


def _cancelled_future() -> None:
    future: Future[None] = Future()
    future.cancel()
    future.result()


def _raise(error: BaseException) -> None:
    raise error


WAIT = 30
begun: list[str] = []
_cleared = cleared(begun)
PLAIN: dict[str, Callable[[], Any]] = {
    "SystemExit": lambda: sys.exit(3),
    "StopIteration": lambda: next(iter(())),
    "GeneratorExit": lambda: _raise(GeneratorExit()),
    "BaseExceptionGroup": lambda: _raise(BaseExceptionGroup("some", [GeneratorExit()])),
    "CancelledError": _cancelled_future,
}
ASYNC = [kind for kind in PLAIN if kind != "StopIteration"]


@step
def plain_step(kind: str) -> None:
    PLAIN[kind]()


@step
async def async_step(kind: str) -> None:
    await _give_up() if kind == "CancelledError" else PLAIN[kind]()


@workflow
async def calls_plain(kind: str) -> None:
    await plain_step(kind)


@workflow
async def calls_async(kind: str) -> None:
    await async_step(kind)


@workflow
def is_plain(kind: str) -> None:
    PLAIN[kind]()


@workflow
async def is_async(kind: str) -> None:
    await _give_up() if kind == "CancelledError" else PLAIN[kind]()


@workflow
async def fine(number: int) -> int:
    return number


@pytest.fixture
def well(open_well: OpenWell) -> Stepwell:
    return open_well("memory://")


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("code", [calls_plain, is_plain], ids=["step", "workflow"])
def test_plain_code_that_orders_a_stop_fails_its_run_only(well: Stepwell, code: Any, kind: str) -> None:
    """T38: the hang of one is nobody else's."""
    with pytest.raises(ExecutionFailed, match=kind):
        well.start(code, kind).result(WAIT)
    assert well.start(fine, 1).result(WAIT) == 1


@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("code", [calls_async, is_async], ids=["step", "workflow"])
def test_async_code_that_orders_a_stop_fails_its_run_only(well: Stepwell, code: Any, kind: str) -> None:
    """T38: the worker serves the others."""
    with pytest.raises(ExecutionFailed, match=kind):
        well.start(code, kind).result(WAIT)
    assert well.start(fine, 1).result(WAIT) == 1


@pytest.mark.parametrize(("uses", "kind"), [*(("plain_step", each) for each in PLAIN), *(("async_step", each) for each in ASYNC)])
def test_step_of_a_definition_that_orders_a_stop_fails_its_run_only(well: Stepwell, uses: str, kind: str) -> None:
    """T38: the same for declared workflows."""
    with pytest.raises(ExecutionFailed, match=kind):
        well.start(define(f"stops_{uses}_{kind}", call(uses, kind))).result(WAIT)
    assert well.start(fine, 1).result(WAIT) == 1


# In tasks that the code starts: asyncio ends its loop with some of these errors, and Python the coroutines with another.


async def _stop(kind: str) -> None:
    PLAIN[kind]()


@step
async def slow() -> None:
    begun.append("slow")
    await asyncio.sleep(1.5)


@step
async def step_with_a_task(kind: str) -> None:
    await asyncio.gather(_stop(kind), asyncio.sleep(0.5))


@workflow
async def task_beside_a_step(kind: str) -> None:
    await asyncio.gather(_stop(kind), slow())


@workflow
async def step_beside_a_step(kind: str) -> None:
    await asyncio.gather(step_with_a_task(kind), slow())


@workflow
async def stops_in_a_map(kind: str) -> None:
    await stepwell.map(_stop, [kind, kind])


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
@pytest.mark.parametrize("code", [task_beside_a_step, step_beside_a_step, stops_in_a_map])
def test_task_that_orders_a_stop_fails_its_run_only(code: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLAIN, "KeyboardInterrupt", lambda: _raise(KeyboardInterrupt()))
    with Stepwell("memory://", lease_seconds=1) as well:
        with pytest.raises(ExecutionFailed, match=kind):
            well.start(code, kind).result(WAIT)
        assert well.start(fine, 1).result(WAIT) == 1
    assert begun in ([], ["slow"]), "the step beside it is not made again"


@pytest.mark.parametrize("kind", ["SystemExit", "GeneratorExit"])
def test_map_that_orders_a_stop_fails_its_run_only_on_a_loop_of_the_user(well: Stepwell, kind: str) -> None:
    with pytest.raises(ExecutionFailed, match=kind):
        well.start(stops_in_a_map, kind).result(WAIT)
    assert well.start(fine, 1).result(WAIT) == 1
