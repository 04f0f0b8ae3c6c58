"""Retrying declared workflows: graphs that went on after a failure, children that were cancelled with it, and what was undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from stepwell import Conflict, ExecutionFailed, Retry, Status, step
from stepwell.flow import (
    approval,
    call,
    choice,
    deferred,
    define,
    each,
    edge,
    graph,
    loop,
    map_data,
    otherwise,
    parallel,
    scope,
    sequence,
    signal,
    subworkflow,
    throw,
    wait,
    when,
)
from stepwell.model.commit import StateBatch
from stepwell.runtime.inbox import SIGNAL, Message, fresh_key, messages, path_of, put
from stepwell.testing import SkippingClock, TestWell
from stepwell.testing.store_access import store_under, write_unit_or_raise

WAIT = 60
calls: Counter[str] = Counter()
is_mended: list[bool] = []


@step(name="r.note")
async def note(name: str) -> str:
    calls[name] += 1
    return name


@step(name="r.broken")
async def broken(_value: Any = None) -> str:
    calls["broken"] += 1
    if not is_mended:
        raise ValueError("broken")
    return "mended"


@pytest.fixture
def well() -> Iterator[TestWell]:
    calls.clear()
    is_mended.clear()
    with TestWell(SkippingClock()) as opened:
        yield opened


def failed_run(well: TestWell, root: Any, execution_id: str = "p") -> Any:
    run = well.start(define("r-retried", root), 1, execution_id=execution_id)
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    is_mended.append(True)
    return run


def retried(well: TestWell, root: Any) -> Any:
    """A run that has failed, was retried, and has succeeded."""
    run = failed_run(well, root)
    run.retry()
    run.result(WAIT)
    assert well.load("p").tokens == {}
    assert run.verify().ok
    return run


def statuses(run: Any) -> dict[str, str]:
    return {step.name: step.status for step in run.steps() if step.ended_at is not None}


def noted(*names: str) -> dict[str, Any]:
    return {name: call("r.note", name) for name in names}


# Graphs.


def long_graph(**more: Any) -> Any:
    """``b`` fails long before ``c`` is over, and with that the graph."""
    nodes = {**noted("a", "x", "y", "unchosen"), "b": call("r.broken"), "c": wait("50s")}
    arrows = [edge("a", "b"), edge("a", "c"), edge("b", "x"), edge("x", "y"), edge("a", "unchosen", when="false")]
    return graph(nodes, arrows, fail_fast=False, **more)


def test_retried_graph_goes_on_from_a_node_that_failed_while_others_went_on(well: TestWell) -> None:
    run = retried(well, long_graph())
    assert calls == {"a": 1, "broken": 2, "x": 1, "y": 1}
    assert statuses(run)["y"] == "COMPLETED"
    assert statuses(run)["unchosen"] == "SKIPPED"


def test_retried_graph_runs_no_more_at_once_than_allowed(well: TestWell) -> None:
    retried(well, long_graph(max_concurrency=1))
    assert calls == {"a": 1, "broken": 2, "x": 1, "y": 1}


def test_node_that_fails_again_is_retried_again(well: TestWell) -> None:
    run = failed_run(well, long_graph())
    is_mended.clear()
    run.retry()
    with pytest.raises(ExecutionFailed, match="broken"):
        run.result(WAIT)
    assert statuses(run)["y"] == "SKIPPED"
    is_mended.append(True)
    run.retry()
    run.result(WAIT)
    assert calls == {"a": 1, "broken": 3, "x": 1, "y": 1}


def test_graph_in_a_loop_is_retried_in_its_iteration(well: TestWell) -> None:
    run = retried(well, loop(long_graph(), count=2))
    assert calls == {"a": 2, "broken": 3, "x": 2, "y": 2}
    assert statuses(run)["y[0]"] == "COMPLETED"


def test_node_that_waits_for_other_arrows_waits_for_the_retried_one_again(well: TestWell) -> None:
    nodes = {**noted("j"), "b": call("r.broken"), "c": wait("50s")}
    root = parallel(
        graph(nodes, [edge("b", "j"), edge("c", "j", when="false")], fail_fast=False),
        sequence(wait("5s"), call("r.broken", name="end")),
    )
    run = retried(well, root)  # the failure beside the graph ended it while j waited for c
    assert statuses(run)["j"] == "COMPLETED"
    assert calls == {"broken": 4, "j": 1}


def test_node_that_went_on_without_the_retried_one_is_not_run_again(well: TestWell) -> None:
    nodes = {**noted("a", "j", "k"), "b": call("r.broken"), "c": wait("50s")}
    arrows = [edge("a", "j"), edge("b", "j"), edge("j", "k"), edge("a", "c")]
    retried(well, graph(nodes, arrows, fail_fast=False))
    assert calls == {"a": 1, "broken": 2, "j": 1, "k": 1}


def test_graph_that_is_a_failed_branch_begins_again_without_what_it_has_done(well: TestWell) -> None:
    run = retried(well, parallel(long_graph(), wait("100s"), fail_fast=False))
    assert calls == {"a": 1, "broken": 2, "x": 1, "y": 1}
    assert statuses(run)["unchosen"] == "SKIPPED"


def test_nodes_that_ended_with_the_failure_are_passed_once(well: TestWell) -> None:
    nodes = {**noted("a", "after"), "at_once": map_data(1), "unchosen": map_data(2), "end": throw("no")}
    arrows = [edge("a", "at_once"), edge("at_once", "after"), edge("a", "unchosen", when="false"), edge("a", "end")]
    run = failed_run(well, graph(nodes, arrows))
    run.retry()
    with pytest.raises(ExecutionFailed, match="Thrown: no"):
        run.result(WAIT)
    assert statuses(run) == {"a": "COMPLETED", "at_once": "COMPLETED", "unchosen": "SKIPPED", "end": "FAILED"}


# What ended in the very commit of the failure.


def two() -> dict[str, Any]:
    return noted("one", "two")


ENDED = {
    "parallel": parallel(branches=two()),
    "discriminator": parallel(first=call("r.note", "one"), then=sequence(wait("5s"), call("r.note", "two")), join="discriminator"),
    "instances": each(call("r.note", "one"), count=3, concurrency=1),
    "instances that run on": each(call("r.note", "one"), count=2, join="none"),
    "loop": loop(call("r.note", "one"), count=2),
    "graph": graph(two(), [("one", "two")]),
    "all cases": choice(when("trigger.input == 1", call("r.note", "one")), otherwise(map_data(1)), mode="all"),
    "a case": choice(when("trigger.input == 1", call("r.note", "one")), otherwise(map_data(1))),
    "scope": scope(*two().values()),
    "cancelled scope": scope(call("r.note", "one"), wait("50s"), timeout="5s"),
    "timeout": deferred({"go": map_data(1)}, timeout="5s", on_timeout=call("r.note", "one")),
    "nested": parallel(loop(parallel(branches=two()), count=2), scope(each(call("r.note", "three"), count=2))),
}


@pytest.mark.parametrize("around", [sequence, scope, lambda *nodes: graph(dict(zip("ab", nodes, strict=True)), [("a", "b")])])
@pytest.mark.parametrize("ended", ENDED.values(), ids=ENDED)
def test_what_ended_together_with_the_failure_is_passed(well: TestWell, ended: Any, around: Any) -> None:
    run = failed_run(well, around(ended, throw("no")))
    before, made = statuses(run), dict(calls)
    run.retry()
    with pytest.raises(ExecutionFailed, match="Thrown: no"):
        run.result(WAIT)
    assert (statuses(run), calls) == (before, made)
    assert well.load("p").tokens == {}


def send(well: TestWell, *signals: tuple[str, Any]) -> None:
    """Signals that come at once, so that they are answered by one commit."""
    messages = tuple(
        put("p", "default", SIGNAL, name, value, fresh_key(f"{number:032x}")) for number, (name, value) in enumerate(signals)
    )
    write_unit_or_raise(well, StateBatch(messages, (), ("p",)))


def waiting_run(well: TestWell, root: Any) -> Any:
    """A run that waits for a signal, and fails as soon as that comes."""
    run = well.start(define("r-retried", root), 1, execution_id="p")
    while run.status() != Status.WAITING:
        pass
    return run


def test_choice_committed_with_the_failure_is_made_by_the_same_signal_on_retry(well: TestWell) -> None:
    run = waiting_run(well, deferred({"go": throw("no {{ item }}"), "stop": throw("stopped")}))
    run.signal("go", 7)
    for _ in range(3):
        with pytest.raises(ExecutionFailed, match="Thrown: no 7"):
            run.result(WAIT)
        run.retry()


def test_choice_inside_of_one_that_was_made_with_it_is_made_again_too(well: TestWell) -> None:
    root = deferred({"go": loop(deferred({"on": throw("no {{ item }}")}), count=2)})
    run = waiting_run(well, root)
    send(well, ("on", 1), ("on", 2), ("go", 3))
    for _ in range(2):
        with pytest.raises(ExecutionFailed, match="Thrown: no 1"):
            run.result(WAIT)
        run.retry()


def test_answers_that_came_with_the_failure_count_after_it(well: TestWell) -> None:
    ask = approval("ask", approvers=["a", "b"], needed=2, name="ask")
    run = waiting_run(well, parallel(ask, deferred({"go": choice(when("trigger.input == 1", throw("no")))})))
    send(well, ("ask", {"is_approved": True, "by": "a"}), ("go", 1))
    with pytest.raises(ExecutionFailed, match="Thrown: no"):
        run.result(WAIT)
    run.retry()
    with pytest.raises(ExecutionFailed, match="Thrown: no"):
        run.result(WAIT)
    assert [message.name for message in inbox(well)] == ["ask", "go"]


def test_signal_of_a_choice_that_is_on_record_is_not_heard_twice(well: TestWell) -> None:
    twice = loop(deferred({"go": map_data("{{ item }}")}), count=2, name="twice")
    run = waiting_run(well, sequence(twice, throw("no")))
    send(well, ("go", 1), ("go", 2))
    for _ in range(2):
        with pytest.raises(ExecutionFailed, match="Thrown: no"):
            run.result(WAIT)
        assert inbox(well) == []
        run.retry()


DECIDED = deferred({"go": sequence(call("r.note", "{{ item }}"), "r.broken"), "stop": map_data("stopped")}, name="decided")
BESIDE = {
    "branch": parallel(DECIDED, wait("50s"), fail_fast=False),
    "late in a branch": parallel(sequence(call("r.note", "x"), DECIDED, call("r.note", "y")), wait("50s"), fail_fast=False),
    "node": graph({"decided": DECIDED, "other": wait("50s")}, [], start=["decided", "other"], fail_fast=False),
    "instance": parallel(each(DECIDED, count=1), wait("50s"), fail_fast=False),
}


@pytest.mark.parametrize("root", BESIDE.values(), ids=BESIDE)
def test_choice_that_failed_while_others_went_on_needs_no_second_signal(well: TestWell, root: Any) -> None:
    run = waiting_run(well, root)
    run.signal("go", "seven")
    for attempt in (1, 2):
        with pytest.raises(ExecutionFailed, match="ValueError: broken"):
            run.result(WAIT)
        assert calls["broken"] == attempt
        run.retry()
    with pytest.raises(ExecutionFailed, match="ValueError: broken"):
        run.result(WAIT)
    is_mended.append(True)
    run.retry()
    run.result(WAIT)
    assert calls["seven"] == 1
    assert inbox(well) == []
    assert well.load("p").tokens == {}


def test_timeout_that_chose_a_failed_branch_is_not_waited_for_again(well: TestWell) -> None:
    late = deferred({"go": map_data(1)}, timeout="10s", on_timeout="r.broken", name="late")
    run = failed_run(well, parallel(late, wait("50s"), fail_fast=False))
    before = well.clock.now_ms()
    run.retry()
    run.result(WAIT)
    assert well.clock.now_ms() == before


def inbox(well: TestWell) -> list[Message]:
    return messages(store_under(well).scan(path_of("p", "default")))


# Children.


def test_child_that_failed_long_before_its_parent_did_is_retried_in_place(well: TestWell) -> None:
    well.definitions.put(define("r-kid", "r.broken"))
    run = retried(well, parallel(sequence(subworkflow("r-kid", name="kid"), call("r.note", "x")), wait("50s"), fail_fast=False))
    assert statuses(run)["kid"] == "COMPLETED"
    assert calls == {"broken": 2, "x": 1}
    assert well.run("p:kid").status() == Status.COMPLETED


def test_child_that_was_cancelled_long_before_its_parent_failed_is_started_anew(well: TestWell) -> None:
    well.definitions.put(define("r-kid", wait("20s"), call("r.note", "kid")))
    branch = parallel(subworkflow("r-kid", name="kid"), "r.broken", name="branch")
    run = retried(well, parallel(branch, wait("50s"), fail_fast=False))
    assert statuses(run)["branch"] == "COMPLETED"
    assert calls == {"broken": 2, "kid": 1}


def test_child_that_is_tried_again_is_tried_as_often_as_before_after_a_retry(well: TestWell) -> None:
    well.definitions.put(define("r-kid", "r.broken"))
    run = failed_run(well, subworkflow("r-kid", name="kid", retry=Retry(attempts=2, first_seconds=1)))
    is_mended.clear()
    run.retry()
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert calls == {"broken": 4}
    assert [well.run(f"p:kid{mark}").status() for mark in ("", "#2", "~1#2")] == [Status.FAILED] * 3


def test_child_that_was_cancelled_with_the_failure_is_started_anew(well: TestWell) -> None:
    well.definitions.put(define("r-kid", wait("50s"), call("r.note", "kid")))
    run = retried(well, parallel(subworkflow("r-kid", name="kid"), "r.broken"))
    assert run.result(WAIT) == {"kid": "kid", "r.broken": "mended"}
    assert well.run("p:kid").status() == Status.CANCELLED
    assert well.run("p:kid~1").status() == Status.COMPLETED
    assert calls == {"broken": 2, "kid": 1}


# What was undone.


def undoable(name: str) -> Any:
    return call("r.note", name, compensate=map_data({"undone": name}, name=f"undo_{name}"))


def test_run_that_was_compensated_at_once_is_not_retried(well: TestWell) -> None:
    run = failed_run(well, sequence(undoable("a"), "r.broken"))
    assert statuses(run)["undo_a"] == "COMPLETED"
    with pytest.raises(Conflict, match="compensated"):
        run.retry()
    assert run.status() == Status.FAILED


@pytest.mark.parametrize("undo", [map_data(1, name="undo"), call("r.note", "undo", name="undo")], ids=["at once", "by a step"])
def test_run_with_a_branch_that_was_undone_before_its_end_is_not_retried(well: TestWell, undo: Any) -> None:
    branch = scope(sequence(call("r.note", "a", compensate=undo), "r.broken"))
    run = failed_run(well, parallel(branch, wait("50s"), fail_fast=False))
    with pytest.raises(Conflict, match="compensated"):
        run.retry()


def test_run_that_went_on_after_a_scope_was_undone_is_retried(well: TestWell) -> None:
    late = scope(sequence(undoable("late"), wait("50s")), timeout="5s", name="late")
    beaten = parallel(scope(sequence(undoable("beaten"), throw("no"))), sequence(wait("5s"), call("r.note", "won")), join="any")
    run = retried(well, sequence(late, beaten, "r.broken"))
    assert statuses(run)["late"] == "CANCELLED"
    assert calls == {"late": 1, "beaten": 1, "won": 1, "broken": 2}


# Compensations that failed.


@step(name="r.undo")
async def undo(name: str) -> str:
    calls[f"undo {name}"] += 1
    if not is_mended and name == "flight":
        raise ValueError("no answer")
    return name


def booked(name: str, **more: Any) -> Any:
    return call("r.note", name, name=name, compensate=call("r.undo", name, name=f"undo_{name}", **more))


def compensation(well: TestWell) -> Any:
    told = well.load("p").result["compensation"]
    return {"undone": sorted(told["undone"]), "failed": told["failed"]}


TRIPS = {
    "in the run": sequence(booked("hotel"), booked("flight"), booked("car"), throw("no seats")),
    "in a scope": sequence(booked("hotel"), scope(sequence(booked("flight"), booked("car"), throw("no seats")))),
    "in a cancelled scope": sequence(
        booked("hotel"), scope(sequence(booked("flight"), booked("car"), signal("never")), timeout="5s", name="trip")
    ),
}


@pytest.mark.parametrize("trip", TRIPS.values(), ids=TRIPS.keys())
def test_result_names_what_was_not_undone_and_retry_undoes_only_that(well: TestWell, trip: Any) -> None:
    run = failed_run(well, trip)
    told = compensation(well)
    assert told["undone"] == ["undo_car", "undo_hotel"]
    assert [*told["failed"]] == ["undo_flight"]
    assert told["failed"]["undo_flight"]["message"] == "no answer"
    with pytest.raises(ExecutionFailed, match="not undone, since their compensation failed: 'undo_flight'"):
        run.result(WAIT)
    run.retry()
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert compensation(well) == {"undone": ["undo_car", "undo_flight", "undo_hotel"], "failed": {}}
    assert calls == dict.fromkeys(("hotel", "flight", "car", "undo car", "undo hotel"), 1) | {"undo flight": 2}
    assert well.load("p").tokens == {}
    assert run.verify().ok
    with pytest.raises(Conflict, match="compensated"):
        run.retry()


def test_compensation_that_fails_again_is_retried_again(well: TestWell) -> None:
    run = failed_run(well, sequence(each(booked("flight"), count=2), throw("no seats")))
    is_mended.clear()
    run.retry()
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert set(compensation(well)["failed"]) == {"undo_flight[0]", "undo_flight[1]"}
    is_mended.append(True)
    run.retry()
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert compensation(well) == {"undone": ["undo_flight[0]", "undo_flight[1]"], "failed": {}}
    assert calls == {"flight": 2, "undo flight": 6}


def test_compensation_that_fails_in_the_commit_of_the_end_is_retried(well: TestWell) -> None:
    wrong = call("r.note", "hotel", compensate=throw("never", name="undo"))
    run = failed_run(well, sequence(wrong, throw("no seats")))
    assert [*compensation(well)["failed"]] == ["undo"]
    run.retry()
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    assert [*compensation(well)["failed"]] == ["undo"]


def test_failed_compensation_of_a_branch_does_not_hold_up_a_later_retry(well: TestWell) -> None:
    branch = scope(sequence(booked("flight"), throw("no seats")))
    run = retried(well, sequence(parallel(branch, call("r.note", "train"), optional=["1"]), "r.broken"))
    assert calls == {"flight": 1, "undo flight": 1, "train": 1, "broken": 2}
    assert statuses(run)["undo_flight"] == "FAILED"
