"""The trigger of a run: typed, in code, in templates and in its record, and its names and ids."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.acceptance.conftest import working_well

import stepwell
from stepwell import (
    Conflict,
    EventTrigger,
    FunctionTrigger,
    InvalidInput,
    ManualTrigger,
    ScheduleTrigger,
    Stepwell,
    WebhookTrigger,
    step,
    workflow,
)
from stepwell.flow import call, define
from stepwell.model.limits import Limits
from stepwell.model.record import Trigger
from stepwell.testing.conformance.fixtures import MakeStore

well = working_well

WAIT = 60
WEBHOOK = WebhookTrigger({"x-event": "order.paid"}, {"id": 7}, {"retry": "1"})
EVENT = EventTrigger("order.paid", {"id": 7}, {"id": 6})
MOMENT = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)
seen: list[Any] = []


def notice() -> Trigger:
    trigger = stepwell.current().trigger
    seen.append(trigger)
    return trigger


@step
def notice_in_step() -> str:
    return type(notice()).__name__


@step(process=True)
def kind_in_process() -> str:
    return type(stepwell.current().trigger).__name__


@workflow
async def noticing(value: Any = None) -> Any:
    notice()
    await notice_in_step()
    return value


@workflow
async def noticing_in_process() -> str:
    return await kind_in_process()


@workflow
async def calling(value: Any) -> Any:
    return await noticing(value)


@workflow
async def adding(first: int, second: int = 10) -> int:
    notice()
    return first + second


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@pytest.mark.parametrize("trigger", [WEBHOOK, EVENT, ScheduleTrigger(MOMENT, cron="@daily"), ManualTrigger({"by": "me"})])
def test_run_knows_the_trigger_that_it_was_started_with(well: Any, trigger: Trigger) -> None:
    run = well.start(noticing, {"order": 7}, trigger=trigger)
    assert run.result(WAIT) == {"order": 7}
    assert seen == [trigger, trigger]
    assert run.state().get_trigger() == trigger
    assert run.verify().ok


@pytest.mark.parametrize(("trigger", "value"), [(WEBHOOK, {"id": 7}), (EVENT, {"id": 7}), (ScheduleTrigger(MOMENT), None)])
def test_trigger_without_another_input_gives_its_own(well: Any, trigger: Trigger, value: Any) -> None:
    assert well.start(noticing, trigger=trigger).result(WAIT) == value


def test_given_input_wins_over_that_of_the_trigger(well: Any) -> None:
    for value in (None, 0, {"id": 7}, {"kind": "webhook", "input": 5}):
        assert well.start(noticing, value, trigger=WEBHOOK).result(WAIT) == value


def test_arguments_of_a_function_trigger_are_passed_by_name(well: Any) -> None:
    assert well.start(adding, trigger=FunctionTrigger({"first": 1})).result(WAIT) == 11
    assert seen == [FunctionTrigger({"first": 1})]
    for arguments in ({"third": 1}, {"second": 1}, [1, 2]):
        with pytest.raises(InvalidInput):
            well.start(adding, trigger=FunctionTrigger(arguments))


def test_run_without_a_trigger_has_a_manual_one_and_a_child_a_call(well: Any) -> None:
    well.start(noticing, 5).result(WAIT)
    assert seen[0] == ManualTrigger(5)
    seen.clear()
    well.start(calling, 5).result(WAIT)
    assert seen[0] == FunctionTrigger({"value": 5}) or seen[0] == FunctionTrigger(5)


def test_step_in_a_process_knows_the_trigger(well: Any) -> None:
    assert well.start(noticing_in_process, trigger=WEBHOOK).result(WAIT) == "WebhookTrigger"


def test_trigger_that_is_none_is_refused_before_anything_is_stored(well: Any) -> None:
    for trigger in ({"kind": "webhook"}, "webhook", ScheduleTrigger(MOMENT.replace(tzinfo=None)), WebhookTrigger(body=object())):
        with pytest.raises(InvalidInput):
            well.start(noticing, trigger=trigger)
    assert well.executions.list() == []


def test_same_id_with_another_trigger_is_the_same_run_if_its_input_is(well: Any) -> None:
    run = well.start(noticing, {"id": 7}, trigger=WEBHOOK, execution_id="hook")
    assert well.start(noticing, {"id": 7}, trigger=WebhookTrigger({}, {"id": 7}), execution_id="hook").result(WAIT) == {"id": 7}
    with pytest.raises(Conflict):
        well.start(noticing, trigger=WebhookTrigger({}, {"id": 8}), execution_id="hook")
    assert run.state().get_trigger() == WEBHOOK


@pytest.mark.parametrize(
    ("trigger", "template", "value"),
    [
        (WEBHOOK, "{{ trigger.headers }}", {"x-event": "order.paid"}),
        (WEBHOOK, "{{ trigger.input }}", {"order": 1}),
        (EVENT, "{{ trigger.previous.id }}", 6),
        (ScheduleTrigger(MOMENT), "{{ trigger.scheduled_at }}", "2026-05-01T09:30:00Z"),
    ],
)
def test_template_reads_the_trigger(well: Any, trigger: Trigger, template: str, value: Any) -> None:
    definition = define("tr-reading", call("notice_in_step", {}), output=template)
    assert well.start(definition, {"order": 1}, trigger=trigger).result(WAIT) == value


def test_each_tick_of_a_backfill_has_its_own_trigger(make_store: MakeStore, clock: Any) -> None:
    reading = define("tr-ticks", call("notice_in_step", {}), output=["{{ trigger.scheduled_at }}", "{{ trigger.input }}"])
    with Stepwell(make_store(clock, Limits()), clock=clock) as well:
        for name, way in (("by function", noticing), ("by definition", reading)):
            well.schedules.put(name, way, {"report": 1}, cron="0 6 * * *")
            items = well.schedules.backfill(name, MOMENT, MOMENT + timedelta(days=5))
            results = [item.result(WAIT) for item in items]
            runs = [well.run(item.execution_id) for item in items]
            ticks = [datetime(2026, 5, day, 6, tzinfo=UTC) for day in range(2, 7)]
            assert [run.state().get_trigger() for run in runs] == [ScheduleTrigger(tick, cron="0 6 * * *") for tick in ticks]
            if way is reading:
                assert results == [[f"2026-05-{day:02}T06:00:00Z", {"report": 1}] for day in range(2, 7)]
            else:
                assert results == [{"report": 1}] * 5
            assert [item.input for item in well.queue.list()][:1] == [{"report": 1}]


def test_interval_and_time_zone_are_in_the_trigger() -> None:
    tick = datetime(2026, 5, 1, 11, 30, tzinfo=timezone(timedelta(hours=2)))
    assert ScheduleTrigger(MOMENT, every=60.0).every == 60.0
    assert tick == MOMENT


def test_every_run_has_its_workflows_name_and_a_trace_that_children_share(well: Any) -> None:
    run = well.start(calling, 5)
    run.result(WAIT)
    parent = well.load(run.execution_id).identity
    [child_id] = [each.execution_id for each in well.executions.list(workflow="noticing")]
    child = well.load(child_id).identity
    assert (parent.workflow_name, parent.parent_id) == ("calling", None)
    assert (child.workflow_name, child.parent_id) == ("noticing", run.execution_id)
    assert parent.trace_id is not None
    assert child.trace_id == parent.trace_id
    item = well.enqueue(noticing, 5)
    item.result(WAIT)
    queued = well.load(item.execution_id).identity
    assert queued.workflow_name == "noticing"
    assert queued.trace_id not in (None, parent.trace_id)
