"""All of a scope, and all executions of a query, are read page by page; nothing of a large scope is passed over."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec import Raw

from stepwell import FakeClock, Stepwell, workflow
from stepwell.contract.store import ExecutionQuery
from stepwell.model.commit import StateBatch
from stepwell.model.scope import Scope, internal_path
from stepwell.model.scoped_operations import Put
from stepwell.pipeline.paged_reads import all_entries, all_executions
from stepwell.state.request_log import AuditEntry
from stepwell.testing.store_access import parts_of, run_operation, store_under, write_unit_or_raise

SCOPE = Scope.custom("shop").path


@workflow(name="paged-failing")
async def failing() -> None:
    raise ValueError("always")


@pytest.fixture
def well() -> Stepwell:
    return Stepwell("memory://", clock=FakeClock())


@pytest.mark.parametrize("count", [0, 1, 1_000, 2_001])
def test_every_entry_of_a_scope_is_read_once(well: Stepwell, count: int) -> None:
    with well:
        keys = [f"k{number:05d}" for number in range(count)]
        write_unit_or_raise(well, StateBatch(tuple(Put(SCOPE, key, Raw(b"1")) for key in ("a", *keys, "z"))))
        assert [key for key, _ in all_entries(store_under(well), SCOPE, prefix="k")] == keys
        assert [key for key, _ in all_entries(store_under(well), SCOPE)] == ["a", *keys, "z"]


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_every_execution_of_a_query_is_read_once(well: Stepwell, limit: int) -> None:
    with well:
        names = [f"run-{number}" for number in range(5)]
        for name in names:
            well.create(name)
        found = all_executions(store_under(well), ExecutionQuery(workspace_id="default", limit=limit))
        assert [head.execution_id for head in found] == names[::-1]


def test_audit_of_a_busy_hour_begins_with_its_newest_entries(well: Stepwell) -> None:
    with well:
        requests, at = parts_of(well).requests, datetime(2026, 1, 1, tzinfo=UTC)
        for number in range(10_003):
            entry = AuditEntry(
                entry_id="", at=at, actor="ada", action="put_state", resource=str(number), status=200, request_id="r"
            )
            run_operation(well, requests.note("default", entry))
        newest = run_operation(well, requests.entries("default", None, 2))
        assert [each.resource for each in newest] == ["10002", "10001"]
        assert [each.resource for each in run_operation(well, requests.entries("default", newest[-1].entry_id, 1))] == ["10000"]


def test_decision_about_a_group_of_errors_holds_beside_a_thousand_others(well: Stepwell) -> None:
    with well:
        with pytest.raises(Exception, match="always"):
            well.start(failing, execution_id="failed").result(10)
        [group] = well.errors.list()
        decision = b'{"status":"resolved","seen_ms":0}'
        others = tuple(Put(internal_path("error_group", "default"), f"0{number:04d}", Raw(decision)) for number in range(1_001))
        write_unit_or_raise(well, StateBatch(others))
        assert well.errors.resolve(group.fingerprint).status == "resolved"
