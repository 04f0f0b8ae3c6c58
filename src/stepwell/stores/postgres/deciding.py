"""Decides units on a view: what each comes to, given the rows that are locked and what the units before it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stepwell.errors import AlreadyExists, Conflict, LeaseLost, LockHeld, NotFound, StepwellError
from stepwell.model.commit import (
    Acquire,
    Adoption,
    Archiving,
    Claim,
    ClaimDue,
    Commit,
    Creation,
    Deletion,
    Extension,
    Head,
    Lease,
    LockGuard,
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
from stepwell.model.entry import Clear, Copy, Delete, Resolution, StateOp, resolve
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.queue import NewItem
from stepwell.model.scope import Scope
from stepwell.model.status import FINAL
from stepwell.stores.postgres.queue_view import DECIDED
from stepwell.stores.postgres.view import LockRow, View

__all__ = ["decide", "lock_lost", "misfit", "refusal_of"]

_WRITTEN = Written()
replace = msgspec.structs.replace

# An index entry holds about 2,700 bytes, and one index has two ids in it; limits can be set higher than that.
_ID_BYTES = 1_024
_NAME_BYTES = 1_000_000
_LANE_BYTES = 800  # three of these stand side by side in the index of ready items


def misfit(unit: Unit) -> StepwellError | None:
    """Why a unit can never be stored here, whatever is in the database: a name that is no text, or too long for an index."""
    try:
        for what in ("execution_id", "workspace_id", "commit_id"):
            if hasattr(unit, what):
                check_key(getattr(unit, what), what, _ID_BYTES)
        for what in ("name", "holder"):
            if getattr(unit, what, None):  # an empty one holds nothing, and is refused as such
                check_key(getattr(unit, what), what, _NAME_BYTES)
        for execution_id in getattr(unit, "nudges", ()):
            check_key(execution_id, "an execution's id", _ID_BYTES)
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
            check_key(getattr(new, what), f"an item's {what}", _LANE_BYTES)


def _check_op(op: StateOp) -> None:
    Scope.parse(op.scope)
    if not isinstance(op, Clear):
        check_key(op.key, "a state key", _ID_BYTES)
    if isinstance(op, Copy):
        Scope.parse(op.to_scope)
        check_key(op.to_key, "a state key", _ID_BYTES)


def decide(view: View, unit: Unit, limits: Limits) -> Outcome:
    """What a unit comes to; the view is as it leaves it."""
    return _RULES[type(unit)](view, unit, limits)


def refusal_of(commit: Commit, head: Head | None) -> StepwellError:
    """Why a commit cannot follow from a head; there is none for an execution that is not there."""
    if commit.creation is not None:
        return _exists(commit.execution_id)
    if head is None:
        return _missing(commit.execution_id)
    if commit.fence is not None and commit.fence != head.fence:
        return LeaseLost(fence=commit.fence)
    return Conflict(expected=commit.revision - 1, actual=head.revision)


def _commit(view: View, commit: Commit, limits: Limits) -> Outcome:
    seen = view.seen.get((commit.execution_id, commit.commit_id))
    if seen is not None:
        return Seen(seen.header, seen.body)
    resolution = _resolve(view, commit.ops, limits) if commit.ops else None
    if isinstance(resolution, StepwellError):
        return resolution
    refusal = _broken_guard(view, commit.guards) or _unfit(view, commit)
    if refusal is None and (commit.items or commit.mark is not None):
        refusal = view.queue.ride(commit)
    if refusal is not None:
        return refusal
    if commit.creation is not None:
        _create(view, _first_head(commit, commit.creation, view.now_ms))
    else:
        view.move(_moved(view.heads[commit.execution_id], commit))
    view.add_commit(commit)
    if commit.rest is not None:
        _rest(view, commit.execution_id, commit.rest)
    _nudge(view, commit.nudges)
    return _WRITTEN if resolution is None else _write_state(view, resolution)


def _unfit(view: View, commit: Commit) -> StepwellError | None:
    head = view.heads.get(commit.execution_id)
    if commit.creation is not None:
        return refusal_of(commit, head) if view.is_taken(commit.execution_id) else None
    if head is None or (head.revision, head.digest) != (commit.revision - 1, commit.previous):
        return refusal_of(commit, head)
    return refusal_of(commit, head) if commit.fence not in (None, head.fence) else None


def _moved(head: Head, commit: Commit) -> Head:
    return replace(
        head,
        revision=commit.revision,
        digest=commit.digest,
        status=commit.status or head.status,
        signature=commit.signature,
        updated_ms=commit.committed_ms,
        claims=0,
    )


def _create(view: View, head: Head) -> None:
    view.create(head)
    if head.wake_ms is not None and head.holder is None:
        view.topics.add("due")


def _first_head(commit: Commit, creation: Creation, now_ms: int) -> Head:
    until = None if creation.holder is None else now_ms + round(creation.lease_seconds * 1000)
    return Head(
        fence=0 if creation.holder is None else 1,
        holder=creation.holder,
        lease_until_ms=until,
        wake_ms=None if not creation.is_runnable else now_ms if until is None else until,
        execution_id=commit.execution_id,
        workspace_id=commit.workspace_id,
        workflow_id=creation.workflow_id,
        version=creation.version,
        parent_id=creation.parent_id,
        status=commit.status or "PENDING",
        revision=commit.revision,
        digest=commit.digest,
        signature=commit.signature,
        created_ms=commit.committed_ms,
        updated_ms=commit.committed_ms,
    )


def _state_batch(view: View, batch: StateBatch, limits: Limits) -> Outcome:
    resolution = _broken_guard(view, batch.guards) or _resolve(view, batch.ops, limits)
    if isinstance(resolution, StepwellError):
        return resolution
    _nudge(view, batch.nudges)
    return _write_state(view, resolution)


def _rest(view: View, execution_id: str, rest: Rest) -> None:
    """Give a lease back with the time of the next look; a nudge that came meanwhile makes that now."""
    wake = None if rest.is_final else view.now_ms if execution_id in view.nudged else rest.wake_ms
    view.move(replace(view.heads[execution_id], holder=None, lease_until_ms=None, wake_ms=wake))
    view.nudged.discard(execution_id)
    if wake is not None and wake <= view.now_ms:
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


def _broken_guard(view: View, guards: Sequence[LockGuard]) -> LeaseLost | None:
    for guard in guards:
        row = view.locks.get(guard.name)
        if row is None or row.fence != guard.fence:
            return LeaseLost(f"lock {guard.name!r} was lost; nothing was written", fence=guard.fence)
    return None


def _resolve(view: View, ops: Sequence[StateOp], limits: Limits) -> Resolution | StepwellError:
    return resolve(ops, view.stored, view.totals_of, view.now_ms, limits, view.expired_in)


def _write_state(view: View, resolution: Resolution) -> Outcome:
    view.write_state(resolution)
    return Written(resolution.answers)


def _claim(view: View, claim: Claim, _: Limits) -> Outcome:
    head = view.heads.get(claim.execution_id)
    if head is None:
        return _missing(claim.execution_id)
    if head.holder not in (None, claim.holder) and (head.lease_until_ms or 0) > view.now_ms:
        return LockHeld(f"execution {claim.execution_id!r} is leased to another holder", until_ms=head.lease_until_ms)
    return Written([_grant(view, head, claim)])


def _claim_due(view: View, claim: ClaimDue, _: Limits) -> Outcome:
    newest = claim.newest()
    due = [h for h in view.heads.values() if _is_due(h, view.now_ms) and h.version <= newest.get(h.workflow_id, -1)]
    due.sort(key=lambda head: (head.wake_ms or 0, head.execution_id))
    return Written([_grant(view, head, claim) for head in due[: claim.limit]])


def _is_due(head: Head, now_ms: int) -> bool:
    is_free = head.holder is None or (head.lease_until_ms or 0) <= now_ms
    return is_free and head.wake_ms is not None and head.wake_ms <= now_ms


def _grant(view: View, head: Head, claim: Claim | ClaimDue) -> Lease:
    fence, until = head.fence + 1, view.now_ms + round(claim.seconds * 1000)
    wake = None if head.wake_ms is None else until
    view.move(replace(head, holder=claim.holder, fence=fence, lease_until_ms=until, wake_ms=wake, claims=head.claims + 1))
    view.nudged.discard(head.execution_id)
    return Lease(head.execution_id, claim.holder, fence, until)


def _extend(view: View, unit: Extension, _: Limits) -> Outcome:
    head = view.heads.get(unit.execution_id)
    if head is None or not _is_holder(head, unit) or (head.lease_until_ms or 0) <= view.now_ms:
        return LeaseLost(fence=unit.fence)
    until = view.now_ms + round(unit.seconds * 1000)
    view.move(replace(head, lease_until_ms=until, wake_ms=None if head.wake_ms is None else until))
    return Written([Lease(unit.execution_id, unit.holder, unit.fence, until)])


def _release(view: View, unit: Release, _: Limits) -> Outcome:
    head = view.heads.get(unit.execution_id)
    if head is None or not _is_holder(head, unit):
        return LeaseLost(fence=unit.fence)
    view.move(replace(head, holder=None, lease_until_ms=None, wake_ms=None if head.wake_ms is None else view.now_ms))
    if head.wake_ms is not None:
        view.topics.add("due")
    return _WRITTEN


def _is_holder(head: Head, unit: Extension | Release) -> bool:
    return (head.holder, head.fence) == (unit.holder, unit.fence)


def _acquire(view: View, unit: Acquire, _: Limits) -> Outcome:
    now, until = view.now_ms, view.now_ms + round(unit.seconds * 1000)
    row = view.locks.get(unit.name)
    is_held = row is not None and row.until_ms > now
    if row is not None and is_held and row.holder != unit.holder:
        return LockHeld(f"lock {unit.name!r} is held by another", until_ms=row.until_ms)
    if row is None or not is_held:
        row = LockRow(unit.holder, view.fences.pop(0), now, until)
    view.put_lock(unit.name, replace(row, until_ms=until))
    return Written([Lease(unit.name, unit.holder, row.fence, until)])


def _renew(view: View, unit: Renew, _: Limits) -> Outcome:
    row = _held_lock(view, unit)
    if row is None:
        return lock_lost(unit)
    until = view.now_ms + round(unit.seconds * 1000)
    view.put_lock(unit.name, replace(row, until_ms=until))
    return Written([Lease(unit.name, unit.holder, unit.fence, until)])


def _unlock(view: View, unit: Unlock, _: Limits) -> Outcome:
    row = _held_lock(view, unit)
    if row is None:
        return lock_lost(unit)
    until = row.acquired_ms + round(unit.at_least_seconds * 1000)
    if until > view.now_ms:
        view.put_lock(unit.name, replace(row, holder="", until_ms=until))
    else:
        view.drop_lock(unit.name)
    view.topics.add("lock")
    return _WRITTEN


def _held_lock(view: View, unit: Renew | Unlock) -> LockRow | None:
    row = view.locks.get(unit.name)
    if row is None or (row.holder, row.fence) != (unit.holder, unit.fence) or row.until_ms <= view.now_ms:
        return None
    return row


def lock_lost(unit: Renew | Unlock) -> LeaseLost:
    return LeaseLost(f"lock {unit.name!r} expired or was taken by another", fence=unit.fence)


def _delete(view: View, deletion: Deletion, _: Limits) -> Outcome:
    if deletion.execution_id not in view.heads:
        return _missing(deletion.execution_id)
    view.bury(deletion.execution_id)
    view.queue.end_of(deletion.execution_id)
    return _WRITTEN


def _archive(view: View, archiving: Archiving, _: Limits) -> Outcome:
    through, head = archiving.snapshot.revision, view.heads.get(archiving.execution_id)
    if head is None or not head.base_revision <= through <= head.revision:
        return NotFound(f"execution {archiving.execution_id!r} has no revision {through} to archive")
    view.drop_history(archiving.execution_id, through)
    view.add_snapshot(archiving.execution_id, archiving.snapshot)
    view.move(replace(head, base_revision=through))
    return _WRITTEN


def _adopt(view: View, adoption: Adoption, _: Limits) -> Outcome:
    if view.is_taken(adoption.execution_id):
        return _exists(adoption.execution_id)
    _create(
        view,
        Head(
            execution_id=adoption.execution_id,
            workspace_id=adoption.workspace_id,
            workflow_id=adoption.creation.workflow_id,
            version=adoption.creation.version,
            parent_id=adoption.creation.parent_id,
            status=adoption.status,
            revision=adoption.snapshot.revision,
            digest=adoption.digest,
            base_revision=adoption.snapshot.revision,
            signature=adoption.signature,
            created_ms=adoption.adopted_ms,
            updated_ms=adoption.adopted_ms,
        ),
    )
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


def _missing(execution_id: str) -> NotFound:
    return NotFound(f"there is no execution {execution_id!r}")


def _exists(execution_id: str) -> AlreadyExists:
    return AlreadyExists(f"execution {execution_id!r} exists already; ids are never used twice")


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
