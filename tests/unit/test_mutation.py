"""Mutations: what each does, and the rule that it must keep."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from tests.unit.sample import NOW, Chain, metadata, refused, step

from stepwell.errors import AlreadyRecorded, InvalidInput
from stepwell.model.mutation import (
    IncrementStepCount,
)
from stepwell.model.record import (
    CancelScope,
    EventTrigger,
    FunctionTrigger,
    LoopContext,
    ManualTrigger,
    ScheduleTrigger,
    StepOutput,
    Token,
    WebhookTrigger,
)
from stepwell.model.status import Status


def test_new_execution_has_its_context_a_root_scope_and_nothing_else() -> None:
    view = Chain(context={"a": 1}).view
    assert view.identity == metadata()
    assert view.context == {"a": 1}
    assert view.scopes == {"root": CancelScope("root", None)}
    assert (view.status, view.step_count, view.trigger, view.metadata) == (Status.PENDING, 0, None, {})
    assert view.variables == view.steps == view.loops == view.tokens == {}


# Context.


def test_set_context_replaces_all_of_it() -> None:
    chain = Chain(context={"a": 1, "b": 2})
    chain.change(lambda tx: tx.set_context({"b": 3, "c": [4]}))
    assert chain.view.context == {"b": 3, "c": [4]}


@pytest.mark.parametrize("context", [None, [], "a", 5, [("a", 1)]])
def test_context_must_be_a_dict(context: object) -> None:
    assert "must be a dict" in str(refused(Chain(), lambda tx: tx.set_context(context), InvalidInput))


@pytest.mark.parametrize("context", [{1: 2}, {"a": {1: 2}}, {"a": object()}, {"\ud800": 1}])
def test_context_must_hold_values(context: object) -> None:
    refused(Chain(), lambda tx: tx.set_context(context), InvalidInput)


def test_value_is_taken_as_it_is_at_the_call() -> None:
    chain, context, value = Chain(), {"a": [1]}, [1]
    chain.change(lambda tx: (tx.set_context(context), tx.set_variable("v", value), context["a"].append(2), value.append(2)))
    assert chain.view.context == {"a": [1]}
    assert chain.view.variables == {"v": [1]}


def test_update_context_stores_what_the_function_came_to() -> None:
    chain = Chain(context={"keep": 1, "change": 2, "drop": 3})
    receipt = chain.change(lambda tx: tx.update_context(lambda c: {"keep": c["keep"], "change": c["change"] + 1, "new": None}))
    assert chain.view.context == {"keep": 1, "change": 3, "new": None}
    assert receipt.mutations == ({"type": "patch_context", "set": {"change": 3, "new": None}, "remove": ["drop"]},)


def test_update_context_sees_what_the_batch_did_before() -> None:
    chain = Chain(context={"n": 1})
    chain.change(
        lambda tx: (
            tx.set_context({"n": 10}),
            tx.update_context(lambda c: {**c, "n": c["n"] + 1}),
            tx.update_context(lambda c: {**c, "m": c["n"]}),
        )
    )
    assert chain.view.context == {"n": 11, "m": 11}


def test_update_context_gets_a_copy() -> None:
    chain = Chain(context={"list": [1]})

    def change(context: dict[str, object]) -> dict[str, object]:
        context["list"].append(2)
        return {"other": 1}

    chain.change(lambda tx: (tx.update_context(change), tx.set_variable("x", 1)))
    assert chain.view.context == {"other": 1}


@pytest.mark.parametrize("answer", [None, [], "x", 5])
def test_update_context_must_give_back_a_dict(answer: object) -> None:
    error = refused(Chain(), lambda tx: tx.update_context(lambda _: answer), InvalidInput)
    assert f"gave back {type(answer).__name__}, not a dict" in str(error)


@pytest.mark.parametrize("answer", [{1: 1}, {"a": b"x"}, {"\ud800": 1}])
def test_update_context_must_give_back_values(answer: object) -> None:
    refused(Chain(), lambda tx: tx.update_context(lambda _: answer), InvalidInput)


def test_error_of_a_users_function_comes_through_and_changes_nothing() -> None:
    chain = Chain(context={"a": 1})
    chain.change(lambda tx: tx.add_token("t", node="n"))

    def fail(_: object) -> object:
        raise ZeroDivisionError("of the user's own")

    before = chain.view
    for change in (
        lambda tx: (tx.set_variable("a", 1), tx.update_context(fail), tx.set_variable("b", 1)),
        lambda tx: (tx.set_variable("a", 1), tx.update_token("t", fail)),
    ):
        with pytest.raises(ZeroDivisionError, match="of the user's own"):
            chain.change(change)
        assert chain.view == before


# Variables.


def test_last_write_of_a_variable_wins_and_none_is_a_value() -> None:
    chain = Chain()
    chain.change(lambda tx: (tx.set_variable("a", 1), tx.set_variable("a", 2), tx.set_variable("b", None)))
    assert chain.view.variables == {"a": 2, "b": None}
    chain.set("a", None)
    assert chain.view.variables == {"a": None, "b": None}


@pytest.mark.parametrize("name", ["", "a\0", "\ud800", None, 5, "x" * 513])
def test_bad_names_are_refused(name: str) -> None:
    """T46."""
    refused(Chain(), lambda tx: tx.set_variable(name, 1))
    refused(Chain(), lambda tx: tx.add_token(name, node="n"))
    refused(Chain(), lambda tx: tx.add_token("t", node=name))
    refused(Chain(), lambda tx: tx.remove_token(name))
    refused(Chain(), lambda tx: tx.update_token(name, lambda token: token))
    refused(Chain(), lambda tx: tx.enter_scope(name))
    refused(Chain(), lambda tx: tx.enter_scope("s", parent=name))
    refused(Chain(), lambda tx: tx.exit_scope(name))
    refused(Chain(), lambda tx: tx.cancel_scope(name))
    refused(Chain(), lambda tx: tx.record_step(step(name)))
    refused(Chain(), lambda tx: tx.set_loop_context(LoopContext(name, 0, None, 1)))


# Trigger.

TRIGGERS = [
    EventTrigger("created", {"id": 1}, None),
    WebhookTrigger({"Content-Type": "x"}, {"a": [1]}, {"q": "1"}),
    WebhookTrigger({}),
    ScheduleTrigger(NOW, cron="* * * * *"),
    ScheduleTrigger(NOW, every=1.5),
    ScheduleTrigger(NOW.astimezone(timezone(timedelta(hours=1)))),
    FunctionTrigger({"order": 7}),
    ManualTrigger("because"),
    ManualTrigger(),
    {"plain": [1, 2]},
    "text",
    None,
    {"kind": "event", "type": "looks like one, is plain"},
    {"kind": "nonsense"},
]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: type(trigger).__name__)
def test_trigger_comes_back_as_it_was_given(trigger: object) -> None:
    chain = Chain()
    chain.change(lambda tx: tx.set_trigger(trigger))
    assert chain.view.trigger == trigger
    assert type(chain.view.trigger) is type(trigger)


@pytest.mark.parametrize("first", [None, "first", EventTrigger("x")])
def test_trigger_is_written_once(first: object) -> None:
    chain = Chain()
    chain.change(lambda tx: tx.set_trigger(first))
    refused(chain, lambda tx: tx.set_trigger("second"), AlreadyRecorded)
    refused(Chain(), lambda tx: (tx.set_trigger(first), tx.set_trigger(first)), AlreadyRecorded)
    assert chain.view.trigger == first


@pytest.mark.parametrize(
    "trigger",
    [
        EventTrigger("x", entity=b"bytes"),
        EventTrigger("x", entity=(1, 2)),
        EventTrigger("x", previous=object()),
        EventTrigger(5),
        WebhookTrigger({"a": 1}),
        WebhookTrigger({}, body=NOW),
        FunctionTrigger(float("nan")),
        ManualTrigger({1: 2}),
        ScheduleTrigger(datetime(2026, 1, 1)),  # noqa: DTZ001 - that is the point
        ScheduleTrigger(NOW, every=float("inf")),
        ScheduleTrigger("2026-01-01"),
        object(),
    ],
)
def test_trigger_that_would_not_come_back_is_refused(trigger: object) -> None:
    refused(Chain(), lambda tx: tx.set_trigger(trigger), InvalidInput)


# Steps.


def test_step_is_recorded_once() -> None:
    chain = Chain()
    chain.change(lambda tx: tx.record_step(step("a", {"x": [1]})))
    refused(chain, lambda tx: tx.record_step(step("a", {"x": [1]})), AlreadyRecorded)
    refused(chain, lambda tx: tx.record_step(step("a", "other")), AlreadyRecorded)
    refused(chain, lambda tx: (tx.record_step(step("b")), tx.record_step(step("b"))), AlreadyRecorded)
    assert chain.view.steps == {"a": step("a", {"x": [1]})}


@pytest.mark.parametrize(
    "bad",
    [
        step("a", status="RUNNING"),
        step("a", status=""),
        step("a", output=object()),
        StepOutput("n", "a", "COMPLETED", None, datetime(2026, 1, 1), 1),  # noqa: DTZ001 - that is the point
        StepOutput("n", "a", "COMPLETED", None, "now", 1),
        StepOutput("n", "a", "COMPLETED", None, NOW, -1),
        StepOutput("n", "a", "COMPLETED", None, NOW, 1.5),
        StepOutput("n", "a", "COMPLETED", None, NOW, True),
        StepOutput("n", "a", "COMPLETED", None, NOW, 2**70),
        StepOutput("", "a", "COMPLETED", None, NOW, 1),
        {"node_name": "a"},
        None,
    ],
)
def test_step_with_a_bad_field_is_refused(bad: StepOutput) -> None:
    refused(Chain(), lambda tx: tx.record_step(bad), InvalidInput)


@pytest.mark.parametrize("status", ["COMPLETED", "PARTIALLY_COMPLETED", "FAILED", "CANCELLED", "SKIPPED"])
def test_step_may_end_in_any_of_its_statuses(status: str) -> None:
    chain = Chain()
    chain.change(lambda tx: tx.record_step(step("a", status=status)))
    assert chain.view.step("a").status == status


# Loops.


def test_loop_is_replaced_and_nested_loops_stand_apart() -> None:
    chain = Chain()
    chain.change(
        lambda tx: (tx.set_loop_context(LoopContext("out", 0, "x", 2)), tx.set_loop_context(LoopContext("in", 0, [1], None)))
    )
    chain.change(lambda tx: tx.set_loop_context(LoopContext("in", 1, [2], None)))
    assert chain.view.loops == {"out": LoopContext("out", 0, "x", 2), "in": LoopContext("in", 1, [2], None)}


@pytest.mark.parametrize(
    "bad",
    [
        LoopContext("l", -1, None, 1),
        LoopContext("l", 0, b"", 1),
        LoopContext("l", 0, None, -1),
        LoopContext("l", "0", None, 1),
        "loop",
    ],
)
def test_loop_with_a_bad_field_is_refused(bad: LoopContext) -> None:
    refused(Chain(), lambda tx: tx.set_loop_context(bad), InvalidInput)


# Tokens.


def test_token_lives_and_goes() -> None:
    chain = Chain()
    chain.change(lambda tx: tx.add_token("t", node="a", value={"x": 1}))
    assert chain.view.tokens == {"t": Token("t", "a", "root", {"x": 1})}
    chain.change(lambda tx: tx.update_token("t", lambda token: token.replace(node="b")))
    chain.change(lambda tx: tx.update_token("t", lambda token: {"value": [token.value]}))
    assert chain.view.tokens["t"] == Token("t", "b", "root", [{"x": 1}])
    chain.change(lambda tx: tx.remove_token("t"))
    assert chain.view.tokens == {}


def test_token_ids_are_unique_and_must_exist() -> None:
    chain = Chain()
    chain.change(lambda tx: tx.add_token("t", node="a"))
    refused(chain, lambda tx: tx.add_token("t", node="b"))
    refused(chain, lambda tx: tx.remove_token("u"))
    refused(chain, lambda tx: tx.update_token("u", lambda token: token))
    refused(chain, lambda tx: tx.add_token("u", node="a", scope="nowhere"))
    refused(chain, lambda tx: tx.add_token("u", node="a", value=object()))


def test_update_token_stores_the_result_and_not_the_function() -> None:
    chain = Chain()
    chain.change(lambda tx: tx.add_token("t", node="a", value=1))
    receipt = chain.change(lambda tx: tx.update_token("t", lambda token: {"value": token.value + 1}))
    expected = {"token_id": "t", "node": "a", "scope": "root", "value": 2, "status": "active"}
    assert receipt.mutations == ({"type": "update_token", "token_id": "t", "token": expected},)


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        lambda _: "token",
        lambda _: {"token_id": "u"},
        lambda _: {"status": "cancelled"},
        lambda _: {"value": object()},
        lambda _: {"node": ""},
        lambda _: {"scope": "nowhere"},
        lambda token: token.replace(token_id="u"),
        lambda token: token.replace(status="bogus"),
    ],
)
def test_update_token_must_give_back_a_good_token(change: object) -> None:
    chain = Chain()
    chain.change(lambda tx: tx.add_token("t", node="a"))
    refused(chain, lambda tx: tx.update_token("t", change))


# Counters and metadata.


def test_step_count_grows() -> None:
    chain = Chain()
    chain.change(lambda tx: (tx.increment_step_count(), tx.increment_step_count()))
    assert chain.view.step_count == 2
    chain.commit([IncrementStepCount(3)])
    assert chain.view.step_count == 5
    with pytest.raises(InvalidInput, match="only grows"):
        chain.commit([IncrementStepCount(0)])


def test_metadata_is_replaced() -> None:
    chain = Chain()
    chain.change(lambda tx: tx.set_metadata({"a": 1}))
    chain.change(lambda tx: tx.set_metadata({"b": {"c": None}}))
    assert chain.view.metadata == {"b": {"c": None}}
    assert chain.view.identity == metadata()
    for bad in (None, [], "x", {"a": object()}):
        refused(chain, lambda tx, bad=bad: tx.set_metadata(bad), InvalidInput)
