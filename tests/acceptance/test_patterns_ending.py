"""Patterns of cancelling and of ending: WCP-11, 19, 20, 25, 43. The table is in docs/patterns.md."""

from __future__ import annotations

import pytest
from tests.acceptance.manual_tasks import Act, act, task

from stepwell import ExecutionCancelled, Status
from stepwell.flow import cancel_scope, graph, parallel, scope, sequence

__all__ = ["act"]


def test_wcp_11_a_run_is_over_when_nothing_is_left_to_do(act: Act) -> None:
    net = graph({"A": task("A"), "B": task("B"), "C": task("C")}, [("A", "B"), ("A", "C")])
    play = act(net)
    play.do("A", "C")
    assert not play.is_over
    play.do("B")
    assert play.is_over, "without a node that says so"


def test_wcp_19_one_task_is_withdrawn_and_its_neighbours_are_not(act: Act) -> None:
    play = act(parallel(scope(task("A"), cancel_on="not A", name="only A"), task("B")), task("C"))
    play.send("not A")
    play.send("A")
    assert play.open == ["B"]
    assert play.steps["only A"] == "CANCELLED"
    play.do("B")
    assert play.open == ["C"]


def test_wcp_20_a_cancelled_run_has_nothing_open_and_ends_as_cancelled(act: Act) -> None:
    play = act(task("A"), parallel(task("B"), scope(task("C"))), task("D"))
    play.do("A")
    play.run.cancel()
    with pytest.raises(ExecutionCancelled):
        play.run.result(60)
    assert play.open == []
    assert play.run.status() == Status.CANCELLED
    assert play.steps == {"A": "COMPLETED", "B": "CANCELLED", "C": "CANCELLED"}


def test_wcp_25_a_region_is_withdrawn_whole_by_a_task_outside_of_it(act: Act) -> None:
    region = scope(parallel(sequence(task("A"), task("B")), task("C")), task("D"), name="region")
    play = act(parallel(region, sequence(task("alarm"), cancel_scope("region"), task("E")), task("F")), task("G"))
    play.do("A")
    assert play.open == ["B", "C", "F", "alarm"]
    play.do("alarm")
    assert play.open == ["E", "F"]
    play.do("E", "F")
    assert play.open == ["G"]


def test_wcp_43_reaching_the_end_ends_the_run_whatever_is_still_open(act: Act) -> None:
    everything = scope(
        parallel(sequence(task("A"), cancel_scope("everything")), task("B"), task("C")), task("D"), name="everything"
    )
    play = act(everything)
    play.do("B")
    assert play.open == ["A", "C"]
    play.do("A")
    assert play.is_over
    assert play.times("C") == play.times("D") == 0
