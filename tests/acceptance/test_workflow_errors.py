"""Odd errors and odd names: whatever a step raises or is called, its run tells it and goes on as it should."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.acceptance.conftest import working_well

import stepwell
from stepwell import ExecutionFailed, Retry, StepFailed, step, workflow
from stepwell.testing import SkippingClock, TestWell

WAIT = 30
tries: list[str] = []

well = working_well


class WithNames(Exception):
    def __init__(self) -> None:
        super().__init__("with names")
        self.names, self.told = ["a"], {"a": 1}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class NoException(BaseException):
    pass


ERRORS: dict[str, type[BaseException]] = {each.__name__: each for each in (WithNames, Unspeakable, NoException)}


@step(name="errors.raises", retry=Retry(attempts=3, first_seconds=0.01, non_retryable=tuple(ERRORS)))
async def raises(name: str) -> None:
    tries.append(name)
    raise ERRORS[name]()


@step(name="errors.raises_plainly", retry=Retry(attempts=3, first_seconds=0.01, non_retryable=tuple(ERRORS)))
def raises_plainly(name: str) -> None:
    tries.append(name)
    raise ERRORS[name]()


@workflow(name="errors.calls")
async def calls(name: str, is_plain: bool) -> str:
    try:
        await (raises_plainly(name) if is_plain else raises(name))  # pyright: ignore[reportGeneralTypeIssues]
    except StepFailed as error:
        return error.kind
    return "nothing"


@workflow(name="errors.itself")
async def itself(name: str) -> None:
    raise ERRORS[name]()


@workflow(name="errors.plainly_itself")
def plainly_itself(name: str) -> None:
    raise ERRORS[name]()


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("name", ERRORS)
def test_step_that_raises_something_odd_has_failed_by_its_name(well: Any, name: str, is_plain: bool) -> None:
    tries.clear()
    assert well.start(calls, {"name": name, "is_plain": is_plain}).result(WAIT) == name
    assert tries == [name]


@pytest.mark.parametrize("code", [itself, plainly_itself], ids=["async", "plain"])
@pytest.mark.parametrize("name", ERRORS)
def test_workflow_that_raises_something_odd_has_failed_by_its_name(well: Any, name: str, code: Any) -> None:
    with pytest.raises(ExecutionFailed, match=name):
        well.start(code, name).result(WAIT)


@workflow(name="errors.alike")
async def alike() -> list[Any]:
    return [await stepwell.wait_signal("a"), await stepwell.wait_signal("a#2"), await stepwell.wait_signal("a")]


def test_calls_whose_names_look_like_numbers_of_others_have_keys_of_their_own(well: Any) -> None:
    run = well.start(alike)
    for name, value in (("a", 1), ("a#2", 2), ("a", 3)):
        run.signal(name, value)
    assert run.result(WAIT) == [1, 2, 3]


@workflow(name="errors.unwound")
async def unwound() -> str:
    variables = stepwell.current().variables
    try:
        variables["phase"] = "begun"
        await stepwell.wait_signal("go")
    finally:
        variables["phase"] = "done"
    return variables["phase"]


def test_variable_that_is_set_while_the_code_is_unwound_for_a_rest_is_not_set() -> None:
    with TestWell(SkippingClock()) as well:
        run = well.start(unwound)
        well.clock.advance("1m")
        assert run.state().get_variable("phase") == "begun"
        run.signal("go")
        assert run.result(WAIT) == "done"


@step(name="errors.down")
async def down(number: int) -> int:
    await asyncio.sleep(0)
    if tries:
        raise ConnectionError("down")
    return number


@workflow(name="errors.kid")
async def kid(number: int) -> int:
    return await down(number)


@workflow(name="errors.parent")
async def parent() -> list[int]:
    return [await kid(1)]


def test_retry_finds_the_child_that_got_another_id(well: Any) -> None:
    tries[:] = ["down"]
    stranger, run = well.start(kid, 7, execution_id="p:1"), well.start(parent, execution_id="p")
    for each in (stranger, run):
        with pytest.raises(ExecutionFailed):
            each.result(WAIT)
    tries.clear()
    run.retry()
    assert run.result(WAIT) == [1]
    assert stranger.status() == "FAILED"
