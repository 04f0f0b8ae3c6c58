"""Planned commits: which events share a commit, what is tried after a refusal, and what a rebuilt kernel hears again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw
from tests.unit.kernel.driver import T0, Driver

from stepwell import Retry
from stepwell.flow import Definition, call, define, loop, parallel, set_variables, signal
from stepwell.kernel.commit_planner import CommitPlanner, EffectDone, PlannedCommit, Refusal, failed_end
from stepwell.kernel.plan import Plan
from stepwell.kernel.protocol import AttemptFailed, Began, RunStep, SignalArrived, StepCompleted, TimePassed
from stepwell.model.execution_state import ExecutionState, State
from stepwell.model.limits import Limits
from stepwell.model.mutation import Create, RecordStep, SetStatus, SetTrigger
from stepwell.model.record import Metadata, encode_record, encode_trigger
from stepwell.model.validation import plan as plan_batch

TOO_LARGE = Refusal({"kind": "LimitExceeded", "message": "too large", "code": "SW-105", "is_retryable": False}, ("LimitExceeded",))


def fresh_state(definition: Definition) -> State:
    state = State()
    who = Metadata("run", "default", definition.name, definition.version, datetime(2026, 1, 1, tzinfo=UTC))
    commit(state, [Create(Raw(encode_record(who)), Raw(b"{}")), SetTrigger(Raw(encode_trigger(None))), SetStatus("RUNNING")])
    return state


def commit(state: State, batch: list[Any]) -> State:
    plan_batch(state, batch, Limits()).apply()
    return state


def copy_of(state: State) -> State:
    return State.of(state.copy_entries(), state.revision, state.receipt, state.accumulator)


class Driving:
    """An execution whose commits are made by hand."""

    def __init__(self, definition: Definition, **options: Any) -> None:
        self.state = fresh_state(definition)
        self.planner = CommitPlanner(Plan(definition), self.state, Limits(), **options)
        self.planner.begin()

    def next(self) -> PlannedCommit:
        planned = self.planner.next(T0)
        assert planned is not None
        return planned

    def land(self) -> list[Any]:
        planned = self.next()
        if planned.batch():
            commit(self.state, planned.batch())
        return self.planner.landed(self.state)

    def finish(self, asked: RunStep, output: bytes = b"1") -> None:
        self.planner.add(EffectDone(StepCompleted(asked.token_id, asked.key, output, attempt=asked.attempt)))


def recorded(planned: PlannedCommit) -> list[str]:
    return [each.name for each in planned.mutations if isinstance(each, RecordStep)]


@pytest.mark.parametrize("how", ["completed", "failed"])
def test_answer_of_an_earlier_attempt_is_not_taken_for_the_next_one(how: str) -> None:
    driver = Driver(define("w", call("s", retry=Retry(attempts=3, first_seconds=1, jitter=0))))
    [first] = driver.waiting
    error: dict[str, Any] = {"kind": "ValueError", "message": "", "code": None}
    driver.feed(AttemptFailed(first.token_id, first.key, error, attempt=1))
    driver.advance(1)
    second = driver.waiting[-1]
    assert (second.key, second.attempt) == ("s", 2)
    late = StepCompleted("s", "s", b"1") if how == "completed" else AttemptFailed("s", "s", error, attempt=1)
    assert not driver.feed(late).is_taken
    assert driver.feed(StepCompleted(second.token_id, second.key, b"2", attempt=2)).is_taken
    assert driver.output == 2


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_long_work_without_steps_is_cut_into_commits(is_rebuilt: bool) -> None:
    body = set_variables(n="{{ variables.n + 1 }}")
    driving = Driving(define("w", set_variables(n=0), loop(body, count=200), output="{{ variables.n }}"), slice_size=20)
    commits = 0
    while not driving.planner.is_over:
        driving.land()
        commits += 1
        if is_rebuilt:  # as after a crash between two slices
            driving.planner = CommitPlanner(driving.planner.kernel.plan, driving.state, Limits(), slice_size=20)
            driving.planner.begin()
        assert commits < 1_000
        if driving.state.sections["status"][""] == b'"COMPLETED"':
            break
    assert 10 < commits < 100
    assert ExecutionState(driving.state).result == {"output": 200}


def test_events_that_gathered_share_a_commit() -> None:
    driving = Driving(define("w", parallel(a=call("s"), b=call("s"))))
    for asked in driving.land():
        driving.finish(asked)
    planned = driving.next()
    assert planned.end is not None
    assert len(recorded(planned)) == 3


def test_refused_output_fails_its_own_attempt_and_no_other() -> None:
    driving = Driving(define("w", parallel(a=call("s"), b=call("s", on_error="continue"))))
    good, bad = driving.land()
    driving.finish(good)
    driving.finish(bad, b'"much too large"')
    landed: list[str] = []
    while not driving.planner.is_over:
        planned = driving.next()
        if any(b"much too large" in bytes(each.step) for each in planned.mutations if isinstance(each, RecordStep)):
            assert driving.planner.refused(TOO_LARGE, driving.state)
            continue
        commit(driving.state, planned.batch())
        driving.planner.landed(driving.state)
        landed += recorded(planned)
    steps = ExecutionState(driving.state).steps
    assert {str(step.status) for step in steps.values() if step.node_id == good.key} == {"COMPLETED"}
    assert {str(step.status) for step in steps.values() if step.node_id == bad.key} == {"FAILED"}


def test_commit_that_is_always_refused_ends_the_execution_as_failed() -> None:
    driving = Driving(define("w", call("s")))
    while True:
        planned = driving.next()
        if planned.end is not None:
            break
        assert driving.planner.refused(TOO_LARGE, driving.state)
    commit(driving.state, planned.batch())
    driving.planner.landed(driving.state)
    state = ExecutionState(driving.state)
    assert (str(state.status), state.tokens) == ("FAILED", {})
    assert driving.planner.is_over


def test_end_that_is_refused_leaves_nothing_to_try() -> None:
    driving = Driving(define("w", call("s")))
    for _ in range(2):
        driving.next()
        assert driving.planner.refused(TOO_LARGE, driving.state)
    assert driving.next().end is not None
    assert not driving.planner.refused(TOO_LARGE, driving.state)


def test_rebuilt_kernel_hears_messages_again_but_not_those_that_were_taken() -> None:
    driving = Driving(define("w", signal("go"), signal("go")))
    driving.land()
    driving.planner.add(EffectDone(SignalArrived("1", "go", "one")))
    driving.planner.add(EffectDone(SignalArrived("2", "stop", "two")))
    planned = driving.next()
    assert planned.taken == ["1"]
    other = commit(copy_of(driving.state), planned.batch())  # the commit landed, and its reply was lost
    driving.planner.rebuild(other, {"2"})
    driving.state = other
    again = driving.next()
    assert (list(again.taken), again.batch()) == ([], [])


def test_answer_in_a_lost_commit_is_heard_again() -> None:
    driving = Driving(define("w", call("s")))
    [asked] = driving.land()
    driving.finish(asked)
    driving.next()
    other = copy_of(driving.state)
    driving.planner.rebuild(other)
    driving.state = other
    planned = driving.next()
    assert recorded(planned) == ["s"]
    assert not [each for each in planned.effects if isinstance(each, RunStep)]


def test_commit_from_outside_rebuilds_the_kernel_after_the_planned_one() -> None:
    driving = Driving(define("w", call("s"), call("t")))
    [asked] = driving.land()
    driving.finish(asked)
    planned = driving.next()
    other = commit(copy_of(driving.state), planned.batch())
    effects = driving.planner.landed(other)
    assert [each.key for each in effects if isinstance(each, RunStep)] == ["t"]
    assert driving.planner.has_events
    driving.state = other
    assert [each.key for each in driving.land()] == ["t"]


def test_failed_end_takes_every_token_away() -> None:
    driving = Driving(define("w", parallel(a=call("s"), b=signal("x"))))
    driving.land()
    commit(driving.state, failed_end(driving.state, {"kind": "X", "message": "m", "code": None}).batch())
    state = ExecutionState(driving.state)
    assert (str(state.status), state.tokens, list(state.scopes)) == ("FAILED", {}, ["root"])


def test_time_alone_makes_an_empty_commit() -> None:
    driving = Driving(define("w", call("s")))
    driving.land()
    driving.planner.add(EffectDone(TimePassed()))
    assert driving.next().batch() == []
    assert driving.planner.landed(driving.state) == []
    assert not driving.planner.has_events
    driving.planner.add(EffectDone(Began()))
    assert driving.planner.has_events
