"""Times, signals, deferred choices, approvals, children, retries and built-in steps."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kernel.driver import Driver, run

from stepwell import InvalidDefinition, Retry
from stepwell.flow import (
    approval,
    call,
    deferred,
    define,
    each,
    log,
    loop,
    map_data,
    parallel,
    script,
    sequence,
    set_variables,
    signal,
    subworkflow,
    throw,
    validate,
    wait,
)
from stepwell.kernel.interpreter import Interpreter
from stepwell.kernel.protocol import Began, CancelChild, CancelRequested, RunStep, SignalArrived, StartChild


class Flaky:
    """Fails so many times, then gives 1."""

    def __init__(self, times: int, error: type[Exception] = ValueError) -> None:
        self.left, self.error = times, error

    def __call__(self, _: Any) -> int:
        self.left -= 1
        if self.left >= 0:
            raise self.error("not yet")
        return 1


@pytest.fixture(params=[False, True], ids=["held", "reloaded"])
def reload(request: pytest.FixtureRequest) -> bool:
    """Whether the interpreter is built again from the state before every event."""
    return request.param


@pytest.mark.parametrize("time", [90, "1m30s", "2026-01-01T00:01:30Z", "{{ trigger.input }}"])
def test_wait_ends_when_its_time_has_come(time: Any) -> None:
    driver = Driver(define("w", wait(time), call("after", 1)), 90)
    driver.advance(89)
    driver.restart()
    assert driver.waiting == []
    driver.advance(1)
    assert driver.go().output == 1


def test_wait_for_what_is_no_time_fails() -> None:
    assert run(define("w", wait("{{ trigger.input }}")), "soon").error["kind"] == "InvalidInput"


def test_signal_gives_its_value_whether_it_came_before_or_after(reload: bool) -> None:
    definition = define("w", call("first", 0), signal("go"))
    late = Driver(definition, reload=reload).go()
    late.restart()
    late.signal("go", 7)
    assert late.output == 7
    early = Driver(definition, reload=reload)
    early.signal("go", 8)
    assert early.go().output == 8


def test_transient_signal_that_came_early_is_lost() -> None:
    driver = Driver(define("w", call("first"), signal("go", transient=True)))
    driver.signal("go", 1)
    driver.go()
    assert driver.end is None
    assert driver.inbox == {}, "it does not wait for the next one either"
    driver.restart()
    driver.signal("go", 2)
    assert driver.output == 2


def test_same_message_counts_once() -> None:
    driver = Driver(define("w", signal("go"), signal("go", name="again")))
    driver.signal("go", 1)
    driver.feed(SignalArrived("1", "go", 1))
    assert driver.end is None
    driver.signal("go", 2)
    assert driver.output == 2


def test_signals_are_taken_by_whoever_has_waited_longest() -> None:
    driver = Driver(define("w", parallel(a=signal("go"), b=signal("go"))))
    driver.signal("go", 1)
    driver.signal("go", 2)
    assert driver.output == {"a": 1, "b": 2}


def test_who_has_waited_longest_is_served_first_though_the_run_was_taken_up_again() -> None:
    def waits(name: str, *, deferred_too: bool = False) -> Any:
        listens = deferred({"go": map_data("{{ item }}"), "other": "never"}) if deferred_too else signal("go")
        return sequence(call(name), listens)

    driver = Driver(define("w", parallel(a=waits("a"), b=waits("b", deferred_too=True), c=waits("c"), d=waits("d"))))
    for name in "dbca":
        driver.answer(name)
    for number in range(4):
        driver.restart()
        driver.signal("go", number)
    assert driver.output == {"d": 0, "b": 1, "c": 2, "a": 3}


def test_who_waits_again_is_served_after_those_who_wait_already(reload: bool) -> None:
    driver = Driver(define("w", parallel(a=loop(signal("go"), count=2), b=sequence("later", signal("go")))), reload=reload)
    for number in range(3):
        driver.go()
        driver.signal("go", number)
    assert driver.output == {"a": [0, 2], "b": 1}


@pytest.mark.parametrize(("on_timeout", "status"), [("fail", "FAILED"), ("continue", "COMPLETED")])
def test_signal_that_does_not_come_in_time(on_timeout: Any, status: str) -> None:
    driver = Driver(define("w", signal("go", timeout="1m", on_timeout=on_timeout)))
    driver.advance(60)
    assert driver.end is not None
    assert driver.end.status == status
    assert driver.is_clean()


def test_time_of_a_wait_that_is_over_means_nothing_to_what_comes_after(reload: bool) -> None:
    driver = Driver(define("w", signal("go", timeout="1m"), call("slow", 1)), reload=reload)
    driver.signal("go")
    driver.advance(60)
    assert driver.kernel.soonest_ms is None
    assert driver.go().output == 1


def test_deferred_choice_is_made_by_the_first_signal(reload: bool) -> None:
    definition = define("w", deferred({"yes": call("y", "{{ item.n }}"), "no": call("n")}), output="{{ steps.deferred.output }}")
    driver = Driver(definition, reload=reload)
    driver.restart()
    driver.signal("yes", {"n": 5})
    driver.signal("no")
    assert driver.go().output == 5
    assert driver.keys == ["y"]


def test_deferred_choice_that_nobody_makes() -> None:
    driver = Driver(define("w", deferred({"yes": "y"}, timeout="1m", on_timeout=call("late", "late"))))
    driver.advance(60)
    assert driver.go().output == "late"
    driver = Driver(define("w", deferred({"yes": "y"}, timeout="1m")))
    driver.advance(60)
    assert driver.error["kind"] == "TimeoutError"


def test_what_runs_when_no_signal_came_is_given_what_the_deferred_choice_is(reload: bool) -> None:
    late = deferred({"yes": "y"}, timeout="1m", on_timeout="late")
    assert run(define("w", late), 7, reload=reload).output == 7
    assert run(define("w", call("before", 8), late), 7, reload=reload).output == 8
    assert run(define("w", each(late, items=[1, 2])), 7, reload=reload).output == [1, 2]


# Approvals.


def test_approval_needs_enough_people_of_those_asked(reload: bool) -> None:
    driver = Driver(define("w", approval("Ship?", approvers=["ann", "bob", "cem"], needed=2)), reload=reload)
    for by, is_approved in (("eve", True), ("ann", True), ("ann", True), ("bob", False)):
        driver.signal("approval", {"by": by, "is_approved": is_approved})
        driver.restart()
        assert driver.end is None
    driver.signal("approval", "nonsense")
    driver.signal("approval", {"by": "cem", "is_approved": True, "comment": "fine"})
    assert driver.output["is_approved"] is True
    assert [each["by"] for each in driver.output["decisions"]] == ["ann", "bob", "cem"]
    assert driver.inbox == {}


def test_approval_is_refused_as_soon_as_it_cannot_be_given() -> None:
    driver = Driver(define("w", approval("Ship?", approvers=["ann", "bob"], needed=2)))
    driver.signal("approval", {"by": "bob", "is_approved": False})
    assert driver.output["is_approved"] is False
    driver = Driver(define("w", approval("Ship?")))
    driver.signal("approval", False)
    assert driver.output["is_approved"] is False


def test_approval_that_nobody_answers() -> None:
    driver = Driver(define("w", approval("Ship?", timeout="1h")))
    driver.advance(3600)
    assert driver.end is not None
    assert driver.end.status == "CANCELLED"
    driver = Driver(define("w", approval("Ship?", timeout="1h", on_timeout="default", default={"is_approved": False})))
    driver.advance(3600)
    assert driver.output == {"is_approved": False}


def test_an_escalated_approval_is_granted_when_all_who_are_asked_then_have_approved(reload: bool) -> None:
    asked: dict[str, Any] = {"approvers": ["ann", "bob", "cy"], "needed": 2, "timeout": "1h", "on_timeout": "escalate"}
    with pytest.raises(InvalidDefinition, match="2 of 1 approvers can never agree"):
        define("w", approval("Ship?", **asked, escalate_to=["boss"]))
    driver = Driver(define("w", approval("Ship?", **asked, escalate_to=["boss", "chair"])), reload=reload)
    driver.advance(3600)
    driver.signal("approval", {"by": "boss", "is_approved": True})
    assert driver.end is None
    driver.signal("approval", {"by": "chair", "is_approved": True})
    assert driver.output["is_approved"] is True


def test_approval_is_escalated_once(reload: bool) -> None:
    definition = define("w", approval("Ship?", approvers=["ann"], timeout="1h", on_timeout="escalate", escalate_to=["boss"]))
    driver = Driver(definition, reload=reload)
    driver.advance(3600)
    driver.restart()
    driver.signal("approval", {"by": "ann", "is_approved": True})
    assert driver.end is None
    driver.signal("approval", {"by": "boss", "is_approved": True})
    assert driver.output["is_approved"] is True
    driver = Driver(definition)
    driver.advance(3600)
    driver.advance(3600)
    assert driver.end is not None
    assert driver.end.status == "CANCELLED"


# Children.


def test_child_is_started_awaited_and_answered(reload: bool) -> None:
    driver = Driver(define("w", subworkflow("child", {"n": 1}, name="kid", version=3)), reload=reload)
    [asked] = driver.waiting
    assert isinstance(asked, StartChild)
    assert (asked.child_id, asked.workflow, asked.version, asked.input) == ("run:kid", "child", 3, {"n": 1})
    driver.restart()
    assert [each.key for each in driver.waiting] == ["kid"], "it is asked for again, and starting twice is starting once"
    driver.answer()
    assert driver.end is None
    driver.child("run:kid", status="COMPLETED", result={"output": 5})
    assert driver.output == 5


def test_child_that_fails_or_is_cancelled_fails_the_run() -> None:
    driver = Driver(define("w", subworkflow("child")))
    driver.child("run:child", status="FAILED", result={"error": {"kind": "X", "message": "y"}})
    assert driver.error["kind"] == "ExecutionFailed"
    driver = Driver(define("w", subworkflow("child")))
    driver.child("run:child", status="CANCELLED", result={})
    assert driver.error["kind"] == "ExecutionCancelled"


def test_retried_child_is_another_execution() -> None:
    driver = Driver(define("w", subworkflow("child", retry=Retry(attempts=2, first_seconds=1, jitter=0))))
    driver.answer()
    driver.child("run:child", status="FAILED", result={"error": {"kind": "X", "message": "y"}})
    driver.advance(1)
    [asked] = driver.waiting
    assert isinstance(asked, StartChild)
    assert asked.child_id == "run:child#2"
    driver.child("run:child#2", status="COMPLETED", result={"output": 1})
    assert driver.output == 1


def test_child_that_takes_too_long_is_cancelled() -> None:
    driver = Driver(define("w", subworkflow("child", timeout_seconds=10)))
    driver.answer()
    driver.restart()
    driver.advance(10)
    assert driver.cancelled == ["run:child"]
    assert driver.error["kind"] == "TimeoutError"


def test_fork_has_children_of_its_own() -> None:
    driver = Driver(define("w", subworkflow("child")))
    driver.answer()
    fork = Interpreter(driver.plan, driver.state.sections, "fork")
    [asked] = fork.handle(Began(), driver.now_ms).effects
    assert isinstance(asked, StartChild)
    assert asked.child_id == "fork:child"
    stopped = fork.handle(CancelRequested(), driver.now_ms).effects
    assert [effect.child_id for effect in stopped if isinstance(effect, CancelChild)] == ["fork:child"]


def test_detached_child_is_not_waited_for() -> None:
    driver = Driver(define("w", subworkflow("child", detached=True), call("after", "{{ steps.child.output }}")))
    driver.go()
    assert driver.output == "run:child"
    assert driver.cancelled == []


def test_shared_context_comes_back() -> None:
    driver = Driver(define("w", subworkflow("child", context="share"), output="{{ variables.n }}"))
    driver.child("run:child", status="COMPLETED", result={"output": 1}, variables={"n": 9}, context={"who": "ann"})
    assert driver.output == 9
    assert driver.view.context == {"who": "ann"}


def test_children_of_instances_have_ids_of_their_own() -> None:
    driver = Driver(define("w", each(subworkflow("child"), count=2)))
    assert [asked.child_id for asked in driver.waiting if isinstance(asked, StartChild)] == ["run:child[0]", "run:child[1]"]


# Retries and errors.


@pytest.mark.parametrize("where", ["node", "definition", "on_error"])
def test_failed_step_is_tried_again_by_the_policy(where: str, reload: bool) -> None:
    policy = Retry(attempts=3, first_seconds=1, jitter=0)
    definition = define(
        "w",
        call("s", retry=policy if where == "node" else None, on_error="retry" if where == "on_error" else "fail"),
        retry=policy if where == "definition" else None,
    )
    driver = Driver(definition, None, {"s": Flaky(2)}, reload=reload)
    driver.answer()
    driver.restart()
    assert driver.waiting == []
    assert driver.view.tokens["s"].value["error"]["message"] == "not yet"
    assert driver.kernel.soonest_ms == driver.now_ms + 1000
    driver.advance(1)
    [asked] = driver.waiting
    assert isinstance(asked, RunStep)
    assert asked.attempt == 2
    assert driver.go().output == 1
    assert driver.keys == ["s"] * 3


def test_last_attempt_fails_the_run_and_says_where() -> None:
    done = run(define("w", call("s", retry=Retry(attempts=2, first_seconds=0))), None, {"s": Flaky(9)})
    assert (done.error["kind"], done.error["step"]) == ("ValueError", "s")
    assert done.view.steps["s"].output["attempts"] == 2


def test_error_that_is_not_retryable_is_final() -> None:
    policy = Retry(attempts=5, non_retryable=("KeyError",))
    done = run(define("w", call("s", retry=policy)), None, {"s": Flaky(9, KeyError)})
    assert done.keys == ["s"]


def test_failure_that_is_passed_over_gives_nothing_and_can_be_asked_for(reload: bool) -> None:
    definition = define(
        "w", call("s", on_error="continue"), output=["{{ steps.s.output }}", "{{ steps.s.status }}", "{{ steps.s.error.kind }}"]
    )
    assert run(definition, None, {"s": Flaky(9)}, reload=reload).output == [None, "FAILED", "ValueError"]


def test_template_that_leads_nowhere_is_the_failure_of_its_step() -> None:
    definition = define("w", call("s", "{{ variables.nothing }}"))
    done = run(definition)
    assert (done.error["kind"], done.error["step"]) == ("MissingPath", "s")
    assert "variables.nothing" in done.error["message"]
    passed = run(define("w", call("s", "{{ variables.nothing }}", on_error="continue"), call("t", 1)))
    assert passed.output == 1


def test_scripts_are_asked_for_with_their_code() -> None:
    [asked] = Driver(define("w", script("return 1", {"x": 1}))).waiting
    assert isinstance(asked, RunStep)
    assert (asked.code, asked.language, asked.args) == ("return 1", "lua", {"x": 1})


# Built-in steps.


def test_built_in_steps_need_no_driver_and_share_one_commit() -> None:
    driver = Driver(
        define(
            "w",
            set_variables(a="{{ trigger.input }}"),
            map_data({"b": "{{ variables.a + 1 }}"}),
            log("got {{ steps.map_data.output.b }}"),
            validate("{{ steps.map_data.output }}", {"type": "object", "required": ["b"]}),
        ),
        4,
    )
    assert driver.output == {"b": 5}
    assert [note.message for note in driver.notes] == ["got 5"]
    assert driver.commits == 2


def test_value_that_does_not_fit_its_schema_fails_with_every_fault() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["m"]}
    done = run(define("w", validate({"n": "x"}, schema)))
    assert "the value.n: must be integer, and is string" in done.error["message"]
    assert "must have 'm'" in done.error["message"]


def test_throw_fails_with_its_kind_and_may_be_retried() -> None:
    assert run(define("w", throw("no", kind="Sold"))).error["kind"] == "Sold"
    inside = sequence(call("s", 1), throw("no"))
    assert run(define("w", loop(inside, count=3))).error["step"] == "throw[0]"


def test_scoped_state_is_read_by_templates() -> None:
    definition = define("w", map_data("{{ state.global.rate * 2 }}"))
    assert run(definition, None, {}, state={"global": {"rate": 21}}).output == 42


def test_variables_that_are_not_the_users_cannot_be_set() -> None:
    assert "'$spent' is Stepwell's own" in run(define("w", set_variables({"$spent": 0}))).error["message"]
    assert run(define("w", set_variables({"": 0}))).error["kind"] == "InvalidInput"


@pytest.mark.parametrize(
    "node",
    [
        approval("?", details=["{{ trigger.input }}", "{{ trigger.input }}"]),
        each("s", items=["{{ trigger.input }}", "{{ trigger.input }}"]),
        loop("s", items=["{{ trigger.input }}", "{{ trigger.input }}"]),
        map_data(["{{ trigger.input }}", "{{ trigger.input }}"]),
        set_variables(big=["{{ trigger.input }}", "{{ trigger.input }}"]),
    ],
)
def test_value_that_is_too_large_is_the_failure_of_its_node(node: Any) -> None:
    """T43."""
    done = run(define("w", node), "x" * 200_000)
    assert done.error["kind"] == "LimitExceeded"
    assert "value_bytes" in done.error["message"]
    assert done.is_clean()


def test_children_whose_names_have_marks_of_ids_do_not_meet() -> None:
    names = ["a", "a:b", "a~1", "a%3Ab", "a%"]
    driver = Driver(define("w", parallel(*(subworkflow("kid", name=name) for name in names))))
    ids = {asked.child_id for asked in driver.waiting if isinstance(asked, StartChild)}
    assert len(ids) == len(names)
    assert all(child_id.count(":") == 1 for child_id in ids), "so none is that of a child's child"
    assert "run:a%3Ab" in ids
