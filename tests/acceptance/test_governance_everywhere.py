"""Governance of executions that are queued, scheduled or declared: the same as of those that are started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.queue_urls import queue_url

from stepwell import Conflict, ExecutionFailed, Governance, InvalidDefinition, InvalidInput, QueueRequest, Stepwell, step, workflow
from stepwell.flow import call, define, parse

__all__ = ["queue_url"]

WAIT = 60
made: list[int] = []


_cleared = cleared(made)


@pytest.fixture
def well(open_well: OpenWell, queue_url: str) -> Stepwell:
    """A well that works, by the machine's clock."""
    return open_well(queue_url)


@step(name="gov.work")
async def work(number: int) -> int:
    made.append(number)
    return number


@workflow(name="gov.several")
async def several(count: int) -> int:
    return sum([await work(number) for number in range(count)])


TWO = Governance(steps=2)


def test_queued_execution_keeps_the_budget_of_its_request(well: Any):
    item = well.enqueue(several, 3, governance=TWO)
    with pytest.raises(ExecutionFailed, match="GovernanceViolated"):
        item.result(WAIT)
    assert made == [0, 1]
    assert item.state().input == 3
    assert well.enqueue(several, 3).result(WAIT) == 3


def test_each_of_many_requests_has_its_own_governance(well: Any):
    tight, wide = well.enqueue_many([QueueRequest(workflow=several, value=3, governance=each) for each in (TWO, None)])
    with pytest.raises(ExecutionFailed, match="GovernanceViolated"):
        tight.result(WAIT)
    assert wide.result(WAIT) == 3


def test_redriven_item_keeps_its_governance(well: Any):
    item = well.enqueue(several, 3, governance=TWO)
    with pytest.raises(ExecutionFailed):
        item.result(WAIT)
    again = well.queue.redrive(item.item_id)
    with pytest.raises(ExecutionFailed, match="GovernanceViolated"):
        again.result(WAIT)


def test_redriven_start_keeps_its_governance(well: Any):
    well.workspaces.put("acme", tier="free")
    run = well.start(several, 3, workspace="acme", governance=TWO)
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    [dead] = well.queue.dead()
    assert dead.input == 3
    with pytest.raises(ExecutionFailed, match="GovernanceViolated"):
        well.queue.redrive(dead.item_id).result(WAIT)


def test_same_key_with_another_governance_is_another_request(well: Any):
    well.enqueue(several, 1, key="a", governance=TWO)
    assert not well.enqueue(several, 1, key="a", governance=TWO).is_new
    with pytest.raises(Conflict, match="something else"):
        well.enqueue(several, 1, key="a", governance=Governance(steps=3))


def test_executions_of_a_schedule_have_its_governance(well: Any):
    well.schedules.put("often", several, 3, every="1d", governance=TWO)
    with pytest.raises(ExecutionFailed, match="GovernanceViolated"):
        well.schedules.run_now("often").result(WAIT)
    assert made == [0, 1]
    assert (well.schedules.get("often").value, well.schedules.get("often").governance) == (3, TWO)


def test_declared_workflow_has_a_governance_of_its_own(well: Any):
    nodes = [call("gov.work", number, name=f"w{number}") for number in range(3)]
    definition = define("gov_declared", *nodes, governance=TWO)
    with pytest.raises(ExecutionFailed, match="GovernanceViolated"):
        well.start(definition).result(WAIT)
    with pytest.raises(ExecutionFailed, match="GovernanceViolated"):
        well.enqueue(definition).result(WAIT)
    assert well.start(definition, governance=Governance(steps=3)).result(WAIT) == 2


def test_governance_is_written_in_yaml_and_comes_back(well: Any, tmp_path: Path):
    twice = "  - {step: gov.work, with: {number: 1}}\n" * 2
    text = f"name: gov_yaml\ngovernance:\n  steps: 1\n  effects: [read]\ndo:\n{twice}"
    definition = parse(text)
    assert definition.governance == Governance(steps=1, effects=("read",))
    well.definitions.put(definition)
    assert well.definitions.get("gov_yaml") == definition
    with pytest.raises(ExecutionFailed, match="GovernanceViolated"):
        well.start("gov_yaml").result(WAIT)
    with pytest.raises(InvalidDefinition, match="steps"):
        parse("name: bad\ngovernance: {steps: -1}\ndo: gov.work\n")


def test_governance_of_the_wrong_type_is_refused(well: Any):
    wrong: Any = {"steps": 1}
    with pytest.raises(InvalidInput, match="governance is a"):
        well.enqueue(several, 1, governance=wrong)
    with pytest.raises(InvalidInput, match="governance is a"):
        workflow(governance=wrong)
    with pytest.raises(InvalidInput, match="governance is a"):
        define("gov_wrong", "gov.work", governance=wrong)
