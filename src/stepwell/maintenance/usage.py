"""Usage: how much of its limits a scope, an execution, a workflow or a workspace uses, and how much is left."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import InvalidInput, ValueErased
from stepwell.model.commit import Head
from stepwell.model.execution_state import ONLY, State
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import Tier, tier_at
from stepwell.model.receipt_chain import rebuild
from stepwell.model.scope import Scope, is_internal
from stepwell.model.scoped_operations import ScopeTotals
from stepwell.model.value import decode
from stepwell.pipeline.operations import Operation, read
from stepwell.queue.workspaces import no_workspace
from stepwell.runtime.steps.budget import governance_of
from stepwell.state.executions import Executions

__all__ = ["Amount", "Usage", "UsageOperations"]


class Amount(PlainRecord, frozen=True):
    """The used part of a limit."""

    used: float
    maximum: float | None = None
    """None: no limit."""
    override_until_ms: int | None = None
    """When the limit goes back to the tier's, if it is overridden now."""

    @property
    def left(self) -> float | None:
        """Return how much is left: never below 0; None without a limit."""
        return None if self.maximum is None else max(self.maximum - self.used, 0)


class Usage(PlainRecord, frozen=True):
    """The usage of a scope, execution, workflow or workspace, by the names of limits; a name without a limit is only counted."""

    kind: str
    """``scope``, ``execution``, ``workflow`` or ``workspace``."""
    name: str
    amounts: dict[str, Amount]
    is_complete: bool = True
    """False if there are more executions than were counted; then ``executions`` and what they use is a lower bound."""


class _LimitsNow(NamedTuple):
    """The limits of a workspace now."""

    tier: Tier
    ends: dict[str, int]
    """When each override ends, by its limit."""

    def amount(self, limit: str, used: float) -> Amount:
        """Return the used part of a limit."""
        return Amount(used, getattr(self.tier, limit), self.ends.get(limit))


class UsageOperations:
    """Count what is used."""

    def __init__(self, store: Store, executions: Executions, limits: Limits) -> None:
        self._store, self._executions, self._limits = store, executions, limits

    def scope(self, scope: Scope) -> Operation[Usage]:
        """Return the usage of one scope of state."""
        totals = yield from read(lambda: self._store.totals(scope.path))
        return Usage(
            "scope",
            scope.path,
            {
                "scope_bytes": Amount(totals.bytes, self._limits.scope_bytes),
                "scope_keys": Amount(totals.keys, self._limits.scope_keys),
            },
        )

    def execution(self, execution_id: str) -> Operation[Usage]:
        """Return the usage of one execution."""
        head = yield from self._executions.head(execution_id)
        state = yield from self._executions.state_at(execution_id, head.revision)
        governance = governance_of(state.identity)
        return Usage(
            "execution",
            execution_id,
            {
                "execution_bytes": Amount(state.size, self._limits.execution_bytes),
                "keys": Amount(state.keys, self._limits.execution_keys),
                "steps": Amount(_steps(state), None if governance is None else governance.steps),
                "receipts": Amount(head.revision - head.base_revision),
            },
        )

    def workflow(self, workflow_id: str, workspace_id: str, most: int) -> Operation[Usage]:
        """Return what a workflow uses in a workspace: its scoped state, that of its steps, and its newest executions."""
        check_key(workflow_id, "a workflow")
        check_key(workspace_id, "a workspace id")
        found = yield from read(lambda: self._state_of(workspace_id, workflow_id))
        counted, is_complete = yield from self._executions_of(workspace_id, workflow_id, most)
        return Usage("workflow", workflow_id, found | counted, is_complete)

    def workspace(self, workspace_id: str, most: int) -> Operation[Usage]:
        """Return what a workspace uses of the limits that hold for it now, and its newest executions."""
        check_key(workspace_id, "a workspace id")
        found = yield from read(lambda: self._limited(workspace_id))
        counted, is_complete = yield from self._executions_of(workspace_id, None, most)
        return Usage("workspace", workspace_id, found | counted, is_complete)

    def _limited(self, workspace_id: str) -> dict[str, Amount]:
        limits = self._limits_of(workspace_id)
        if limits is None:
            raise no_workspace(workspace_id)
        lanes, totals = self._store.lanes(workspace_id), self._totals(workspace_id, None)
        used = {
            "state_bytes": totals.bytes,
            "concurrency": sum(lane.claimed + lane.dispatched for lane in lanes),
            "queue_depth": sum(lane.ready + lane.delayed for lane in lanes),
            "state_keys": totals.keys,
        }
        return {name: limits.amount(name, count) for name, count in used.items()}

    def _state_of(self, workspace_id: str, workflow_id: str) -> dict[str, Amount]:
        """Return what the scopes of a workflow use; without such a workspace there is no limit."""
        totals = self._totals(workspace_id, workflow_id)
        limits = self._limits_of(workspace_id) or _LimitsNow(Tier(name="none"), {})
        return {
            "state_bytes": limits.amount("workflow_state_bytes", totals.bytes),
            "state_keys": limits.amount("workflow_state_keys", totals.keys),
        }

    def _limits_of(self, workspace_id: str) -> _LimitsNow | None:
        workspace = next((each for each in self._store.workspaces() if each.workspace_id == workspace_id), None)
        if workspace is None:
            return None
        now_ms = self._store.now_ms()
        tier = tier_at(next(each for each in self._store.tiers() if each.name == workspace.tier), workspace, now_ms)
        return _LimitsNow(tier, {name: each.until_ms for name, each in workspace.overrides.items() if each.until_ms > now_ms})

    def _totals(self, workspace_id: str, workflow_id: str | None) -> ScopeTotals:
        """Return the keys and bytes of all scopes of a workspace, or of one workflow in it."""
        paths = (path for path in self._store.scopes(workspace_id) if workflow_id is None or _is_of(path, workflow_id))
        found = [self._store.totals(path) for path in paths]
        return ScopeTotals(0, sum(each.keys for each in found), sum(each.bytes for each in found))

    def _executions_of(self, workspace_id: str, workflow_id: str | None, most: int) -> Operation[tuple[dict[str, Amount], bool]]:
        if type(most) is not int or not 0 <= most <= 10_000:
            raise InvalidInput(f"the number of executions to count is a whole number from 0 to 10,000, not {most!r}")
        query = ExecutionQuery(workspace_id=workspace_id, workflow_id=workflow_id, limit=most + 1)
        heads = yield from self._executions.find(query)
        counted = yield from self._sums(heads[:most])
        return counted, len(heads) <= most

    def _sums(self, heads: Iterable[Head]) -> Operation[dict[str, Amount]]:
        count = size = steps = 0
        for head in heads:
            loaded = yield from read(lambda name=head.execution_id: self._store.load(name))
            if loaded is None:
                continue
            count += 1
            with suppress(ValueErased):  # what was erased has no known size
                state = rebuild(loaded)
                size, steps = size + state.size, steps + _steps(state)
        return {"executions": Amount(count), "execution_bytes": Amount(size), "steps": Amount(steps)}


def _steps(state: State) -> int:
    return decode(state.sections["step_count"].get(ONLY, b"0"))


def _is_of(path: str, workflow_id: str) -> bool:
    if is_internal(path):
        return False
    scope = Scope.parse(path)
    return scope.kind in ("workflow", "step") and scope.names[0] == workflow_id
