"""Answers that come late: an attempt was given up, its retry waits, and then it is heard of after all. The retry is made, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.kernel.driver import Driver

from stepwell import Retry
from stepwell.flow import call, define, subworkflow
from stepwell.kernel.protocol import AttemptFailed, ChildEnded, ChildStarted, Event, RunStep, StartChild, StepCompleted, StepMissing

POLICY = Retry(attempts=3, first_seconds=60, jitter=0)
LATE: dict[str, Callable[[str, str], Event]] = {
    "completed": lambda token_id, key: StepCompleted(token_id, key, b'"late"'),
    "failed": lambda token_id, key: AttemptFailed(token_id, key, {"kind": "ValueError", "message": "late", "code": None}),
    "failed for good": lambda token_id, key: AttemptFailed(
        token_id, key, {"kind": "ValueError", "message": "late", "code": None}, is_final=True
    ),
    "missing": lambda token_id, key: StepMissing(token_id, key, "s"),
}


@pytest.fixture(params=[False, True], ids=["held", "reloaded"])
def reload(request: pytest.FixtureRequest) -> bool:
    """Whether the interpreter is built again from the state while the retry waits."""
    return request.param


def fails_once() -> Callable[[Any], str]:
    """A step whose first attempt fails."""
    errors = [ValueError("not yet")]

    def attempt(_: Any) -> str:
        if errors:
            raise errors.pop()
        return "in time"

    return attempt


def stand(driver: Driver) -> tuple[Any, ...]:
    """All that an event could change."""
    sections = {name: dict(rows) for name, rows in driver.state.sections.items()}
    return sections, driver.commits, driver.kernel.soonest_ms, list(driver.waiting), list(driver.cancelled), driver.end


@pytest.mark.parametrize("late", LATE)
def test_answer_of_an_attempt_that_failed_is_not_taken_while_its_retry_waits(late: str, reload: bool) -> None:
    driver = Driver(define("w", call("s", retry=POLICY)), None, {"s": fails_once()})
    [first] = driver.waiting
    driver.answer()
    if reload:
        driver.restart()
    before = stand(driver)
    came = driver.feed(LATE[late](first.token_id, first.key))
    assert (came.is_taken, came.mutations, came.effects) == (False, (), ())
    assert stand(driver) == before
    assert driver.kernel.soonest_ms == driver.now_ms + 60_000
    driver.advance(60)
    driver.advance(60)
    [second] = driver.waiting
    assert isinstance(second, RunStep)
    assert second.attempt == 2
    assert driver.go().output == "in time"
    assert driver.keys == ["s", "s"]
    assert driver.is_clean()


def test_answer_of_an_attempt_that_failed_is_not_taken_by_the_step_after_it() -> None:
    driver = Driver(define("w", call("s", on_error="continue"), call("t", "on time")), None, {"s": fails_once()})
    [first] = driver.waiting
    driver.answer()
    before = stand(driver)
    assert not driver.feed(StepCompleted(first.token_id, first.key, b'"late"')).is_taken
    assert stand(driver) == before
    assert driver.go().output == "on time"


@pytest.mark.parametrize("news", [{"status": "COMPLETED", "result": {"output": "late"}}, {"status": "CANCELLED", "result": {}}])
def test_child_that_took_too_long_is_not_heard_while_its_retry_waits_nor_after(news: Any, reload: bool) -> None:
    driver = Driver(define("w", subworkflow("child", timeout_seconds=10, retry=POLICY)))
    [first] = driver.waiting
    driver.answer()
    driver.advance(10)
    assert driver.cancelled == ["run:child"]
    if reload:
        driver.restart()
    before = stand(driver)
    started = driver.feed(ChildStarted(first.token_id, first.key))
    assert (started.is_taken, started.mutations, started.effects) == (False, (), ())
    ended = driver.feed(ChildEnded("late", "run:child", news))
    assert (ended.mutations, ended.effects, ended.message_keys) == ((), (), ("late",))
    assert stand(driver) == before
    driver.advance(60)
    [second] = driver.waiting
    assert isinstance(second, StartChild)
    assert second.child_id == "run:child#2"
    driver.answer()
    before = stand(driver)
    driver.feed(ChildEnded("later", "run:child", news))
    assert stand(driver) == before
    driver.child("run:child#2", status="COMPLETED", result={"output": "in time"})
    assert driver.output == "in time"
    assert driver.is_clean()
