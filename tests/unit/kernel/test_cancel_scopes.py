"""Cancel scopes, compensation, time limits and cancelling: what ends early ends clean."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kernel.driver import Driver, run

from stepwell.flow import call, cancel_scope, define, each, loop, parallel, scope, sequence, signal, subworkflow, throw, wait
from stepwell.kernel.protocol import StepCompleted


def boom(_: Any) -> Any:
    raise ValueError("boom")


@pytest.fixture(params=[False, True], ids=["held", "reloaded"])
def reload(request: pytest.FixtureRequest) -> bool:
    """Whether the interpreter is built again from the state before every event."""
    return request.param


def undoable(name: str) -> Any:
    return call(name, name, compensate=call(f"un{name}"))


def test_scope_gives_what_is_inside() -> None:
    done = run(define("w", scope(call("a", 1), name="S"), output="{{ steps.S.output }}"))
    assert done.output == 1
    assert done.is_clean()


def test_scope_is_cancelled_by_its_timeout_and_the_run_goes_on(reload: bool) -> None:
    driver = Driver(define("w", scope(sequence("slow", "never"), timeout="10s"), call("after", 2)), reload=reload)
    assert set(driver.view.scopes) == {"root", "scope"}
    driver.restart()
    driver.advance(10)
    assert [asked.key for asked in driver.waiting] == ["after"]
    assert driver.view.steps["scope"].status == "CANCELLED"
    assert driver.go().output == 2
    assert driver.is_clean()


def test_cancelled_scope_may_be_a_failure() -> None:
    driver = Driver(define("w", scope("slow", timeout="10s", on_cancel="fail")))
    driver.advance(10)
    assert driver.error["kind"] == "TimeoutError"
    assert driver.is_clean()


def test_scope_is_cancelled_by_a_signal(reload: bool) -> None:
    driver = Driver(define("w", scope("slow", cancel_on="stop"), call("after", 2)), reload=reload)
    driver.restart()
    driver.signal("stop")
    assert driver.go().output == 2
    assert driver.keys == ["after"]


def test_step_cancels_a_scope_beside_it_or_around_it() -> None:
    driver = Driver(define("w", parallel(scope("slow", name="S"), sequence("go", cancel_scope("S"), call("on", 1)), merge="list")))
    driver.answer("go")
    assert [asked.key for asked in driver.waiting] == ["on"]
    assert driver.go().output == [None, 1]
    around = Driver(define("w", scope(parallel("slow", sequence("go", cancel_scope("S"), "never")), name="S"), call("after", 2)))
    around.answer("go")
    assert around.go().keys == ["go", "after"]
    assert around.is_clean()


def _cancelling(name: str) -> Any:
    return call("stepwell.cancel_scope", {"scope": name}, name="stop")


def test_cancelling_a_scope_says_that_it_was_cancelled() -> None:
    driver = Driver(define("w", parallel(scope("slow", name="S"), sequence("go", _cancelling("S")))))
    driver.answer("go")
    assert driver.go().outputs()["stop"] == "cancelled"


def test_scope_that_has_not_begun_is_not_cancelled_and_the_answer_says_so(reload: bool) -> None:
    """It begins when its turn comes."""
    done = run(define("w", _cancelling("S"), scope(call("inside", 1), name="S")), reload=reload)
    assert done.outputs()["stop"] == "not_begun"
    assert done.output == 1
    assert done.is_clean()


@pytest.mark.parametrize("inside", [call("inside", 1), throw("no")], ids=["well", "failed"])
def test_scope_that_has_ended_is_not_cancelled_and_the_answer_says_so(inside: Any, reload: bool) -> None:
    ended = parallel(scope(inside, name="S"), optional=["S"])
    done = run(define("w", ended, _cancelling("S"), call("after", 2)), reload=reload)
    assert done.outputs()["stop"] == "ended"
    assert done.output == 2
    assert done.is_clean()


@pytest.mark.parametrize("name", ["T", "slow", "stop", "", None, 5])
def test_cancelling_a_scope_that_the_definition_does_not_have_fails_the_step(name: Any) -> None:
    """A name that is written down is found by the check; this one comes with the input."""
    done = run(define("w", scope("slow", name="S"), _cancelling("{{ trigger.input }}")), name)
    assert done.error["kind"] == "InvalidInput"
    assert f"there is no scope {name!r} to cancel" in done.error["message"]
    assert done.is_clean()


def test_step_of_one_instance_cancels_the_scope_of_that_instance_alone() -> None:
    body = parallel(scope("slow", name="S"), sequence("go", cancel_scope("S")), merge="list")
    driver = Driver(define("w", each(body, count=3)))
    [second] = [asked for asked in driver.waiting if asked.key == "go[1]"]
    driver.waiting.remove(second)
    driver.feed(StepCompleted(second.token_id, second.key, b"null"))
    assert sorted(asked.key for asked in driver.waiting) == ["go[0]", "go[2]", "slow[0]", "slow[2]"]
    assert driver.view.steps["S[1]"].status == "CANCELLED"
    driver.go()
    assert driver.is_clean()


def test_step_outside_of_the_instances_cancels_the_scopes_of_all() -> None:
    instances = each(scope("slow", name="S"), count=3)
    driver = Driver(define("w", parallel(instances, sequence("go", _cancelling("S")), merge="list")))
    driver.answer("go")
    assert driver.end is not None
    assert [driver.view.steps[f"S[{index}]"].status for index in range(3)] == ["CANCELLED"] * 3
    assert driver.is_clean()


def test_step_cancels_the_whole_run() -> None:
    done = run(define("w", cancel_scope("root"), "never"))
    assert done.end is not None
    assert done.end.status == "CANCELLED"
    assert done.is_clean()


def test_late_result_of_a_cancelled_step_is_ignored() -> None:
    """T40."""
    driver = Driver(define("w", scope("slow", timeout="10s"), call("after", 2)))
    [asked] = driver.waiting
    driver.advance(10)
    came = driver.feed(StepCompleted(asked.token_id, asked.key, b'"late"'))
    assert not came.is_taken
    assert came.mutations == ()
    assert driver.go().output == 2


def test_a_step_that_has_moved_on_takes_no_second_result() -> None:
    driver = Driver(define("w", call("a", 1), call("b", 2)))
    [asked] = driver.waiting
    driver.answer()
    assert not driver.feed(StepCompleted(asked.token_id, asked.key, b"9")).is_taken
    assert driver.go().outputs() == {"a": 1, "b": 2}


# Compensation.


def test_failed_run_is_undone_in_reverse_order(reload: bool) -> None:
    done = run(define("w", undoable("a"), undoable("b"), throw("no")), None, {}, reload=reload)
    assert done.keys == ["a", "b", "unb", "una"]
    assert done.calls[2] == ("unb", "b"), "it is given what the step gave"
    assert done.error["kind"] == "Thrown"
    assert done.is_clean()


def test_cancelled_run_is_undone(reload: bool) -> None:
    driver = Driver(define("w", undoable("a"), "slow"), reload=reload)
    driver.answer("a")
    driver.cancel()
    driver.go()
    assert driver.keys == ["a", "una"]
    assert driver.end is not None
    assert driver.end.status == "CANCELLED"
    assert driver.is_clean()


def test_successful_run_is_not_undone() -> None:
    done = run(define("w", undoable("a"), scope(undoable("b"))))
    assert done.keys == ["a", "b"]
    assert done.is_clean()


def test_cancelled_scope_undoes_its_own_steps_only(reload: bool) -> None:
    driver = Driver(define("w", undoable("a"), scope(undoable("b"), "slow", timeout="5s"), call("after", 3)), reload=reload)
    driver.answer("a")
    driver.answer("b")
    driver.advance(5)
    assert [asked.key for asked in driver.waiting] == ["unb"]
    assert driver.go().output == 3
    assert driver.keys == ["a", "b", "unb", "after"]
    assert driver.is_clean()


def test_scope_that_ended_well_is_undone_when_the_run_fails_later(reload: bool) -> None:
    done = run(define("w", scope(scope(undoable("a")), undoable("b")), undoable("c"), throw("no")), None, {}, reload=reload)
    assert done.keys == ["a", "b", "c", "unc", "unb", "una"]
    assert done.is_clean()


def test_failure_in_a_scope_undoes_it_before_the_failure_goes_on(reload: bool) -> None:
    definition = define("w", parallel(sequence(scope(undoable("a"), throw("no"))), call("b", 2), optional=["1"], join="all"))
    done = run(definition, None, {}, reload=reload)
    assert done.output == {"1": None, "b": 2}
    assert "una" in done.keys
    assert done.is_clean()


def test_run_cancelled_while_a_scope_is_being_undone_still_undoes_everything(reload: bool) -> None:
    driver = Driver(define("w", undoable("a"), scope(undoable("b"), undoable("c"), "slow", timeout="5s")), reload=reload)
    for name in "abc":
        driver.answer(name)
    driver.advance(5)
    driver.cancel()
    driver.go()
    assert driver.keys == ["a", "b", "c", "unc", "unb", "una"]
    assert driver.is_clean()


def test_compensation_that_fails_does_not_stop_the_others() -> None:
    done = run(define("w", undoable("a"), undoable("b"), throw("no")), None, {"unb": boom})
    assert done.keys == ["a", "b", "unb", "una"]
    assert done.error["kind"] == "Thrown"
    assert done.view.steps["unb"].status == "FAILED"


def test_what_a_run_adds_to_the_longest_name_has_room(reload: bool) -> None:
    longest = "n" * 256
    body = loop(loop(call("a", name=longest, compensate="undo"), count=2), count=12)
    done = run(define("w", body, throw("no")), reload=reload)
    assert done.error["kind"] == "Thrown"
    assert f"{longest}[11][1]" in done.keys
    assert done.is_clean()


def test_each_iteration_and_instance_is_undone_with_its_own_item() -> None:
    body = call("a", "{{ item }}", compensate=call("una", "{{ item }}"))
    done = run(
        define("w", loop(body, items=[1, 2]), each(call("b", compensate=call("unb", "{{ item }}")), items=[3, 4]), throw("no"))
    )
    assert done.calls[-4:] == [("unb[1]", 4), ("unb[0]", 3), ("una[1]", 2), ("una[0]", 1)]


# Time and children.


def test_run_that_takes_too_long_fails(reload: bool) -> None:
    driver = Driver(define("w", undoable("a"), wait("1h"), timeout="1m"), reload=reload)
    driver.answer("a")
    driver.restart()
    driver.advance(60)
    driver.go()
    assert driver.error["kind"] == "ExecutionTimedOut"
    assert driver.keys == ["a", "una"]


def test_cancel_reaches_children_and_waits() -> None:
    driver = Driver(define("w", parallel(subworkflow("child"), signal("go"), wait("1h"), "slow")))
    driver.cancel()
    assert driver.cancelled == ["run:child"]
    assert driver.waiting == []
    assert driver.end is not None
    assert driver.is_clean()


def test_second_cancel_changes_nothing() -> None:
    driver = Driver(define("w", undoable("a"), "slow"))
    driver.answer("a")
    driver.cancel()
    before = driver.mutations
    driver.cancel()
    assert driver.mutations == before
    assert driver.go().keys == ["a", "una"]
