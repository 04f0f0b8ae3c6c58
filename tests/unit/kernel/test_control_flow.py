"""Sequences, branches, choices, loops, instances and graphs, driven event by event."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kernel.driver import Driver, run

from stepwell.flow import (
    Keep,
    Range,
    call,
    choice,
    define,
    each,
    edge,
    graph,
    loop,
    otherwise,
    parallel,
    sequence,
    set_variables,
    when,
)


def boom(_: Any) -> Any:
    raise ValueError("boom")


FAIL = {"bad": boom, "bad2": boom}


@pytest.fixture(params=[False, True], ids=["held", "reloaded"])
def reload(request: pytest.FixtureRequest) -> bool:
    """Whether the interpreter is built again from the state before every event."""
    return request.param


def test_a_sequence_hands_each_output_on(reload: bool) -> None:
    done = run(define("w", call("one"), call("two")), 1, {"one": lambda x: x + 1, "two": lambda x: x * 10}, reload=reload)
    assert done.output == 20
    assert done.outputs() == {"one": 2, "two": 20}
    assert done.is_clean()


def test_step_count_counts_actions() -> None:
    assert run(define("w", call("a"), parallel("b", "c"))).view.step_count == 3


# Parallel branches.


def test_branches_join_by_name(reload: bool) -> None:
    done = run(define("w", parallel(left=call("a", 1), right=sequence(call("b", 2), call("c")))), None, {}, reload=reload)
    assert done.output == {"left": 1, "right": 2}
    assert done.is_clean()


@pytest.mark.parametrize(
    ("merge", "output"), [("list", [{"x": 1}, {"x": 2, "y": 3}]), ("winner", {"x": 2, "y": 3}), ("combine", {"x": 2, "y": 3})]
)
def test_outputs_merge_by_the_rule(merge: Any, output: Any, reload: bool) -> None:
    definition = define("w", parallel(call("a", {"x": 1}), call("b", {"x": 2, "y": 3}), merge=merge))
    driver = Driver(definition, reload=reload)
    driver.answer("b")
    driver.now_ms += 5
    assert driver.go().output == output


def test_combining_what_is_no_object_fails() -> None:
    done = run(define("w", parallel(call("a", 1), call("b", {}), merge="combine")))
    assert "branch 'a' gave int" in done.error["message"]


def test_failed_branch_cancels_the_others_at_once(reload: bool) -> None:
    driver = Driver(define("w", parallel("bad", "slow")), None, FAIL, reload=reload)
    driver.answer("bad")
    assert driver.error["kind"] == "ValueError"
    assert driver.error["step"] == "bad"
    assert driver.waiting == []
    assert driver.is_clean()


def test_without_fail_fast_the_others_finish_first(reload: bool) -> None:
    driver = Driver(define("w", parallel("bad", "slow", fail_fast=False)), None, FAIL, reload=reload)
    driver.answer("bad")
    assert driver.end is None
    driver.go()
    assert driver.error["kind"] == "ValueError"
    assert driver.keys == ["bad", "slow"]


def test_optional_branch_may_fail(reload: bool) -> None:
    done = run(define("w", parallel("bad", call("good", 1), optional=["bad"])), None, FAIL, reload=reload)
    assert done.output == {"bad": None, "good": 1}


@pytest.mark.parametrize("join", ["any", 1])
def test_any_join_takes_the_first_success_and_cancels_losers(join: Any, reload: bool) -> None:
    driver = Driver(define("w", parallel("bad", call("b", 2), "c", join=join), call("after")), None, FAIL, reload=reload)
    driver.answer("bad")
    driver.answer("b")
    assert [asked.key for asked in driver.waiting] == ["after"]
    assert driver.go().output == {"b": 2}
    assert driver.is_clean()


def test_any_join_fails_when_none_can_succeed() -> None:
    done = run(define("w", parallel("bad", "bad2", join="any")), None, FAIL)
    assert done.error["kind"] == "ValueError"


def test_two_of_three_fails_as_soon_as_two_cannot_succeed(reload: bool) -> None:
    driver = Driver(define("w", parallel("bad", "bad2", "c", join=2)), None, FAIL, reload=reload)
    driver.answer("bad")
    assert driver.end is None
    driver.answer("bad2")
    assert driver.error["kind"] == "JoinFailed"
    assert "2 of 3 had to succeed" in driver.error["message"]
    assert driver.is_clean()


def test_any_join_of_no_instances_fails_and_says_that_there_were_none() -> None:
    done = run(define("w", each("s", items="{{ trigger.input }}", join="any")), [])
    assert done.error["kind"] == "JoinFailed"
    assert "there were none" in done.error["message"]


def test_first_join_ends_with_the_first_to_end() -> None:
    driver = Driver(define("w", parallel("bad", "c", join="first")), None, FAIL)
    driver.answer("bad")
    assert driver.error["kind"] == "ValueError"
    driver = Driver(define("w", parallel("bad", call("c", 3), join="first")), None, FAIL)
    driver.answer("c")
    assert driver.output == {"c": 3}


def test_discriminator_goes_on_while_the_others_run_on_without_effect(reload: bool) -> None:
    definition = define("w", parallel(call("a", 1), "bad", sequence("c", "d"), join="discriminator"), call("after"))
    driver = Driver(definition, None, FAIL, reload=reload)
    driver.answer("a")
    driver.answer("after")
    assert driver.end is None, "the run ends when all that runs on has ended"
    assert driver.go().output == {"a": 1}
    assert sorted(driver.keys) == ["a", "after", "bad", "c", "d"]
    assert driver.is_clean()


def test_no_more_branches_at_once_than_allowed(reload: bool) -> None:
    definition = define("w", parallel(*(call("s", n, name=f"b{n}") for n in range(5)), max_concurrency=2, merge="list"))
    driver = Driver(definition, reload=reload)
    while driver.end is None:
        assert len(driver.waiting) <= 2
        if reload:
            driver.restart()
        driver.answer()
    assert driver.output == [0, 1, 2, 3, 4]


# Choices.


def test_the_first_case_that_holds_is_taken(reload: bool) -> None:
    definition = define(
        "w",
        choice(when("trigger.input > 10", call("big", "big")), when("trigger.input > 5", call("mid", "mid")), otherwise("small")),
        output="{{ steps.choice.output }}",
    )
    assert run(definition, 20, reload=reload).output == "big"
    assert run(definition, 7, reload=reload).output == "mid"
    assert run(definition, 1, reload=reload).output == 1


def test_no_match_is_a_clear_failure() -> None:
    done = run(define("w", choice(when("trigger.input > 10", "big"), name="size")), 1)
    assert done.error["kind"] == "NoMatch"
    assert "'size'" in done.error["message"]
    assert done.is_clean()


def test_all_cases_that_hold_run_at_the_same_time(reload: bool) -> None:
    definition = define(
        "w",
        choice(
            when("trigger.input > 1", call("a", 1)),
            when("trigger.input > 9", "b"),
            when("trigger.input > 2", call("c", 3)),
            mode="all",
        ),
    )
    done = run(definition, 5, reload=reload)
    assert done.output == {"a": 1, "c": 3}
    assert done.is_clean()


def test_condition_that_cannot_be_worked_out_fails_the_run() -> None:
    done = run(define("w", choice(when("variables.nothing > 1", "a"), otherwise("b"))))
    assert done.error["kind"] == "MissingPath"


# Loops.


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"count": 3}, [0, 1, 2]),
        ({"count": 0}, []),
        ({"count": "{{ trigger.input }}"}, [0, 1]),
        ({"range": (5, 0, -2)}, [5, 3, 1]),
        ({"range": range(5, 0, -2)}, [5, 3, 1]),
        ({"range": range(3)}, [0, 1, 2]),
        ({"range": (1, 4)}, [1, 2, 3]),
        ({"items": ["a", "b"]}, ["a", "b"]),
        ({"while_": "index < 3", "max_iterations": 9}, [0, 1, 2]),
        ({"until": "steps.s.output >= 1", "max_iterations": 9}, [0, 1]),
        ({"count": 9, "break_when": "steps.s.output == 2"}, [0, 1, 2]),
        ({"count": 4, "collect": "last"}, 3),
        ({"count": 4, "collect": "none"}, None),
        ({"count": 4, "collect": Keep(first=2)}, [0, 1]),
        ({"count": 4, "collect": Keep(last=2)}, [2, 3]),
    ],
)
def test_loops_go_on_as_long_as_they_say(options: Any, seen: Any, reload: bool) -> None:
    done = run(define("w", loop(call("s", "{{ item }}"), **options)), 2, reload=reload)
    assert done.output == seen
    assert done.is_clean()


def test_a_range_that_cannot_be_counted_is_an_invalid_input() -> None:
    done = run(define("w", loop("s", range=Range(start="{{ trigger.input }}", stop=2**63 - 1))), -(2**63))
    assert done.error["kind"] == "InvalidInput"
    assert done.error["message"] == "the range of 'loop' has more numbers than can be counted in 64 bits"
    assert done.is_clean()


def test_the_longest_range_that_can_be_counted_begins_like_any_other() -> None:
    longest = loop("s", range=Range(stop=2**63 - 1), break_when="true")
    done = run(define("w", longest, output="{{ loops.loop.total_items }}"))
    assert done.output == 2**63 - 1
    assert done.is_clean()


def test_too_many_iterations_are_a_failure() -> None:
    done = run(define("w", loop("s", while_="true", max_iterations=3)))
    assert done.error["kind"] == "TooManyIterations"
    assert done.keys == ["s[0]", "s[1]", "s[2]"]
    assert done.is_clean()


def test_iterations_wait_for_the_delay(reload: bool) -> None:
    driver = Driver(define("w", loop(call("s", "{{ item }}"), count=2, delay="1m")), reload=reload)
    driver.answer()
    assert (driver.waiting, driver.kernel.soonest_ms) == ([], driver.now_ms + 60_000)
    driver.restart()
    driver.advance(59)
    assert driver.waiting == []
    driver.advance(1)
    assert driver.go().output == [0, 1]


def test_outputs_of_iterations_are_kept_apart_and_the_loop_says_where_it_stands() -> None:
    definition = define(
        "w",
        loop(
            sequence(call("s", "{{ index }}"), loop(call("t", "{{ loops.outer.current_index * 10 + index }}"), count=2)),
            count=2,
            name="outer",
        ),
    )
    done = run(definition)
    assert done.output == [[0, 1], [10, 11]]
    assert set(done.outputs()) >= {"s[0]", "s[1]", "t[0][0]", "t[1][1]", "loop[0]", "loop[1]", "outer"}
    assert done.view.loops["outer"].current_index == 1
    assert done.view.loops["outer"].total_items == 2
    assert set(done.view.loops) == {"outer", "loop[0]", "loop[1]"}


def test_a_step_of_the_iteration_before_can_be_asked_for() -> None:
    done = run(define("w", loop(call("s", "{{ (steps.s.output ?? 1) * 2 }}"), count=4)))
    assert done.output == [2, 4, 8, 16]


def test_variables_change_between_iterations() -> None:
    body = set_variables(n="{{ variables.n + item }}")
    assert run(define("w", loop(body, items=[1, 2, 3]), variables={"n": 0}, output="{{ variables.n }}")).output == 6


# Multiple instances.


def test_each_item_has_an_instance(reload: bool) -> None:
    done = run(define("w", each(sequence(call("s", "{{ item * 2 }}"), call("t")), items=[1, 2, 3])), seed=4, reload=reload)
    assert done.output == [2, 4, 6]
    assert set(done.outputs()) == {"each", *(f"{name}[{n}]" for name in "st" for n in range(3))}


@pytest.mark.parametrize(("options", "most"), [({"concurrency": 2}, 2), ({}, 6)])
def test_instances_are_bounded(options: Any, most: int) -> None:
    driver = Driver(define("w", each(call("s", "{{ index }}"), count=6, **options)), seed=1)
    assert len(driver.waiting) == most
    assert driver.go().output == [0, 1, 2, 3, 4, 5]


def test_more_instances_than_the_limit_are_a_failure() -> None:
    done = run(define("w", each("s", items="{{ trigger.input }}", limit=2)), [1, 2, 3])
    assert done.error["kind"] == "LimitExceeded"
    assert done.keys == []


def test_items_that_are_no_list_are_a_failure() -> None:
    assert "must be a list" in run(define("w", each("s", items="{{ trigger.input }}")), "abc").error["message"]


@pytest.mark.parametrize(("join", "made"), [("any", 1), ("first", 1), (2, 2), ("all", 3)])
def test_instances_join_by_the_rule(join: Any, made: int, reload: bool) -> None:
    driver = Driver(define("w", each(call("s", "{{ item }}"), items=[7, 8, 9], join=join)), reload=reload).go()
    assert driver.output == [7, 8, 9][:made]
    assert driver.is_clean()


def test_instances_without_a_join_run_on(reload: bool) -> None:
    driver = Driver(define("w", each(call("s", "{{ item }}"), items=[1, 2], join="none"), call("after", "now")), reload=reload)
    driver.answer("after")
    assert driver.end is None
    assert driver.go().output == "now"
    assert driver.keys[0] == "after"
    assert sorted(driver.calls[1:]) == [("s[0]", 1), ("s[1]", 2)]
    assert driver.is_clean()


def test_what_runs_on_keeps_its_item_when_the_loop_goes_on(reload: bool) -> None:
    body = parallel(call("quick", "{{ item }}"), sequence("slow", call("late", "{{ item }}")), join="discriminator")
    driver = Driver(define("w", loop(body, items=["a", "b"], collect="none")), reload=reload)
    driver.answer("quick")
    driver.answer("quick")
    driver.go()
    assert sorted(args for key, args in driver.calls if key.startswith("late")) == ["a", "b"]
    assert driver.is_clean()


def test_what_runs_on_after_the_loops_around_it_have_ended_still_knows_them(reload: bool) -> None:
    asks = "{{ loops.outer.current_item }}{{ loops.inner.current_item }}{{ item }} of {{ loops.inner.total_items }}"
    runs_on = each(sequence(call("slow"), call("late", asks), loop(call("later", asks), items=["z"])), items=["x"], join="none")
    inner = loop(runs_on, name="inner", items=[1, 2])
    driver = Driver(define("w", loop(inner, name="outer", items=["a", "b"]), call("after")), reload=reload)
    driver.answer("after")
    driver.go()
    made = {key: args for key, args in driver.calls if key.startswith("late")}
    assert made["late[0][1][0]"] == "a2x of 2"
    assert made["later[1][0][0][0]"] == "b1z of 2"
    assert driver.is_clean()


def test_what_undoes_a_step_still_knows_the_loops_that_it_was_in(reload: bool) -> None:
    undo = call("undo", "{{ loops.rounds.current_item }} of {{ loops.rounds.total_items }}, {{ loops.all.current_item }}")
    body = each(call("do", compensate=undo), name="all", items=[8, 9], concurrency=1)
    driver = Driver(define("w", loop(body, name="rounds", items=["a", "b"]), call("bad")), None, {"bad": boom}, reload=reload).go()
    undone = [args for key, args in driver.calls if key.startswith("undo")]
    assert undone == ["b of 2, 9", "b of 2, 8", "a of 2, 9", "a of 2, 8"]


# Graphs.


def diamond(**options: Any) -> Any:
    return graph(
        {name: call(name, name) for name in "abcd"},
        [("a", "b", "trigger.input > 3"), edge("a", "c", otherwise=True), ("b", "d"), ("c", "d")],
        **options,
    )


def test_graph_takes_the_arrows_that_hold_and_skips_the_rest(reload: bool) -> None:
    done = run(define("w", diamond()), 5, reload=reload)
    assert done.keys == ["a", "b", "d"]
    assert done.view.steps["c"].status == "SKIPPED"
    done = run(define("w", diamond()), 1, reload=reload)
    assert done.keys == ["a", "c", "d"]
    assert done.is_clean()


def test_skipping_goes_on_along_the_arrows(reload: bool) -> None:
    definition = define(
        "w", graph({n: call(n, n) for n in "abcde"}, [("a", "b", "trigger.input"), ("b", "c"), ("c", "d"), ("a", "e")])
    )
    done = run(definition, False, reload=reload)
    assert done.keys == ["a", "e"]
    assert {name for name, step in done.view.steps.items() if step.status == "SKIPPED"} == {"b", "c", "d"}
    assert done.output == {"e": "e"}


def test_ready_nodes_run_at_the_same_time_and_a_node_waits_for_all_its_arrows(reload: bool) -> None:
    driver = Driver(define("w", graph({n: call(n, n) for n in "abcd"}, [("a", "d"), ("b", "d"), ("c", "d")])), reload=reload)
    assert sorted(asked.key for asked in driver.waiting) == ["a", "b", "c"]
    for name in "cab":
        assert all(asked.key != "d" for asked in driver.waiting)
        driver.answer(name)
        driver.restart()
    assert driver.go().output == "d"


def test_decided_arrow_stays_decided_after_a_reload() -> None:
    definition = define(
        "w",
        graph(
            {"a": set_variables(x=1), "slow": "slow", "d": call("d", 1), "other": call("other", 1)},
            [("a", "d", "variables.x == 1"), edge("a", "other", otherwise=True), ("slow", "d")],
        ),
        variables={"x": 1},
    )
    driver = Driver(definition)
    driver.restart()
    driver.go()
    assert driver.keys == ["slow", "d"]


def test_graph_runs_no_more_at_once_than_allowed(reload: bool) -> None:
    driver = Driver(
        define("w", graph({n: call(n, n) for n in "abcde"}, [(n, "e") for n in "abcd"], max_concurrency=2)), reload=reload
    )
    while driver.end is None:
        assert len(driver.waiting) <= 2
        driver.answer()
        if driver.end is None:
            driver.restart()
    assert driver.output == "e"


def test_failed_node_fails_the_graph_at_once_or_when_the_rest_is_done(reload: bool) -> None:
    nodes = {"bad": call("bad"), "next": call("next"), "other": call("other"), "last": call("last")}
    arrows = [("bad", "next"), ("other", "last")]
    done = run(define("w", graph(nodes, arrows)), None, FAIL, reload=reload)
    assert (done.error["step"], done.keys) == ("bad", ["bad"])
    done = run(define("w", graph(nodes, arrows, fail_fast=False)), None, FAIL, reload=reload)
    assert (done.error["step"], done.keys) == ("bad", ["bad", "other", "last"])
    assert done.is_clean()
