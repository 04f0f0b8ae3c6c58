"""One workspace never gets hold of another's: neither by an id that it guesses, nor by the state that a step writes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.store_urls import url_of
from tests.support.stores import STORES

import stepwell
from stepwell import AlreadyExists, ExecutionFailed, Scope, Stepwell, step, workflow


@step
def note(text: str) -> str:
    stepwell.current().state(Scope.custom("notes")).set("text", text)
    return text


@step
def reach(workspace: str) -> None:
    stepwell.current().state(Scope.of_workspace(workspace)).set("text", "mine now")


@workflow
async def remember(text: str) -> str:
    return await note(text)


@workflow
async def intrude(workspace: str) -> None:
    await reach(workspace)


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param, request)


@pytest.fixture
def shared(open_well: OpenWell, url: str) -> Stepwell:
    """A well with two tenants."""
    well = open_well(url)
    for workspace in ("acme", "bolt"):
        well.workspaces.put(workspace, tier="startup")
    return well


def test_start_with_an_id_of_another_workspace_is_refused(shared: Stepwell) -> None:
    run = shared.start(remember, "secret", workspace="acme", execution_id="order-7")
    assert run.result(60) == "secret"

    with pytest.raises(AlreadyExists):
        shared.start(remember, "guess", workspace="bolt", execution_id="order-7")

    assert shared.start(remember, "secret", workspace="acme", execution_id="order-7").result(60) == "secret"
    assert shared.executions.list(workspace="bolt") == []


def test_start_with_an_id_of_another_workflow_is_refused(shared: Stepwell) -> None:
    shared.start(remember, "secret", execution_id="order-7").result(60)

    with pytest.raises(AlreadyExists, match="'remember'"):
        shared.start(intrude, "acme", execution_id="order-7")


def test_start_with_a_deleted_id_is_refused(shared: Stepwell) -> None:
    shared.start(remember, "secret", execution_id="order-7").result(60)
    shared.delete("order-7")

    with pytest.raises(AlreadyExists):
        shared.start(remember, "secret", execution_id="order-7")


def test_enqueue_with_an_id_of_another_workspace_is_refused(shared: Stepwell) -> None:
    shared.start(remember, "secret", workspace="acme", execution_id="order-7").result(60)

    with pytest.raises(AlreadyExists):
        shared.enqueue(remember, "guess", workspace="bolt", execution_id="order-7")

    assert shared.queue.list(workspace="bolt") == []


def test_item_whose_execution_id_was_taken_does_not_return_the_others_result(shared: Stepwell) -> None:
    shared.queue.pause("default")
    item = shared.enqueue(remember, "mine", workspace="bolt", execution_id="order-7")
    shared.start(remember, "secret", workspace="acme", execution_id="order-7").result(60)
    shared.queue.resume("default")
    while item.state().status != "FAILED":
        pass

    with pytest.raises(ExecutionFailed, match="before it started"):
        item.result(60)


def test_enqueue_again_with_an_id_of_its_own_is_the_same_item(shared: Stepwell) -> None:
    item = shared.enqueue(remember, "secret", workspace="acme", execution_id="order-7")
    assert item.result(60) == "secret"

    assert shared.enqueue(remember, "secret", workspace="acme", execution_id="order-7").item_id == item.item_id


def test_the_same_workflow_writes_to_the_state_of_the_workspace_that_it_runs_for(shared: Stepwell) -> None:
    for workspace in ("acme", "bolt"):
        shared.start(remember, f"of {workspace}", workspace=workspace).result(60)

    kept: dict[str, Any] = {
        workspace: shared.state.workspace(workspace).custom("notes").get("text") for workspace in ("acme", "bolt", "default")
    }
    assert kept == {"acme": "of acme", "bolt": "of bolt", "default": None}


def test_step_cannot_write_to_the_state_of_another_workspace(shared: Stepwell) -> None:
    shared.state.workspace("acme").set("text", "ours")

    with pytest.raises(ExecutionFailed, match="cannot reach the state of workspace 'acme'"):
        shared.start(intrude, "acme", workspace="bolt").result(60)

    assert shared.state.workspace("acme").get("text") == "ours"
