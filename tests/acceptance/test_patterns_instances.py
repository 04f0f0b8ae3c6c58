"""Patterns of multiple instances: WCP-12 to 15, 26, 27, 34 to 36. The table is in docs/patterns.md."""

from __future__ import annotations

import pytest
from tests.acceptance.manual_tasks import Act, act, task

from stepwell import ExecutionFailed
from stepwell.flow import Node, cancel_scope, choice, deferred, each, log, loop, otherwise, scope, set_variables, when

__all__ = ["act"]


def test_wcp_12_instances_run_on_while_the_workflow_goes_on_without_them(act: Act) -> None:
    play = act(each(task("A"), count=3, join="none"), task("B"))
    assert play.open == ["A", "A", "A", "B"]
    play.do("B", "A", "A")
    assert not play.is_over
    play.do("A")
    assert play.is_over


def test_wcp_13_as_many_instances_as_the_definition_says_come_together(act: Act) -> None:
    play = act(each(task("A"), count=3), task("B"))
    assert play.open == ["A", "A", "A"]
    play.do("A", "A")
    assert play.open == ["A"]
    play.do("A")
    assert play.open == ["B"]


def test_wcp_14_the_number_of_instances_is_known_when_they_begin(act: Act) -> None:
    play = act(task("plan"), each(task("A"), count="{{ steps.plan.output }}"), task("B"))
    play.do("plan", value=2)
    assert play.open == ["A", "A"]
    play.do("A", "A")
    assert play.open == ["B"]
    listed = act(each(task("A"), items="{{ trigger.input }}"), task("B"), input=["x", "y", "z"])
    assert listed.open == ["A", "A", "A"]


def _adding(*instance: Node) -> Node:
    """Instances are added until somebody closes; each runs on beside the loop that begins them."""
    one = each(*instance, items=["{{ item }}"], join="none", name="one")
    ways = deferred({"add": one, "close": set_variables({"is_closed": True})})
    return loop(ways, until="variables.is_closed", max_iterations=100)


def test_wcp_15_instances_are_added_while_others_run_and_all_are_waited_for(act: Act) -> None:
    play = act(scope(_adding(task("A"))), task("B"), variables={"is_closed": False})
    play.do("add", "add")
    assert play.open == ["A", "A", "add", "close"]
    play.do("A", "add", "close")
    assert play.open == ["A", "A"], "closed, and not over: two instances are open"
    play.do("A", "A")
    assert play.open == ["B"]


def test_wcp_26_cancelled_activity_withdraws_open_instances_and_keeps_done_ones(act: Act) -> None:
    play = act(scope(each(task("A"), count=3), task("B"), cancel_on="stop", name="activity"), task("C"))
    play.do("A")
    play.send("stop")
    assert play.open == ["C"], "neither instances nor what would have followed them"
    assert play.times("A") == 1
    assert play.steps["activity"] == "CANCELLED"


def test_wcp_27_completed_activity_withdraws_open_instances_and_goes_on(act: Act) -> None:
    play = act(scope(scope(each(task("A"), count=3), cancel_on="enough"), task("B"), name="activity"))
    play.do("A")
    play.send("enough")
    assert play.open == ["B"]
    assert play.times("A") == 1
    play.do("B")
    assert play.steps["activity"] == "COMPLETED"
    assert play.is_over


def test_wcp_34_nth_instance_opens_what_follows_and_the_others_go_on(act: Act) -> None:
    play = act(each(task("A"), count=3, join=2, cancel_losers=False), task("B"))
    play.do("A")
    assert play.open == ["A", "A"]
    play.do("A")
    assert play.open == ["A", "B"]
    play.do("A", "B")
    assert play.is_over
    assert play.times("B") == 1


def test_wcp_35_the_nth_instance_withdraws_the_others(act: Act) -> None:
    play = act(each(task("A"), count=3, join=2), task("B"))
    play.do("A", "A")
    assert play.open == ["B"]
    play.do("B")
    assert play.is_over
    assert play.times("A") == 2


def test_wcp_36_instances_are_added_until_a_condition_holds_that_is_asked_at_each_end(act: Act) -> None:
    counted = set_variables({"score": "{{ variables.score + steps.A.output }}"}, name="count")
    asked = choice(when("variables.score >= 10", cancel_scope("instances")), otherwise(log("not enough")))
    play = act(scope(_adding(task("A"), counted, asked), name="instances"), task("B"), variables={"is_closed": False, "score": 0})
    play.do("add", "add", "add")
    play.do("A", value=4)
    assert play.open == ["A", "A", "add", "close"]
    play.do("A", value=7)
    assert play.open == ["B"], "neither can one be added, nor does the third one count"


def test_instances_over_the_limit_are_a_failure_and_not_a_flood(act: Act) -> None:
    with pytest.raises(ExecutionFailed, match="1,001 instances"):
        act(each(task("A"), count="{{ trigger.input }}"), input=1001).run.result(60)
