"""Turns: which events share a commit, what is tried after a refusal, and what a rebuilt kernel hears again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw
from tests.unit.kernel.driver import T0, Driver

from stepwell import Retry
from stepwell.flow import Definition, call, define, loop, parallel, set_variables, signal
from stepwell.kernel.plan import Plan
from stepwell.kernel.protocol import AttemptFailed, Began, RunStep, SignalArrived, StepCompleted, TimePassed
from stepwell.kernel.turn import EffectDone, KernelTurn, KernelTurns, Refusal, failed_end
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


class Turning:
    """An execution whose turns are made by hand."""

    def __init__(self, definition: Definition, **options: Any) -> None:
        self.state = fresh_state(definition)
        self.turns = KernelTurns(Plan(definition), self.state, Limits(), **options)
        self.turns.begin()

    def next(self) -> KernelTurn:
        turn = self.turns.next(T0)
        assert turn is not None
        return turn

    def land(self) -> list[Any]:
        turn = self.next()
        if turn.batch():
            commit(self.state, turn.batch())
        return self.turns.landed(self.state)

    def finish(self, asked: RunStep, output: bytes = b"1") -> None:
        self.turns.add(EffectDone(StepCompleted(asked.token_id, asked.key, output, attempt=asked.attempt)))


def recorded(turn: KernelTurn) -> list[str]:
    return [each.name for each in turn.mutations if isinstance(each, RecordStep)]


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
    turning = Turning(define("w", set_variables(n=0), loop(body, count=200), output="{{ variables.n }}"), slice_size=20)
    commits = 0
    while not turning.turns.is_over:
        turning.land()
        commits += 1
        if is_rebuilt:  # as after a crash between two slices
            turning.turns = KernelTurns(turning.turns.kernel.plan, turning.state, Limits(), slice_size=20)
            turning.turns.begin()
        assert commits < 1_000
        if turning.state.sections["status"][""] == b'"COMPLETED"':
            break
    assert 10 < commits < 100
    assert ExecutionState(turning.state).result == {"output": 200}


def test_events_that_gathered_share_a_commit() -> None:
    turning = Turning(define("w", parallel(a=call("s"), b=call("s"))))
    for asked in turning.land():
        turning.finish(asked)
    turn = turning.next()
    assert turn.end is not None
    assert len(recorded(turn)) == 3


def test_refused_output_fails_its_own_attempt_and_no_other() -> None:
    turning = Turning(define("w", parallel(a=call("s"), b=call("s", on_error="continue"))))
    good, bad = turning.land()
    turning.finish(good)
    turning.finish(bad, b'"much too large"')
    landed: list[str] = []
    while not turning.turns.is_over:
        turn = turning.next()
        if any(b"much too large" in bytes(each.step) for each in turn.mutations if isinstance(each, RecordStep)):
            assert turning.turns.refused(TOO_LARGE, turning.state)
            continue
        commit(turning.state, turn.batch())
        turning.turns.landed(turning.state)
        landed += recorded(turn)
    steps = ExecutionState(turning.state).steps
    assert {str(step.status) for step in steps.values() if step.node_id == good.key} == {"COMPLETED"}
    assert {str(step.status) for step in steps.values() if step.node_id == bad.key} == {"FAILED"}


def test_commit_that_is_always_refused_ends_the_execution_as_failed() -> None:
    turning = Turning(define("w", call("s")))
    while True:
        turn = turning.next()
        if turn.end is not None:
            break
        assert turning.turns.refused(TOO_LARGE, turning.state)
    commit(turning.state, turn.batch())
    turning.turns.landed(turning.state)
    state = ExecutionState(turning.state)
    assert (str(state.status), state.tokens) == ("FAILED", {})
    assert turning.turns.is_over


def test_end_that_is_refused_leaves_nothing_to_try() -> None:
    turning = Turning(define("w", call("s")))
    for _ in range(2):
        turning.next()
        assert turning.turns.refused(TOO_LARGE, turning.state)
    assert turning.next().end is not None
    assert not turning.turns.refused(TOO_LARGE, turning.state)


def test_rebuilt_kernel_hears_messages_again_but_not_those_that_were_taken() -> None:
    turning = Turning(define("w", signal("go"), signal("go")))
    turning.land()
    turning.turns.add(EffectDone(SignalArrived("1", "go", "one")))
    turning.turns.add(EffectDone(SignalArrived("2", "stop", "two")))
    turn = turning.next()
    assert turn.taken == ["1"]
    other = commit(copy_of(turning.state), turn.batch())  # the commit landed, and its reply was lost
    turning.turns.rebuild(other, {"2"})
    turning.state = other
    again = turning.next()
    assert (list(again.taken), again.batch()) == ([], [])


def test_answer_in_a_lost_turn_is_heard_again() -> None:
    turning = Turning(define("w", call("s")))
    [asked] = turning.land()
    turning.finish(asked)
    turning.next()
    other = copy_of(turning.state)
    turning.turns.rebuild(other)
    turning.state = other
    turn = turning.next()
    assert recorded(turn) == ["s"]
    assert not [each for each in turn.effects if isinstance(each, RunStep)]


def test_commit_from_outside_rebuilds_the_kernel_after_the_turn() -> None:
    turning = Turning(define("w", call("s"), call("t")))
    [asked] = turning.land()
    turning.finish(asked)
    turn = turning.next()
    other = commit(copy_of(turning.state), turn.batch())
    effects = turning.turns.landed(other)
    assert [each.key for each in effects if isinstance(each, RunStep)] == ["t"]
    assert turning.turns.has_events
    turning.state = other
    assert [each.key for each in turning.land()] == ["t"]


def test_failed_end_takes_every_token_away() -> None:
    turning = Turning(define("w", parallel(a=call("s"), b=signal("x"))))
    turning.land()
    commit(turning.state, failed_end(turning.state, {"kind": "X", "message": "m", "code": None}).batch())
    state = ExecutionState(turning.state)
    assert (str(state.status), state.tokens, list(state.scopes)) == ("FAILED", {}, ["root"])


def test_time_alone_makes_an_empty_turn() -> None:
    turning = Turning(define("w", call("s")))
    turning.land()
    turning.turns.add(EffectDone(TimePassed()))
    assert turning.next().batch() == []
    assert turning.turns.landed(turning.state) == []
    assert not turning.turns.has_events
    turning.turns.add(EffectDone(Began()))
    assert turning.turns.has_events
