"""Decide the outcome of each unit of a group, on the locked rows as the units before it leave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from stepwell.errors import StepwellError
from stepwell.model.commit import (
    Acquire,
    Adoption,
    Archiving,
    Claim,
    ClaimDue,
    Commit,
    Deletion,
    Extension,
    Head,
    Lease,
    Outcome,
    Release,
    Renew,
    Rest,
    Seen,
    StateBatch,
    Sweep,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.execution_row import (
    adopted,
    archived,
    claimed,
    due,
    extended,
    first_head,
    granted,
    lease_on,
    moved,
    released,
    rested,
    unfit,
)
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.lock import LockRow, acquired, broken, renewed, unlocked
from stepwell.model.lock import lease_on as lock_lease
from stepwell.model.queue_item import ClaimItems, Enqueue, NewItem
from stepwell.model.refusals import changed_since_decision, id_taken, no_execution
from stepwell.model.scope import check_path
from stepwell.model.scoped_operations import Clear, Copy, Delete, Resolution, StateOp, resolve
from stepwell.model.status import FINAL
from stepwell.stores.postgres.locked_items import DECIDED
from stepwell.stores.postgres.locked_rows import LockedRows

__all__ = ["decide", "misfit"]

_WRITTEN = Written()
replace = msgspec.structs.replace

# An index entry holds about 2,700 bytes, and one index has two ids in it. Limits can be set higher than that.
_ID_BYTES = 1_024
_NAME_BYTES = 1_000_000
_LANE_BYTES = 800  # the index of ready items has three of these in one entry

_check = partial(check_key, is_fixed=True)
"""Check an id against the size of an index entry, which no configured limit can exceed."""


def misfit(unit: Unit) -> StepwellError | None:
    """Return why a unit can never be stored here: a name that is not valid text, or too long for an index. None if it can."""
    try:
        _check_names(unit)
    except StepwellError as error:
        return error
    return None


def _check_names(unit: Unit) -> None:
    match unit:
        case Commit():
            _check_ids(execution_id=unit.execution_id, workspace_id=unit.workspace_id, commit_id=unit.commit_id)
            _check_state(unit)
            for new in unit.items:
                _check_item(new)
        case StateBatch():
            _check_state(unit)
        case Adoption():
            _check_ids(execution_id=unit.execution_id, workspace_id=unit.workspace_id)
        case Deletion() | Archiving():
            _check_ids(execution_id=unit.execution_id)
        case Claim() | Extension() | Release():
            _check_ids(execution_id=unit.execution_id)
            _check_name(unit.holder, "holder")
        case Acquire() | Renew() | Unlock():
            _check_name(unit.name, "name")
            _check_name(unit.holder, "holder")
        case ClaimDue() | ClaimItems():
            _check_name(unit.holder, "holder")
        case Enqueue():
            for new in unit.items:
                _check_item(new)
        case _:
            return


def _check_ids(**ids: str) -> None:
    for what, name in ids.items():
        _check(name, what, _ID_BYTES)


def _check_name(name: str, what: str) -> None:
    if name:  # empty names are refused elsewhere, with a better reason
        _check(name, what, _NAME_BYTES)


def _check_state(unit: Commit | StateBatch) -> None:
    for execution_id in unit.nudges:
        _check(execution_id, "an execution's id", _ID_BYTES)
    for op in unit.ops:
        _check_op(op)


def _check_item(new: NewItem) -> None:
    for what in ("item_id", "workspace_id", "workflow_id", "execution_id", "queue", "key", "singleton", "debounce"):
        if getattr(new, what) is not None:
            _check(getattr(new, what), f"an item's {what}", _LANE_BYTES)


def _check_op(op: StateOp) -> None:
    check_path(op.scope)
    if not isinstance(op, Clear):
        _check(op.key, "a state key", _ID_BYTES)
    if isinstance(op, Copy):
        check_path(op.to_scope)
        _check(op.to_key, "a state key", _ID_BYTES)


def decide(rows: LockedRows, unit: Unit, limits: Limits) -> Outcome:
    """Return a unit's outcome, and apply the unit to the rows if it lands."""
    return _RULES[type(unit)](rows, unit, limits)


