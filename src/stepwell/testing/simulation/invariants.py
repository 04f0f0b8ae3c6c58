"""Invariants of the store after a simulation. The numbers are those of the catalogue of faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

from stepwell import Scope
from stepwell.contract.store import ExecutionQuery
from stepwell.model.commit import Head
from stepwell.model.execution_state import ExecutionState
from stepwell.model.queue_item import Item, ItemQuery
from stepwell.model.receipt import Receipt
from stepwell.model.status import FINAL
from stepwell.model.value import decode
from stepwell.testing.simulation.generated_workflows import LEDGER, Plan, is_possible
from stepwell.testing.simulation.world import LEASE_SECONDS, World

__all__ = ["check", "overdue", "unfinished", "waiting_items"]


async def check(world: World, plans: dict[str, Plan]) -> list[str]:
    """Return every broken invariant."""
    found = list(world.violations)
    for head in world.store.find(ExecutionQuery(limit=10_000)):
        found += [f"{head.execution_id}: {problem}" async for problem in _check_one(world, head, plans.get(head.execution_id))]
    found += [f"I6: {problem}" for problem in _queue(world)]
    found += [f"I2: {name} was acknowledged and is not there" for name in _missing(world)]
    return found


async def _check_one(world: World, head: Head, plan: Plan | None) -> AsyncIterator[str]:
    well = world.outside.well
    verification = await well.verify(head.execution_id)
    for problem in verification.problems:
        yield f"I3: {problem}"
    receipts = await well.receipts(head.execution_id)
    if [each.revision for each in receipts] != list(range(world.landed_commits[head.execution_id])):
        yield f"I3: {len(receipts)} receipts for {world.landed_commits[head.execution_id]} commits"
    state = await well.load(head.execution_id)
    for problem in (*_records(receipts, state), *_end(receipts, state, plan)):
        yield problem
    marks = _marks(world, head)
    done = sum(isinstance(step.output, str) and step.output.startswith("done ") for step in state.steps.values())
    if marks != done:
        yield f"I5: {marks} marks were left by {done} steps"


def _marks(world: World, head: Head) -> int:
    scope = Scope.custom(LEDGER, head.workspace_id).path
    entry = world.store.entries(scope, [head.execution_id]).get(head.execution_id)
    return 0 if entry is None or entry.data is None else decode(entry.data)


def _records(receipts: list[Receipt], state: ExecutionState) -> Iterator[str]:
    """Check that each key has one outcome, which never changes."""
    recorded = Counter(each["name"] for receipt in receipts for each in receipt.mutations if each["type"] == "record_step")
    for name, times in recorded.items():
        if times > 1:
            yield f"I4: step {name!r} was recorded {times} times"
    if set(recorded) != set(state.steps):
        yield f"I4: the state has other steps than were recorded: {set(recorded) ^ set(state.steps)}"


def _end(receipts: list[Receipt], state: ExecutionState, plan: Plan | None) -> Iterator[str]:
    """Check that a run ended once, with nothing left over, in a way that its plan allows."""
    mutations = [each for receipt in receipts for each in receipt.mutations]
    endings = [each["status"] for each in mutations if each["type"] == "set_status" and each["status"] in FINAL]
    if len(endings) != 1:
        yield f"I5: it ended {len(endings)} times: {endings}"
    if state.status in FINAL and state.tokens:
        yield f"I5: it ended with tokens {sorted(state.tokens)}"
    result: dict[str, Any] = state.result or {}
    if state.status == "COMPLETED" and plan is not None and not is_possible(plan, result.get("output")):
        yield f"I4: {result.get('output')!r} cannot be the result of {plan!r}"
    if state.status == "FAILED" and "WorkerCrashed" not in str(result):
        yield f"it failed: {result}"


def _queue(world: World) -> Iterator[str]:
    """Check that every item ended as its execution did."""
    for item in world.store.items(ItemQuery(limit=10_000)):
        head = world.store.head(item.execution_id)
        if head is None or item.status != head.status:
            yield f"the item of {item.execution_id} is {item.status}, and its execution {head and head.status}"


def _missing(world: World) -> list[str]:
    return [
        f"revision {each.revision} of {each.execution_id}"
        for each in world.acknowledged
        if world.store.commit_of(each.execution_id, each.commit_id) is None
    ]


def unfinished(world: World) -> list[Head]:
    """Return the executions that have not ended."""
    return [head for head in world.store.find(ExecutionQuery(limit=10_000)) if head.status not in FINAL]


def waiting_items(world: World) -> list[Item]:
    """Return the queue items that have not ended."""
    return [item for item in world.store.items(ItemQuery(limit=10_000)) if item.status not in FINAL]


def overdue(world: World, calm_ms: int) -> list[Head]:
    """Return executions that no worker took, long after one could have."""
    late = world.clock.now_ms() - 2 * LEASE_SECONDS * 1000
    return [head for head in unfinished(world) if head.wake_ms is not None and max(head.wake_ms, calm_ms) < late]
