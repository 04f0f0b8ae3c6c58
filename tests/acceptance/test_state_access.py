"""Which scoped state a step reaches: its own workflow's, its workspace's and custom ones; another workflow's by a grant."""

from __future__ import annotations

from typing import Any

import pytest
from tests.acceptance.conftest import working_well

import stepwell
from stepwell import ExecutionFailed, InvalidDefinition, InvalidInput, Scope, step, workflow
from stepwell.flow import call, define, parse, render

well = working_well

WAIT = 60


@step(name="sa.count")
async def count() -> list[int]:
    state = stepwell.current().state
    for scope in (state.workflow, state.step, state.workspace, state(Scope.custom("stock")), state(Scope.globals())):
        scope.increment("runs")
    return [await scope.get("runs") for scope in (state.workflow, state.step, state.workspace)]


@workflow(name="sa.counting")
async def counting() -> list[int]:
    return await count()


@step(name="sa.peek")
async def peek(other: str) -> list[Any]:
    state = stepwell.current().state
    return [await state(Scope.of_workflow(other)).get("runs"), await state(Scope.of_step(other, "sa.count")).all()]


@step(name="sa.meddle")
async def meddle(other: str, how: str) -> None:
    state = stepwell.current().state(Scope.of_workflow(other))
    match how:
        case "set":
            state.set("runs", 0)
        case "delete":
            state.delete("runs")
        case "increment":
            state.increment("runs")
        case "compare_and_set":
            state.compare_and_set("runs", 0, revision=1)
        case _:
            state.set_if_absent("more", 0)


@workflow(name="sa.stranger")
async def stranger(other: str) -> Any:
    return await peek(other)


@workflow(name="sa.granted", grants=["sa.counting"])
async def granted(other: str) -> Any:
    return await peek(other)


@workflow(name="sa.meddling", grants=["sa.counting"])
async def meddling(other: str, how: str) -> None:
    await meddle(other, how)


def test_step_writes_the_scopes_of_its_workflow_and_workspace_by_short_names(well: Any) -> None:
    assert well.start(counting).result(WAIT) == [1, 1, 1]
    assert well.state.at(Scope.of_workflow("sa.counting")).get("runs") == 1
    assert well.state.at(Scope.of_step("sa.counting", "sa.count")).get("runs") == 1
    assert well.state.workspace("default").get("runs") == 1
    assert well.state.custom("stock").get("runs") == 1


def test_step_of_a_definition_has_its_own_workflows_state(well: Any) -> None:
    definition = define("sa-declared", call("sa.count", {}, name="first"), output="{{ steps.first.output }}")
    assert well.start(definition).result(WAIT) == [1, 1, 1]
    assert well.state.workflow("sa-declared").get("runs") == 1
    assert well.state.at(Scope.of_step("sa-declared", "sa.count")).get("runs") == 1


def test_state_of_another_workflow_is_refused_without_a_grant(well: Any) -> None:
    well.start(counting).result(WAIT)
    with pytest.raises(
        ExecutionFailed, match=r"cannot reach the state of workflow 'sa.counting'; to read it, write @workflow\(grants"
    ):
        well.start(stranger, "sa.counting").result(WAIT)
    with pytest.raises(ExecutionFailed, match=r"cannot reach the state of workflow .sa\.stranger."):
        well.start(granted, "sa.stranger").result(WAIT)


def test_granted_workflow_reads_the_state_of_another(well: Any) -> None:
    well.start(counting).result(WAIT)
    assert well.start(granted, "sa.counting").result(WAIT) == [1, {"runs": 1}]


def test_steps_of_a_definition_read_what_it_is_granted(well: Any) -> None:
    well.start(counting).result(WAIT)
    peeking = call("sa.peek", {"other": "{{ trigger.input }}"}, name="peek")
    granted = define("sa-granted", peeking, grants=["sa.counting"])
    assert parse(render(granted)) == granted
    assert well.start(granted, "sa.counting").result(WAIT) == [1, {"runs": 1}]
    with pytest.raises(ExecutionFailed, match=r"to read it, write define\(grants=\['sa.counting'\]\) there"):
        well.start(define("sa-stranger", peeking), "sa.counting").result(WAIT)
    meddle = call("sa.meddle", {"other": "sa.counting", "how": "set"}, name="meddle")
    with pytest.raises(ExecutionFailed, match="can be read here and not written"):
        well.start(define("sa-meddling", meddle, grants=["sa.counting"])).result(WAIT)


@pytest.mark.parametrize("grants", ["sa.counting", [5], [""]])
def test_grants_of_a_definition_are_names(grants: Any) -> None:
    with pytest.raises(InvalidDefinition, match="grants"):
        define("sa-bad", "sa.count", grants=grants)


@pytest.mark.parametrize("how", ["set", "delete", "increment", "compare_and_set", "set_if_absent"])
def test_grant_is_for_reading(well: Any, how: str) -> None:
    well.start(counting).result(WAIT)
    with pytest.raises(ExecutionFailed, match=r"the state of workflow .sa\.counting. can be read here and not written"):
        well.start(meddling, {"other": "sa.counting", "how": how}).result(WAIT)
    assert well.state.workflow("sa.counting").all() == {"runs": 1}


@pytest.mark.parametrize("grants", ["sa.counting", [5], [""], 5, {"sa.counting": 1}])
def test_grants_that_are_no_names_are_refused(grants: Any) -> None:
    with pytest.raises(InvalidInput):
        workflow(name="sa.bad", grants=grants)(lambda: None)
