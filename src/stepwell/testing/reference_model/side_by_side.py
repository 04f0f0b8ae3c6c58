"""Two stores with the same writes: the one under test, and one in memory that is right by definition.

A store has its own fences, and may use a server's clock. So fences are matched by what both stores answered when they were
granted, and times are compared in half hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from stepwell.clock import FakeClock
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import StepwellError
from stepwell.model.commit import (
    Commit,
    Extension,
    Head,
    Lease,
    Loaded,
    LockGuard,
    Outcome,
    Release,
    Renew,
    Rest,
    Seen,
    StateBatch,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Claimed, Enqueue, Item, ItemQuery, Lane, NewItem
from stepwell.model.scoped_operations import StoredEntry
from stepwell.stores.memory import MemoryStore

__all__ = ["HALF_HOUR_MS", "Twins"]

HALF_HOUR_MS = 30 * 60 * 1000

# More than a store ever gave for one that the memory store never gave.
_NO_FENCE = 2**52

replace = msgspec.structs.replace


class Twins:
    """A store and its twin in memory. The twin is new, so what is compared are names that the store has not seen before."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store, self.right = store, MemoryStore(clock, Limits())
        self._start_ms = store.now_ms() - clock.ahead_ms(), self.right.now_ms() - clock.ahead_ms()
        self._fences: dict[tuple[str, int], int] = {}

    # Writing.

    def write(self, group: Sequence[Unit], outcomes: Sequence[Outcome]) -> None:
        """Write units to the store as one group; the twin has written each alone, with these outcomes."""
        given = self.store.write([self._theirs(unit) for unit in group])
        for unit, actual, right in zip(group, given, outcomes, strict=True):
            self._learn(actual, right)
            if not (_may_have_two_reasons(unit) and isinstance(actual, StepwellError) and isinstance(right, StepwellError)):
                assert self._told(actual, 0) == self._told(right, 1), f"what the store says to {unit!r}"

    def has_told(self, name: str, fence: int) -> bool:
        """Return whether the store's own number of a fence is known: only after the group that grants it has landed."""
        return fence == 0 or (name, fence) in self._fences

    def _theirs(self, unit: Any) -> Unit:
        """Return a unit with the store's fences and times."""
        match unit:
            case Commit():
                rest, guards = unit.rest and self._their_rest(unit.rest), self._their_guards(unit.guards)
                fence = None if unit.fence is None else self._their_fence(unit.execution_id, unit.fence)
                return replace(unit, fence=fence, rest=rest, guards=guards, items=self._their_items(unit.items))
            case StateBatch():
                return replace(unit, guards=self._their_guards(unit.guards))
            case Extension() | Release():
                return replace(unit, fence=self._their_fence(unit.execution_id, unit.fence))
            case Renew() | Unlock():
                return replace(unit, fence=self._their_fence(unit.name, unit.fence))
            case Enqueue():
                return Enqueue(self._their_items(unit.items))
            case _:
                return unit

    def _their_fence(self, name: str, fence: int) -> int:
        return self._fences.get((name, fence), fence and _NO_FENCE + fence)

    def _their_guards(self, guards: Iterable[LockGuard]) -> tuple[LockGuard, ...]:
        return tuple(LockGuard(guard.name, self._their_fence(guard.name, guard.fence)) for guard in guards)

    def _their_rest(self, rest: Rest) -> Rest:
        return Rest(self._their_ms(rest.wake_ms), rest.is_final)

    def _their_items(self, items: Iterable[NewItem]) -> tuple[NewItem, ...]:
        return tuple(replace(item, run_at_ms=self._their_ms(item.run_at_ms)) for item in items)

    def _their_ms(self, right_ms: int | None) -> int | None:
        return None if right_ms is None else right_ms - self._start_ms[1] + self._start_ms[0]

    def _learn(self, actual: Outcome, right: Outcome) -> None:
        """Note what the store calls the fences that were granted; an execution's creation gives the first one without a word."""
        for theirs, ours in zip(
            *(_in_order(outcome.answers if isinstance(outcome, Written) else ()) for outcome in (actual, right)), strict=False
        ):
            if isinstance(theirs, Lease) and isinstance(ours, Lease):
                known = self._fences.setdefault((ours.name, ours.fence), theirs.fence)
                before = [fence for (name, at), fence in self._fences.items() if name == ours.name and at < ours.fence]
                assert known == theirs.fence
                assert all(fence < theirs.fence for fence in before), f"a fence of {ours.name!r} that is not higher than the last"

    def born_with_a_lease(self, execution_id: str) -> None:
        """Note an execution that was created with a holder: its fence is 1 on every store."""
        self._fences[execution_id, 1] = 1

    # Compared reads.

    def compare(self, executions: Sequence[str], workspaces: Sequence[str], scopes: Sequence[str]) -> None:
        """Compare what both stores say about these names."""
        for name in executions:
            assert self._execution(0, name) == self._execution(1, name)
        assert self._indexes(0, executions, workspaces) == self._indexes(1, executions, workspaces)
        for scope in scopes:
            assert self._scope(0, scope) == self._scope(1, scope)
        for workspace in workspaces:
            assert self._items(0, workspace) == self._items(1, workspace)

    def _of(self, side: int) -> Store:
        return cast("Store", (self.store, self.right)[side])

    def _execution(self, side: int, name: str) -> list[object]:
        store = self._of(side)
        loaded = store.load(name)
        head = store.head(name)
        assert store.head_digests([name]) == [None if head is None else head.digest]
        return [self._told(head, side), self._told(loaded, side), store.history(name, -1, 1_000), store.base(name)]

    def _indexes(self, side: int, executions: Sequence[str], workspaces: Sequence[str]) -> list[object]:
        store, queries = self._of(side), [ExecutionQuery(workspace_id=workspace) for workspace in workspaces]
        queries += [ExecutionQuery(workspace_id=workspaces[0], status=status) for status in ("PENDING", "RUNNING", "COMPLETED")]
        found = [[head.execution_id for head in store.find(query)] for query in queries]
        return [found, sorted(store.nudged(executions)), store.head_digests(executions)]

    def _scope(self, side: int, scope: str) -> list[object]:
        store = self._of(side)
        rows = [[(key, self._told(row, side)) for key, row in found] for found in (store.scan(scope), store.changes(scope, 0))]
        return [*rows, store.totals(scope)]

    def _items(self, side: int, workspace: str) -> list[object]:
        store = self._of(side)
        items = [self._told(item, side) for item in store.items(ItemQuery(workspace_id=workspace))]
        lanes = [lane for lane in store.lanes(workspace) if lane.ready or lane.delayed or lane.claimed or lane.dispatched]
        lanes.sort(key=lambda lane: lane.queue)
        named = [each for each in store.workspaces() if each.workspace_id == workspace]
        return [items, [self._told(lane, side) for lane in lanes], [(each.tier, each.is_paused) for each in named]]

    # Comparable forms.

    def _told(self, what: object, side: int) -> object:
        """Return an answer of a store in a form that is equal on both sides if it means the same."""
        match what:
            case StepwellError():
                return type(what)
            case Head():
                times = {field: self._half_hours(getattr(what, field), side) for field in ("lease_until_ms", "wake_ms")}
                return replace(what, fence=self._fence(what.execution_id, what.fence, side), **times)
            case Lease():
                return replace(what, fence=self._fence(what.name, what.fence, side), until_ms=self._half_hours(what.until_ms, side))
            case Loaded():
                return self._told(what.head, side), what.snapshot, list(what.commits)
            case Item() | Claimed() | StoredEntry() | Lane():
                return self._row(what, side)
            case Seen() | bool() | int() | float() | str() | bytes() | None:
                return type(what), what
            case Written():
                return "written", [self._told(answer, side) for answer in _in_order(what.answers)]
            case _:
                return what

    def _row(self, row: Item | Claimed | StoredEntry | Lane, side: int) -> object:
        """Return a row with its times, without numbers that are a store's own."""
        fields = msgspec.structs.asdict(row)
        for name in ("number", "waits_ms"):
            fields.pop(name, None)
        if fields.get("ttl_ms") is not None:
            fields["ttl_ms"] = round(fields["ttl_ms"] / HALF_HOUR_MS)
        is_time = {name for name in fields if name.endswith("_ms") and name != "ttl_ms"}
        return {name: self._half_hours(value, side) if name in is_time else value for name, value in fields.items()}

    def _half_hours(self, ms: int | None, side: int) -> Any:
        return None if ms is None else round((ms - self._start_ms[side]) / HALF_HOUR_MS)

    def _fence(self, name: str, fence: int, side: int) -> int:
        return fence if side == 0 else self._their_fence(name, fence)


def _in_order(answers: Sequence[object]) -> Sequence[object]:
    """Return answers in order, but leases and ids by name: what came due or expired at one moment has no order."""
    # Behind the ids of what expired stands how many were dropped.
    end = len(answers) - 1 if answers and isinstance(answers[-1], int) else len(answers)
    if all(isinstance(answer, Lease | str) for answer in answers[:end]):
        names = sorted(answers[:end], key=lambda answer: answer.name if isinstance(answer, Lease) else str(answer))
        return [*names, *answers[end:]]
    return answers


def _may_have_two_reasons(unit: Unit) -> bool:
    """Return whether a unit can be refused for two reasons, of which the store chooses one."""
    is_riding = isinstance(unit, Commit) and bool(unit.mark or unit.items or unit.ops or unit.guards)
    return is_riding or (isinstance(unit, StateBatch) and bool(unit.ops and unit.guards))
