"""Usage of limits, and limits that are overridden for a while."""

from __future__ import annotations

from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell

from stepwell import ExecutionFailed, FakeClock, Governance, InvalidInput, LimitExceeded, Limits, NotFound, Scope, step, workflow


@workflow(name="usage.report")
async def report(value: int) -> int:
    return value


@step(name="usage.count")
async def count(value: int) -> int:
    return value


@workflow(name="usage.counting")
async def counting(most: int) -> int:
    for number in range(most):
        await count(number)
    return most


def test_usage_of_a_scope_counts_down_to_its_limits(open_well: OpenWell, url: str):
    well = open_well(url, limits=Limits(scope_keys=3, scope_bytes=1_000))
    bills = well.state.custom("bills")
    bills.set_many({"a": 1, "b": "xx"})
    amounts = well.usage.scope(bills).amounts
    assert (amounts["scope_keys"].used, amounts["scope_keys"].maximum, amounts["scope_keys"].left) == (2, 3, 1)
    assert (amounts["scope_bytes"].used, amounts["scope_bytes"].left) == (7, 993)
    assert well.usage.scope(Scope.custom("bills")).amounts == amounts


def test_usage_of_an_execution_counts_its_bytes_entries_steps_and_receipts(well: Any):
    well.create("meter", context={"name": "m"})
    with well.transaction("meter") as tx:
        tx.set_variable("reading", 7)
        tx.increment_step_count()
    usage = well.usage.execution("meter")
    assert usage.amounts["steps"].used == 1
    assert usage.amounts["steps"].left is None
    assert usage.amounts["receipts"].used == 2
    assert 0 < usage.amounts["execution_bytes"].used < usage.amounts["execution_bytes"].maximum
    with pytest.raises(NotFound):
        well.usage.execution("none")


def test_steps_left_are_those_of_the_governance(well: Any):
    well.start(report, 7, execution_id="r", governance=Governance(steps=5))
    assert well.usage.execution("r").amounts["steps"].left == 5


def test_usage_of_a_workspace_is_what_its_limits_count(well: Any):
    well.workspaces.put_tier("small", concurrency=2, queue_depth=5, state_bytes=100)
    well.workspaces.put("acme", tier="small")
    well.workspaces.put("other", tier="small")
    well.workspaces.pause("acme")
    well.state.workspace("acme").set("k", "x" * 47)
    well.state.workspace("other").set("k", "x" * 7)
    well.create("e", workspace="acme")
    well.enqueue(report, 1, workspace="acme")
    amounts = well.usage.workspace("acme").amounts
    assert {name: (each.used, each.left) for name, each in amounts.items() if each.maximum is not None} == {
        "state_bytes": (50, 50),
        "concurrency": (0, 2),
        "queue_depth": (1, 4),
    }
    assert (amounts["state_keys"].used, amounts["executions"].used) == (1, 1)
    with pytest.raises(NotFound):
        well.usage.workspace("none")


def test_usage_of_a_workflow_is_its_state_and_its_executions(well: Any):
    for name in "abc":
        well.create(name, workflow="billing")
    well.state.workflow("billing").set("k", 1)
    well.state.workflow("billing").step("charge").set("k", 1)
    well.state.workflow("billing2").set("k", 1)
    usage = well.usage.workflow("billing")
    assert (usage.amounts["state_keys"].used, usage.amounts["executions"].used, usage.is_complete) == (2, 3, True)
    part = well.usage.workflow("billing", executions=2)
    assert (part.amounts["executions"].used, part.is_complete) == (2, False)


def test_override_raises_a_limit_until_its_end(well: Any, clock: FakeClock):
    well.workspaces.put_tier("small", state_bytes=10)
    well.workspaces.put("acme", tier="small")
    state = well.state.workspace("acme")
    with pytest.raises(LimitExceeded):
        state.set("k", "x" * 100)
    acme = well.workspaces.override("acme", "state_bytes", "2KiB", span="7d", reason="import")
    assert (acme.overrides["state_bytes"].value, acme.overrides["state_bytes"].reason) == (2048, "import")
    state.set("k", "x" * 100)
    amount = well.usage.workspace("acme").amounts["state_bytes"]
    assert (amount.maximum, amount.override_until_ms) == (2048, acme.overrides["state_bytes"].until_ms)
    clock.advance(7 * 86_400)
    assert well.usage.workspace("acme").amounts["state_bytes"].maximum == 10
    with pytest.raises(LimitExceeded):
        state.set("l", "x" * 100)


