"""Patterns of splits and joins: WCP-1 to 9, 28 to 33, 37, 41 and 42. The table is in docs/patterns.md."""

from __future__ import annotations

import pytest
from tests.acceptance.manual_tasks import Act, act, task

from stepwell import ExecutionFailed
from stepwell.flow import choice, each, graph, loop, otherwise, parallel, scope, when

__all__ = ["act"]


# Basic control flow.


def test_wcp_01_a_task_opens_when_the_one_before_it_is_done(act: Act) -> None:
    play = act(task("A"), task("B"))
    assert play.open == ["A"]
    play.do("A")
    assert play.open == ["B"]
    play.do("B")
    assert play.is_over


def test_wcp_02_a_split_opens_all_branches_at_once(act: Act) -> None:
    play = act(task("A"), parallel(task("B"), task("C"), task("D")))
    play.do("A")
    assert play.open == ["B", "C", "D"]
    play.do("C", "D", "B")
    assert play.is_over


def test_wcp_03_what_follows_waits_for_the_last_branch_and_opens_once(act: Act) -> None:
    play = act(parallel(task("A"), task("B")), task("C"))
    play.do("B")
    assert play.open == ["A"]
    play.do("A")
    assert play.open == ["C"]


def test_wcp_04_exactly_one_branch_is_taken_although_two_conditions_hold(act: Act) -> None:
    ways = choice(when("trigger.input > 0", task("A")), when("trigger.input > 5", task("B")), otherwise(task("C")))
    assert act(ways, input=9).open == ["A"]
    assert act(ways, input=-1).open == ["C"]
    with pytest.raises(ExecutionFailed, match="NoMatch"):
        act(choice(when("trigger.input > 0", task("A"))), input=-1).run.result(60)


def test_wcp_05_branches_that_exclude_each_other_go_on_in_one_place_without_waiting(act: Act) -> None:
    ways = choice(when("trigger.input", task("A")), otherwise(task("B")))
    for chosen in (True, False):
        play = act(ways, task("C"), input=chosen)
        play.do("A" if chosen else "B")
        assert play.open == ["C"]
        play.do("C")
        assert play.times("C") == 1


# Advanced branching.


def test_wcp_06_every_branch_whose_condition_holds_is_taken(act: Act) -> None:
    ways = choice(
        when("trigger.input > 0", task("A")), when("trigger.input > 5", task("B")), otherwise(task("C")), mode="all", name="ways"
    )
    assert act(ways, input=9).open == ["A", "B"]
    assert act(ways, input=3).open == ["A"]
    assert act(ways, input=-1).open == ["C"]


def test_wcp_07_the_merge_waits_for_the_branches_that_were_chosen_and_no_others(act: Act) -> None:
    ways = choice(when("trigger.input > 0", task("A")), when("trigger.input > 5", task("B")), mode="all")
    both, one = act(ways, task("C"), input=9), act(ways, task("C"), input=3)
    both.do("A")
    assert both.open == ["B"]
    both.do("B")
    assert both.open == ["C"]
    one.do("A")
    assert one.open == ["C"]


def test_wcp_08_what_follows_the_merge_runs_once_for_each_branch_that_comes(act: Act) -> None:
    branches = choice(when("item == 'a'", task("A")), otherwise(task("B")))
    play = act(each(branches, task("C"), items=["a", "b"]))
    assert play.open == ["A", "B"]
    play.do("B")
    assert play.open == ["A", "C"]
    play.do("C", "A")
    assert play.open == ["C"]
    play.do("C")
    assert play.is_over
    assert play.times("C") == 2


def test_wcp_09_the_first_branch_opens_what_follows_and_the_others_come_to_nothing(act: Act) -> None:
    play = act(loop(parallel(task("A"), task("B"), join="discriminator"), task("C"), count=2))
    play.do("B")
    assert play.open == ["A", "C"]
    play.do("A")
    assert play.open == ["C"]
    play.do("C")
    assert play.open == ["A", "B"], "it was reset: the next round begins with all branches"
    play.do("A", "B", "C")
    assert play.is_over
    assert play.times("C") == 2