def _commit(rows: LockedRows, commit: Commit, limits: Limits) -> Outcome:
    # First of all: a retry of a commit that landed meets its own writes, and would be refused for them.
    seen = rows.seen.get((commit.execution_id, commit.commit_id))
    if seen is not None:
        return Seen(seen.header, seen.body)
    head = rows.heads.get(commit.execution_id)
    refusal = broken(commit.guards, rows.locks.get) or unfit(commit, head, is_taken=rows.is_taken(commit.execution_id))
    if refusal is not None:
        return refusal  # before its state: a late writer hears that its lock or lease is lost
    resolution = _resolve(rows, commit.ops, limits) if commit.ops else None
    if isinstance(resolution, StepwellError):
        return resolution
    # The last thing that can refuse the commit, so that nothing of it has to be taken back from the rows.
    if commit.items or commit.mark is not None:
        refusal = rows.queue.apply_commit(commit)
    if refusal is not None:
        return refusal
    if commit.creation is not None:
        _create(rows, first_head(commit, commit.creation, rows.now_ms))
    else:
        rows.move(moved(rows.heads[commit.execution_id], commit))
    rows.add_commit(commit)
    if commit.rest is not None:
        _rest(rows, commit.execution_id, commit.rest)
    _nudge(rows, commit.nudges)
    return _WRITTEN if resolution is None else _write_state(rows, resolution)


def _create(rows: LockedRows, head: Head) -> None:
    rows.create(head)
    if head.wake_ms is not None and head.holder is None:
        rows.topics.add("due")


def _state_batch(rows: LockedRows, batch: StateBatch, limits: Limits) -> Outcome:
    resolution = broken(batch.guards, rows.locks.get) or _resolve(rows, batch.ops, limits)
    if isinstance(resolution, StepwellError):
        return resolution
    _nudge(rows, batch.nudges)
    return _write_state(rows, resolution)


def _rest(rows: LockedRows, execution_id: str, rest: Rest) -> None:
    """Release a lease with the time of the next wake-up, which is now if the execution was nudged meanwhile."""
    head = rested(rows.heads[execution_id], rest, rows.now_ms, is_nudged=execution_id in rows.nudged)
    rows.move(head)
    # The nudge is used up by this rest; one that comes later finds the execution at rest and wakes it.
    rows.nudged.discard(execution_id)
    if head.wake_ms is not None and head.wake_ms <= rows.now_ms:
        rows.topics.add("due")


def _nudge(rows: LockedRows, execution_ids: Sequence[str]) -> None:
    """Make executions due now, or as soon as their holders release them."""
    for execution_id in execution_ids:
        head = rows.heads.get(execution_id)
        # An execution that has ended is never due again.
        if head is None or head.status in FINAL:
            continue
        rows.nudged.add(execution_id)
        if head.holder is None:
            head = replace(head, wake_ms=rows.now_ms)
            rows.topics.add("due")
        rows.move(head)


def _resolve(rows: LockedRows, ops: Sequence[StateOp], limits: Limits) -> Resolution | StepwellError:
    return resolve(ops, rows.stored, rows.totals_of, rows.now_ms, limits, rows.expired_in, rows.rooms.get)


def _write_state(rows: LockedRows, resolution: Resolution) -> Outcome:
    rows.write_state(resolution)
    return Written(resolution.answers)


def _claim(rows: LockedRows, claim: Claim, _: Limits) -> Outcome:
    head = claimed(rows.heads.get(claim.execution_id), claim, rows.now_ms)
    return head if isinstance(head, StepwellError) else Written([_grant(rows, head)])


def _claim_due(rows: LockedRows, claim: ClaimDue, _: Limits) -> Outcome:
    heads = due(list(rows.heads.values()), claim, rows.now_ms)
    return Written([_grant(rows, granted(head, claim, rows.now_ms)) for head in heads])


def _grant(rows: LockedRows, head: Head) -> Lease:
    rows.move(head)
    rows.nudged.discard(head.execution_id)
    return lease_on(head)