@pytest.mark.parametrize(
    ("limit", "kind", "name"),
    [
        ("state_keys", "workspace", "state_keys"),
        ("workflow_state_bytes", "workflow", "state_bytes"),
        ("workflow_state_keys", "workflow", "state_keys"),
    ],
)
def test_usage_counts_down_to_limits_of_state_and_overrides_raise_them(
    well: Any, clock: FakeClock, limit: str, kind: str, name: str
):
    well.workspaces.put_tier("small", **{limit: 12 if limit.endswith("bytes") else 2})
    well.workspaces.put("acme", tier="small")
    workflow = well.state.workspace("acme").workflow("billing")
    workflow.set("k", 1234)
    workflow.step("charge").set("k", 1234)

    def amount() -> Any:
        usage = well.usage.workspace("acme") if kind == "workspace" else well.usage.workflow("billing", workspace="acme")
        return usage.amounts[name]

    assert (amount().used, amount().left) == (
        amount().maximum - (2 if limit.endswith("bytes") else 0),
        amount().maximum - amount().used,
    )
    with pytest.raises(LimitExceeded) as caught:
        workflow.set("l", 1234)
    assert (caught.value.limit, caught.value.maximum) == (limit, amount().maximum)
    well.workspaces.override("acme", limit, "1kB" if limit.endswith("bytes") else 10, span="1h")
    workflow.set("l", 1234)
    assert amount().override_until_ms == well.workspaces.get("acme").overrides[limit].until_ms
    clock.advance(3601)
    with pytest.raises(LimitExceeded):
        workflow.set("m", 1234)


def test_keys_of_an_execution_are_limited(open_well: OpenWell, url: str):
    well = open_well(url, limits=Limits(execution_keys=8))
    well.create("meter")
    keys = well.usage.execution("meter").amounts["keys"]
    with well.transaction("meter") as tx:
        for number in range(int(keys.left)):
            tx.set_variable(f"v{number}", number)
    assert well.usage.execution("meter").amounts["keys"].left == 0
    with pytest.raises(LimitExceeded) as caught, well.transaction("meter") as tx:
        tx.set_variable("one-more", 1)
    assert (caught.value.limit, caught.value.maximum, caught.value.actual) == ("execution_keys", 8, 9)
    with well.transaction("meter") as tx:
        tx.set_variable("v0", "another value of the same key")
    assert well.verify("meter").ok


def test_run_that_would_have_too_many_entries_fails(open_well: OpenWell, url: str):
    well = open_well(url, limits=Limits(execution_keys=30))
    run = well.start(counting, 100)
    with pytest.raises(ExecutionFailed, match="execution_keys"):
        run.result(timeout=60)
    assert well.verify(run.execution_id).ok


def test_override_is_replaced_and_ended(well: Any, clock: FakeClock):
    well.workspaces.put("acme")
    well.workspaces.override("acme", "concurrency", 7, span="1h")
    well.workspaces.override("acme", "queue_depth", None, span="1h")
    well.workspaces.override("acme", "concurrency", 8, span="2h")
    assert {name: each.value for name, each in well.workspaces.get("acme").overrides.items()} == {
        "concurrency": 8,
        "queue_depth": None,
    }
    assert well.workspaces.end_override("acme", "concurrency").overrides.keys() == {"queue_depth"}
    clock.advance(3600)
    assert well.workspaces.override("acme", "weight", 2.5, span=60).overrides.keys() == {"weight"}


def test_changes_of_a_workspace_keep_its_overrides(well: Any):
    well.workspaces.put("acme")
    well.workspaces.override("acme", "concurrency", 7, span="1h")
    well.workspaces.put("acme", tier="scale")
    assert well.workspaces.pause("acme").overrides["concurrency"].value == 7


@pytest.mark.parametrize(
    ("limit", "value", "span"),
    [
        ("name", "free", "1h"),
        ("state", 5, "1h"),
        ("concurrency", -1, "1h"),
        ("concurrency", 1.5, "1h"),
        ("concurrency", "5", "1h"),
        ("weight", None, "1h"),
        ("weight", 0, "1h"),
        ("state_bytes", "lots", "1h"),
        ("state_bytes", -5, "1h"),
        ("retention_seconds", "lots", "1h"),
        ("concurrency", 5, 0),
        ("concurrency", 5, "soon"),
    ],
)
def test_wrong_override_is_refused_before_anything_is_written(well: Any, limit: str, value: Any, span: Any):
    well.workspaces.put("acme")
    with pytest.raises(InvalidInput):
        well.workspaces.override("acme", limit, value, span=span)
    assert well.workspaces.get("acme").overrides == {}


def test_override_of_an_unknown_workspace_is_not_found(well: Any):
    with pytest.raises(NotFound):
        well.workspaces.override("none", "concurrency", 5, span="1h")
    with pytest.raises(NotFound):
        well.workspaces.end_override("none", "concurrency")