def test_wcp_28_blocking_discriminator_waits_for_all_branches_of_a_round(act: Act) -> None:
    play = act(loop(scope(parallel(task("A"), task("B"), join="discriminator"), task("C")), count=2))
    play.do("A", "C")
    assert play.open == ["B"], "C is done, and the next round waits"
    play.do("B")
    assert play.open == ["A", "B"]


def test_wcp_29_a_cancelling_discriminator_withdraws_the_other_branches(act: Act) -> None:
    play = act(parallel(task("A"), task("B"), task("C"), join="any"), task("D"))
    play.do("B")
    play.send("A")
    assert play.open == ["D"], "A came too late"
    play.do("D")
    assert play.is_over
    assert play.times("A") == play.times("C") == 0


def test_wcp_30_partial_join_passes_at_the_nth_branch_and_the_others_go_on(act: Act) -> None:
    play = act(parallel(task("A"), task("B"), task("C"), join=2, cancel_losers=False), task("D"))
    play.do("C")
    assert play.open == ["A", "B"]
    play.do("A")
    assert play.open == ["B", "D"]
    play.do("D")
    assert not play.is_over, "the third branch is still open"
    play.do("B")
    assert play.is_over
    assert play.times("D") == 1


def test_wcp_31_blocking_partial_join_waits_for_all_branches_of_a_round(act: Act) -> None:
    play = act(loop(scope(parallel(task("A"), task("B"), task("C"), join=2, cancel_losers=False), task("D")), count=2))
    play.do("A", "B", "D")
    assert play.open == ["C"], "D is done, and the next round waits"
    play.do("C")
    assert play.open == ["A", "B", "C"]


def test_wcp_32_a_cancelling_partial_join_withdraws_what_it_does_not_need(act: Act) -> None:
    play = act(parallel(task("A"), task("B"), task("C"), join=2), task("D"))
    play.do("C", "A")
    assert play.open == ["D"]
    assert play.times("B") == 0


def test_wcp_33_arrivals_that_are_ahead_are_kept_for_the_next_time_that_all_are_there(act: Act) -> None:
    play = act(loop(parallel(task("A"), task("B")), task("C"), count=2))
    play.do("A")
    play.send("A")
    play.send("C")
    assert play.open == ["B"], "two of A make no B"
    play.do("B")
    assert play.times("C") == 1
    assert play.open == ["B"], "the second A and the next round's B"
    play.do("B")
    assert play.open == ["C"]


def test_wcp_37_a_merge_in_a_graph_waits_only_for_branches_that_can_still_come(act: Act) -> None:
    net = graph(
        {"A": task("A"), "B": task("B"), "C": task("C"), "D": task("D"), "E": task("E")},
        [("A", "B", "trigger.input > 0"), ("A", "C", "trigger.input > 5"), ("C", "D"), ("B", "E"), ("D", "E")],
    )
    both, one = act(net, input=9), act(net, input=1)
    both.do("A", "B")
    assert both.open == ["C"], "D can still come, by way of C"
    both.do("C", "D")
    assert both.open == ["E"]
    one.do("A")
    assert one.open == ["B"]
    one.do("B")
    assert one.open == ["E"]
    assert (one.steps["C"], one.steps["D"]) == ("SKIPPED", "SKIPPED")


def test_wcp_41_several_threads_in_one_branch_become_one(act: Act) -> None:
    play = act(each(task("A"), task("B"), count=3), task("C"))
    play.do("A", "A", "B", "A", "B")
    assert play.open == ["B"]
    play.do("B")
    assert play.open == ["C"]
    play.do("C")
    assert play.times("C") == 1


def test_wcp_42_one_thread_becomes_several_in_the_same_branch(act: Act) -> None:
    play = act(each(task("A"), task("B"), count="{{ trigger.input }}"), input=3)
    assert play.open == ["A", "A", "A"]
    play.do("A")
    assert play.open == ["A", "A", "B"], "each thread goes its own pace"
