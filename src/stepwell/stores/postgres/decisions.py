"""Decides units on a view: what each comes to, given the rows that are locked and what the units before it did."""

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
from stepwell.model.queue_item import NewItem
from stepwell.model.refusals import id_taken, no_execution
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Clear, Copy, Delete, Resolution, StateOp, resolve
from stepwell.model.status import FINAL
from stepwell.stores.postgres.group_view import View
from stepwell.stores.postgres.queue_view import DECIDED

__all__ = ["decide", "misfit"]

_WRITTEN = Written()
replace = msgspec.structs.replace

# An index entry holds about 2,700 bytes, and one index has two ids in it; limits can be set higher than that.
_ID_BYTES = 1_024
_NAME_BYTES = 1_000_000
_LANE_BYTES = 800  # three of these stand side by side in the index of ready items

_check = partial(check_key, is_fixed=True)
"""What an index cannot hold, no limit can allow."""


def misfit(unit: Unit) -> StepwellError | None:
    """Why a unit can never be stored here, whatever is in the database: a name that is no text, or too long for an index."""
    try:
        for what in ("execution_id", "workspace_id", "commit_id"):
            if hasattr(unit, what):
                _check(getattr(unit, what), what, _ID_BYTES)
        for what in ("name", "holder"):
            if getattr(unit, what, None):  # an empty one holds nothing, and is refused as such
                _check(getattr(unit, what), what, _NAME_BYTES)
        for execution_id in getattr(unit, "nudges", ()):
            _check(execution_id, "an execution's id", _ID_BYTES)
        for op in getattr(unit, "ops", ()):
            _check_op(op)
        for new in getattr(unit, "items", ()):
            _check_item(new)
    except StepwellError as error:
        return error
    return None


def _check_item(new: NewItem) -> None:
    for what in ("item_id", "workspace_id", "workflow_id", "execution_id", "queue", "key", "singleton", "debounce"):
        if getattr(new, what) is not None:
            _check(getattr(new, what), f"an item's {what}", _LANE_BYTES)


def _check_op(op: StateOp) -> None:
    Scope.parse(op.scope)
    if not isinstance(op, Clear):
        _check(op.key, "a state key", _ID_BYTES)
    if isinstance(op, Copy):
        Scope.parse(op.to_scope)
        _check(op.to_key, "a state key", _ID_BYTES)


def decide(view: View, unit: Unit, limits: Limits) -> Outcome:
    """What a unit comes to; the view is as it leaves it."""
    return _RULES[type(unit)](view, unit, limits)


def _commit(view: View, commit: Commit, limits: Limits) -> Outcome:
    seen = view.seen.get((commit.execution_id, commit.commit_id))
    if seen is not None:
        return Seen(seen.header, seen.body)
    head = view.heads.get(commit.execution_id)
    refusal = broken(commit.guards, view.locks.get) or unfit(commit, head, is_taken=view.is_taken(commit.execution_id))
    if refusal is not None:
        return refusal  # before its state: a late writer hears that its lock or lease is lost
    resolution = _resolve(view, commit.ops, limits) if commit.ops else None
    if isinstance(resolution, StepwellError):
        return resolution
    if commit.items or commit.mark is not None:
        refusal = view.queue.ride(commit)
    if refusal is not None:
        return refusal
    if commit.creation is not None:
        _create(view, first_head(commit, commit.creation, view.now_ms))
    else:
        view.move(moved(view.heads[commit.execution_id], commit))
    view.add_commit(commit)
    if commit.rest is not None:
        _rest(view, commit.execution_id, commit.rest)
    _nudge(view, commit.nudges)
    return _WRITTEN if resolution is None else _write_state(view, resolution)


def _create(view: View, head: Head) -> None:
    view.create(head)
    if head.wake_ms is not None and head.holder is None:
        view.topics.add("due")


def _state_batch(view: View, batch: StateBatch, limits: Limits) -> Outcome:
    resolution = broken(batch.guards, view.locks.get) or _resolve(view, batch.ops, limits)
    if isinstance(resolution, StepwellError):
        return resolution
    _nudge(view, batch.nudges)
    return _write_state(view, resolution)


def _rest(view: View, execution_id: str, rest: Rest) -> None:
    """Give a lease back with the time of the next look; a nudge that came meanwhile makes that now."""
    head = rested(view.heads[execution_id], rest, view.now_ms, is_nudged=execution_id in view.nudged)
    view.move(head)
    view.nudged.discard(execution_id)
    if head.wake_ms is not None and head.wake_ms <= view.now_ms:
        view.topics.add("due")