def _extend(rows: LockedRows, unit: Extension, _: Limits) -> Outcome:
    head = extended(rows.heads.get(unit.execution_id), unit, rows.now_ms)
    if isinstance(head, StepwellError):
        return head
    rows.move(head)
    return Written([lease_on(head)])


def _release(rows: LockedRows, unit: Release, _: Limits) -> Outcome:
    head = released(rows.heads.get(unit.execution_id), unit, rows.now_ms)
    if isinstance(head, StepwellError):
        return head
    rows.move(head)
    if head.wake_ms is not None:
        rows.topics.add("due")
    return _WRITTEN


def _acquire(rows: LockedRows, unit: Acquire, _: Limits) -> Outcome:
    return _put_lock(rows, unit.name, acquired(rows.locks.get(unit.name), unit, rows.now_ms, lambda: rows.fences.pop(0)))


def _renew(rows: LockedRows, unit: Renew, _: Limits) -> Outcome:
    return _put_lock(rows, unit.name, renewed(rows.locks.get(unit.name), unit, rows.now_ms))


def _put_lock(rows: LockedRows, name: str, row: LockRow | StepwellError) -> Outcome:
    if isinstance(row, StepwellError):
        return row
    rows.put_lock(name, row)
    return Written([lock_lease(name, row)])


def _unlock(rows: LockedRows, unit: Unlock, _: Limits) -> Outcome:
    row = unlocked(rows.locks.get(unit.name), unit, rows.now_ms)
    if isinstance(row, StepwellError):
        return row
    if row is None:
        rows.drop_lock(unit.name)
    else:
        rows.put_lock(unit.name, row)
    rows.topics.add("lock")
    return _WRITTEN


def _delete(rows: LockedRows, deletion: Deletion, _: Limits) -> Outcome:
    head = rows.heads.get(deletion.execution_id)
    if head is None:
        return no_execution(deletion.execution_id)
    if deletion.head not in (None, head.digest):
        return changed_since_decision(deletion.execution_id)
    rows.bury(deletion.execution_id)
    rows.queue.end_of(deletion.execution_id)
    return _WRITTEN


def _archive(rows: LockedRows, archiving: Archiving, _: Limits) -> Outcome:
    head = archived(rows.heads.get(archiving.execution_id), archiving)
    if isinstance(head, StepwellError):
        return head
    rows.drop_history(archiving.execution_id, archiving.snapshot.revision)
    rows.add_snapshot(archiving.execution_id, archiving.snapshot)
    rows.move(head)
    return _WRITTEN


def _adopt(rows: LockedRows, adoption: Adoption, _: Limits) -> Outcome:
    if rows.is_taken(adoption.execution_id):
        return id_taken(adoption.execution_id)
    _create(rows, adopted(adoption))
    rows.add_snapshot(adoption.execution_id, adoption.snapshot)
    return _WRITTEN


def _sweep(rows: LockedRows, sweep: Sweep, limits: Limits) -> Outcome:
    # The rows were locked after they were found: a key that was set again meanwhile is no longer expired.
    ops = [Delete(scope, key) for scope, key in rows.expired(rows.swept[: sweep.limit])]
    resolution = _resolve(rows, ops, limits)
    if isinstance(resolution, StepwellError):
        return resolution
    rows.write_state(resolution)
    rows.sweeps.append(sweep)
    return Written([len(ops)])


def _queue(rows: LockedRows, unit: Unit, _: Limits) -> Outcome:
    return rows.queue.write(unit)


_RULES: dict[type, Callable[[LockedRows, Any, Limits], Outcome]] = {
    Commit: _commit,
    StateBatch: _state_batch,
    Claim: _claim,
    ClaimDue: _claim_due,
    Extension: _extend,
    Release: _release,
    Acquire: _acquire,
    Renew: _renew,
    Unlock: _unlock,
    Deletion: _delete,
    Archiving: _archive,
    Adoption: _adopt,
    Sweep: _sweep,
    **dict.fromkeys(DECIDED, _queue),
}
