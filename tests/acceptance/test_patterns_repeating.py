"""Patterns of repetition and of triggers: WCP-10, 21 to 24. The table is in docs/patterns.md."""

from __future__ import annotations

from tests.acceptance.manual_tasks import Act, act, task

from stepwell.flow import choice, define, loop, otherwise, sequence, set_variables, signal, subworkflow, when

__all__ = ["act"]


def test_wcp_10_a_cycle_can_be_entered_and_left_at_more_than_one_place(act: Act) -> None:
    def go_to(choosing: str, place: str) -> object:
        return set_variables({"at": "{{ " + place + " }}"}, name=f"after {choosing}")

    places = choice(
        when("variables.at == 'A'", task("A"), go_to("A", "steps.A.output")),
        when("variables.at == 'B'", task("B"), go_to("B", "steps.B.output")),
        when("variables.at == 'C'", task("C"), go_to("C", "steps.C.output")),
    )
    begin = set_variables({"at": "{{ trigger.input }}"}, name="begin")
    cycle = loop(places, until="variables.at == 'out'", max_iterations=100)

    play = act(begin, cycle, task("end"), input="A", variables={"at": ""})
    for here, there in ("AB", "BC", "CB", "BA"):
        assert play.open == [here]
        play.do(here, value=there)
    play.do("A", value="out")
    assert play.open == ["end"]

    entered_elsewhere = act(begin, cycle, task("end"), input="C", variables={"at": ""})
    entered_elsewhere.do("C", value="out")
    assert entered_elsewhere.open == ["end"]


def test_wcp_21_a_loop_tests_before_or_after_its_body(act: Act) -> None:
    body = sequence(task("A"), set_variables({"more": "{{ steps.A.output }}"}))
    before = act(loop(body, while_="variables.more", max_iterations=9), task("B"), variables={"more": False})
    assert before.open == ["B"], "tested before: it may run not at all"
    after = act(loop(body, until="not variables.more", max_iterations=9), task("B"), variables={"more": False})
    after.do("A", value=True)
    after.do("A", value=True)
    after.do("A", value=False)
    assert after.open == ["B"]
    assert after.times("A") == 3


def test_wcp_22_a_workflow_calls_itself_until_it_need_not(act: Act) -> None:
    below = subworkflow("factorial", "{{ trigger.input - 1 }}", name="below")
    factorial = define(
        "factorial",
        choice(when("trigger.input > 1", below), otherwise(set_variables({"is_lowest": True})), name="choose"),
        output="{{ trigger.input * (steps.below.output ?? 1) }}",
    )
    assert act.well.start(factorial, 5, execution_id="f").result(60) == 120
    assert act.well.load("f:below:below:below:below").variables == {"is_lowest": True}


def test_wcp_23_a_transient_trigger_is_lost_unless_somebody_waits_for_it(act: Act) -> None:
    play = act(task("A"), signal("bell", transient=True), task("B"))
    play.send("bell", "too early")
    play.do("A")
    assert play.open == ["bell"]
    play.do("bell")
    assert play.open == ["B"]


def test_wcp_24_a_persistent_trigger_is_kept_until_somebody_takes_it(act: Act) -> None:
    play = act(task("A"), signal("letter"), task("B"), signal("letter", name="another"), output="{{ steps.signal.output }}")
    play.send("letter", "early")
    play.do("A")
    assert play.open == ["B"], "the letter was there already"
    play.do("B")
    assert play.open == ["letter"], "one letter is taken once"
    play.do("letter", value="late")
    assert play.run.result(60) == "early"