def _nudge(view: View, execution_ids: Sequence[str]) -> None:
    """Have executions looked at: now, or as soon as their holders rest."""
    for execution_id in execution_ids:
        head = view.heads.get(execution_id)
        if head is None or head.status in FINAL:
            continue
        view.nudged.add(execution_id)
        if head.holder is None:
            head = replace(head, wake_ms=view.now_ms)
            view.topics.add("due")
        view.move(head)


def _resolve(view: View, ops: Sequence[StateOp], limits: Limits) -> Resolution | StepwellError:
    return resolve(ops, view.stored, view.totals_of, view.now_ms, limits, view.expired_in, view.rooms.get)


def _write_state(view: View, resolution: Resolution) -> Outcome:
    view.write_state(resolution)
    return Written(resolution.answers)


def _claim(view: View, claim: Claim, _: Limits) -> Outcome:
    head = claimed(view.heads.get(claim.execution_id), claim, view.now_ms)
    return head if isinstance(head, StepwellError) else Written([_grant(view, head)])


def _claim_due(view: View, claim: ClaimDue, _: Limits) -> Outcome:
    heads = due(list(view.heads.values()), claim, view.now_ms)
    return Written([_grant(view, granted(head, claim, view.now_ms)) for head in heads])


def _grant(view: View, head: Head) -> Lease:
    view.move(head)
    view.nudged.discard(head.execution_id)
    return lease_on(head)


def _extend(view: View, unit: Extension, _: Limits) -> Outcome:
    head = extended(view.heads.get(unit.execution_id), unit, view.now_ms)
    if isinstance(head, StepwellError):
        return head
    view.move(head)
    return Written([lease_on(head)])


def _release(view: View, unit: Release, _: Limits) -> Outcome:
    head = released(view.heads.get(unit.execution_id), unit, view.now_ms)
    if isinstance(head, StepwellError):
        return head
    view.move(head)
    if head.wake_ms is not None:
        view.topics.add("due")
    return _WRITTEN


def _acquire(view: View, unit: Acquire, _: Limits) -> Outcome:
    return _put_lock(view, unit.name, acquired(view.locks.get(unit.name), unit, view.now_ms, lambda: view.fences.pop(0)))


def _renew(view: View, unit: Renew, _: Limits) -> Outcome:
    return _put_lock(view, unit.name, renewed(view.locks.get(unit.name), unit, view.now_ms))


def _put_lock(view: View, name: str, row: LockRow | StepwellError) -> Outcome:
    if isinstance(row, StepwellError):
        return row
    view.put_lock(name, row)
    return Written([lock_lease(name, row)])


def _unlock(view: View, unit: Unlock, _: Limits) -> Outcome:
    row = unlocked(view.locks.get(unit.name), unit, view.now_ms)
    if isinstance(row, StepwellError):
        return row
    if row is None:
        view.drop_lock(unit.name)
    else:
        view.put_lock(unit.name, row)
    view.topics.add("lock")
    return _WRITTEN


def _delete(view: View, deletion: Deletion, _: Limits) -> Outcome:
    if deletion.execution_id not in view.heads:
        return no_execution(deletion.execution_id)
    view.bury(deletion.execution_id)
    view.queue.end_of(deletion.execution_id)
    return _WRITTEN


def _archive(view: View, archiving: Archiving, _: Limits) -> Outcome:
    head = archived(view.heads.get(archiving.execution_id), archiving)
    if isinstance(head, StepwellError):
        return head
    view.drop_history(archiving.execution_id, archiving.snapshot.revision)
    view.add_snapshot(archiving.execution_id, archiving.snapshot)
    view.move(head)
    return _WRITTEN


def _adopt(view: View, adoption: Adoption, _: Limits) -> Outcome:
    if view.is_taken(adoption.execution_id):
        return id_taken(adoption.execution_id)
    _create(view, adopted(adoption))
    view.add_snapshot(adoption.execution_id, adoption.snapshot)
    return _WRITTEN


def _sweep(view: View, sweep: Sweep, limits: Limits) -> Outcome:
    ops = [Delete(scope, key) for scope, key in view.expired(view.swept[: sweep.limit])]
    resolution = _resolve(view, ops, limits)
    if isinstance(resolution, StepwellError):
        return resolution
    view.write_state(resolution)
    view.sweeps.append(sweep)
    return Written([len(ops)])


def _queue(view: View, unit: Unit, _: Limits) -> Outcome:
    return view.queue.write(unit)


_RULES: dict[type, Callable[[View, Any, Limits], Outcome]] = {
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
