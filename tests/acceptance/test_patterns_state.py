"""Patterns that depend on where others stand: WCP-16 to 18, 39, 40. The table is in docs/patterns.md."""

from __future__ import annotations

from typing import Any

from tests.acceptance.manual_tasks import Act, act, task

import stepwell
from stepwell import Scope, step
from stepwell.flow import Node, call, cancel_scope, deferred, graph, loop, parallel, scope, sequence

__all__ = ["act"]

SECTION = Scope.custom("sections")


@step(name="patterns.enter")
def enter(section: str) -> None:
    """Take a section, or fail: the state lands with the step's output, or not at all."""
    here: Any = stepwell.current()
    here.state(SECTION).set_if_absent(section, here.execution_id)


@step(name="patterns.leave")
def leave(section: str) -> None:
    here: Any = stepwell.current()
    here.state(SECTION).delete(section)


def test_wcp_16_the_world_chooses_and_the_other_ways_are_withdrawn(act: Act) -> None:
    choosing = deferred({"coin": task("A"), "card": task("B")})
    play = act(choosing, task("C"))
    assert play.open == ["card", "coin"], "nothing is decided before somebody does something"
    play.do("card")
    play.send("coin")
    assert play.open == ["B"], "the coin came too late to choose"
    play.do("B")
    assert play.open == ["C"]
    rushed = act(choosing, task("C"))
    rushed.send_together("coin", "card")
    assert rushed.open == ["A"], "one of them decides, however close they come"


def test_wcp_17_tasks_of_a_partial_order_are_done_one_at_a_time(act: Act) -> None:
    net = graph({"A": task("A"), "B": task("B"), "C": task("C"), "D": task("D")}, [("A", "B"), ("C", "D")], max_concurrency=1)
    play = act(net, task("E"))
    done: list[str] = []
    while play.open != ["E"]:
        [only] = play.open
        play.do(only)
        done.append(only)
    assert sorted(done) == ["A", "B", "C", "D"]
    assert done.index("A") < done.index("B")
    assert done.index("C") < done.index("D")


def test_wcp_18_a_task_is_open_only_while_the_milestone_is_reached_and_not_passed(act: Act) -> None:
    window = parallel(scope(task("M"), name="window"), sequence(task("B"), cancel_scope("window")))
    missed = act(task("A"), window, task("C"))
    assert missed.open == ["A"], "not reached"
    missed.do("A")
    assert missed.open == ["B", "M"]
    missed.do("B")
    assert missed.open == ["C"], "passed"
    assert missed.times("M") == 0
    used = act(task("A"), window, task("C"))
    used.do("A", "M", "B")
    assert used.open == ["C"]
    assert used.times("M") == 1
    hurried = act(task("A"), window, task("C"))
    hurried.send("B")
    hurried.do("A")
    assert hurried.open == ["C"], "passed as soon as it was reached"


def _guarded(name: str) -> Node:
    taking = call("patterns.enter", "till", on_error="continue", name=f"enter {name}")
    return sequence(
        loop(taking, until=f"steps['enter {name}'].status == 'COMPLETED'", delay="5s", max_iterations=1000, name=f"taking {name}"),
        task(f"{name}1"),
        task(f"{name}2"),
        call("patterns.leave", "till", name=f"leave {name}"),
    )


def test_wcp_39_of_two_sections_in_different_branches_only_one_is_under_way(act: Act) -> None:
    play = act(parallel(_guarded("A"), sequence(task("free"), _guarded("B"))))
    play.do("free")
    assert play.open == ["A1"]
    play.do("A1")
    play.pass_time("1m")
    assert play.open == ["A2"], "the whole section, not only a task of it"
    play.do("A2")
    play.pass_time("1m")
    assert play.open == ["B1"]
    play.do("B1", "B2")
    assert play.is_over


def test_wcp_40_tasks_without_an_order_are_done_one_at_a_time(act: Act) -> None:
    play = act(parallel(task("A"), task("B"), task("C"), max_concurrency=1), task("D"))
    done: list[str] = []
    while play.open != ["D"]:
        [only] = play.open
        play.do(only)
        done.append(only)
    assert sorted(done) == ["A", "B", "C"]
