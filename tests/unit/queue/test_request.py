"""Requests become items: what is the same request, and what keeps kinds of names apart."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from typing import Any

import msgspec
import pytest

import stepwell
from stepwell import InvalidInput, QueueRequest, Stepwell
from stepwell.flow.function import Workflow
from stepwell.model.queue_item import NewItem
from stepwell.queue.requests import new_item, workspace_queue


async def work(value: int) -> int:
    return value


FLOW: Workflow[..., Any] = Workflow(work, "work", 3)
_ids = count()


def item(**options: Any) -> NewItem:
    return new_item(QueueRequest(workflow=FLOW, value=options.pop("value", 1), **options), FLOW, lambda: str(next(_ids)))


@pytest.mark.parametrize("ask", [Stepwell.enqueue, stepwell.enqueue], ids=["well.enqueue", "stepwell.enqueue"])
def test_every_way_to_ask_for_a_run_has_the_options_of_a_request(ask: Callable[..., Any]) -> None:
    fields = {field.name: field.default for field in msgspec.structs.fields(QueueRequest) if field.name != "workflow"}
    taken = {name: each.default for name, each in inspect.signature(ask).parameters.items() if name not in ("self", "workflow")}
    assert list(taken) == list(fields)
    # Inside of a step, the workspace is that of its execution unless another is named.
    assert {**taken, "workspace": None} == {**fields, "workspace": None}


def test_the_same_call_has_the_same_body_and_with_a_key_the_same_id():
    first, second = item(key="k", delay="1m"), item(key="k", delay=60)
    assert first.body_digest == second.body_digest != ""
    assert first.item_id == second.item_id
    assert first.execution_id != second.execution_id


def test_items_with_other_keys_or_of_other_workspaces_have_other_ids():
    items = [
        item(),
        item(),
        item(key="k"),
        item(key="l"),
        item(key="k", workspace="w"),
        item(execution_id="k"),
        item(debounce=1, key="k"),
    ]
    assert len({each.item_id for each in items}) == len(items)


def test_whatever_differs_is_another_body():
    bodies = [
        item(key="k"),
        item(key="k", value=2),
        item(key="k", queue="mail"),
        item(key="k", priority=1),
        item(key="k", delay=1),
        item(key="k", max_attempts=4),
        item(key="k", singleton=True),
    ]
    assert len({each.body_digest for each in bodies}) == len(bodies)


def test_keys_of_users_and_of_executions_do_not_meet():
    assert item(key="execution:e").key != item(execution_id="e").key
    assert item(singleton="work").singleton != item(singleton=True).singleton


def test_a_debounced_request_is_delayed_by_at_least_that():
    assert item(debounce=5).delay_ms == 5_000
    assert item(debounce=5, delay=9).delay_ms == 9_000
    assert item(debounce=5, key="a").debounce != item(debounce=5, key="b").debounce
    assert item(debounce=5, key="a").key is None


def test_debounced_requests_of_other_workflows_are_others_whatever_they_are_called():
    def name(workflow: str, key: str | None = None) -> str | None:
        known = Workflow(work, workflow, 1)
        request = QueueRequest(workflow=known, value=1, debounce=5, key=key)
        return new_item(request, known, lambda: "i").debounce

    names = [name("a"), name("a", "b"), name("a/b"), name("a", "b/"), name("a/b", "c"), name("a", "b/c"), name("a%2Fb")]
    assert len(set(names)) == len(names)


def test_a_debounced_request_has_no_fixed_time():
    """It would start at that time, however lately another request came."""
    with pytest.raises(InvalidInput, match="debounce with a delay, not with run_at"):
        item(debounce=5, run_at=datetime.now(UTC))


def test_the_key_of_a_debounced_request_is_checked_like_any_other():
    with pytest.raises(InvalidInput):
        item(debounce=5, key="")
    with pytest.raises(InvalidInput):
        item(debounce=5, key=7)


@pytest.mark.parametrize("options", [{"key": "k"}, {"debounce": 5}])
def test_an_execution_id_goes_with_no_other_name_of_the_request(options: dict[str, Any]):
    """Two names could come to two items with the same execution id, and the second could only fail."""
    with pytest.raises(InvalidInput, match="without key and debounce"):
        item(execution_id="e", **options)


def test_a_time_after_the_last_year_that_a_datetime_has_is_refused():
    assert item(run_at=datetime.max.replace(tzinfo=UTC)).run_at_ms == 253_402_300_799_999
    with pytest.raises(InvalidInput, match="9999"):
        item(run_at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))))
    assert item(run_at=datetime.min.replace(tzinfo=UTC)).run_at_ms == 0


def test_none_that_an_item_could_not_tell_from_no_input_is_refused():
    async def nightly(day: str | None = "today") -> None: ...
    async def weekly(day: str = "today") -> None: ...
    async def monthly(day: str | None = None) -> None: ...

    def of(flow: Callable[..., Any], **value: Any) -> bytes:
        known = Workflow(flow, flow.__name__, 1)
        return new_item(QueueRequest(workflow=known, **value), known, lambda: "i").input

    with pytest.raises(InvalidInput, match=r"'nightly' .* default .* 'day'; leave it out, or use well\.start"):
        of(nightly, value=None)
    assert [of(nightly), of(weekly), of(weekly, value=None), of(monthly), of(monthly, value=None)] == [
        b'{"kind":"plain","value":null}'
    ] * 5


def test_the_version_is_that_of_the_workflow():
    assert (item().version, item().workflow_id) == (3, "work")


def test_a_workspace_has_a_queue_of_its_own():
    assert workspace_queue("acme") == "workflow.workspace.acme"
