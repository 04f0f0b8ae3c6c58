"""Transitions of an execution's row as pure functions, for the stores that decide in Python.

Each returns the row afterwards, or the refusal. The rules are stated with the units, in ``model.commit``.
"""

from __future__ import annotations

import msgspec

from stepwell.errors import Conflict, LeaseLost, LockHeld, NotFound, StepwellError
from stepwell.model.commit import Adoption, Archiving, Claim, ClaimDue, Commit, Creation, Extension, Head, Lease, Release, Rest
from stepwell.model.refusals import id_taken, leased, no_execution, no_revision

__all__ = [
    "adopted",
    "archived",
    "claimed",
    "due",
    "extended",
    "first_head",
    "granted",
    "lease_on",
    "moved",
    "refusal_of",
    "released",
    "rested",
    "unfit",
]

replace = msgspec.structs.replace


# Commits.


def unfit(commit: Commit, head: Head | None, *, is_taken: bool) -> StepwellError | None:
    """Return why a commit cannot be written; None if it can. An id stays taken when its execution is deleted."""
    if commit.creation is not None:
        return refusal_of(commit, head) if is_taken else None
    if head is None or (head.revision, head.digest) != (commit.revision - 1, commit.previous):
        return refusal_of(commit, head)
    return refusal_of(commit, head) if commit.fence not in (None, head.fence) else None


def refusal_of(commit: Commit, head: Head | None) -> StepwellError:
    """Return why a commit cannot follow a head; also for an execution that does not exist."""
    if commit.creation is not None:
        return id_taken(commit.execution_id)
    if head is None:
        return no_execution(commit.execution_id)
    if commit.fence is not None and commit.fence != head.fence:
        return LeaseLost(fence=commit.fence)
    return Conflict(expected=commit.revision - 1, actual=head.revision)


def first_head(commit: Commit, creation: Creation, now_ms: int) -> Head:
    """Return the row that a creation makes; the creator may hold its lease from the start."""
    until = None if creation.holder is None else now_ms + round(creation.lease_seconds * 1000)
    return Head(
        fence=creation.granted_fence,
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


def moved(head: Head, commit: Commit) -> Head:
    """Return the row after a commit that follows from it."""
    return replace(
        head,
        revision=commit.revision,
        digest=commit.digest,
        status=commit.status or head.status,
        version=commit.version or head.version,
        signature=commit.signature,
        updated_ms=commit.committed_ms,
        claims=0,
    )


def adopted(adoption: Adoption) -> Head:
    """Return the row of an execution from another store; its chain begins with the given snapshot."""
    return Head(
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
    )


def archived(head: Head | None, archiving: Archiving) -> Head | NotFound:
    """Return the row of an execution whose commits up to a snapshot are dropped."""
    through = archiving.snapshot.revision
    if head is None or not head.base_revision <= through <= head.revision:
        return no_revision(archiving)
    return replace(head, base_revision=through)


# Leases.


def claimed(head: Head | None, claim: Claim, now_ms: int) -> Head | NotFound | LockHeld:
    """Return the row that a claim of one execution leaves."""
    if head is None:
        return no_execution(claim.execution_id)
    if head.holder not in (None, claim.holder) and (head.lease_until_ms or 0) > now_ms:
        return leased(claim.execution_id, head.lease_until_ms)
    return granted(head, claim, now_ms)


def due(heads: list[Head], claim: ClaimDue, now_ms: int) -> list[Head]:
    """Return those rows that a claim of what is due is granted, the longest due first."""
    newest = claim.newest()
    wanted = [head for head in heads if _is_due(head, now_ms) and head.version <= newest.get(head.workflow_id, -1)]
    wanted.sort(key=lambda head: (head.wake_ms or 0, head.execution_id))
    return wanted[: claim.limit]


def _is_due(head: Head, now_ms: int) -> bool:
    is_free = head.holder is None or (head.lease_until_ms or 0) <= now_ms
    return is_free and head.wake_ms is not None and head.wake_ms <= now_ms


def granted(head: Head, claim: Claim | ClaimDue, now_ms: int) -> Head:
    """Return the row with a new holder and fence. An execution that a worker runs comes due again when its lease ends."""
    fence, until = head.fence + 1, now_ms + round(claim.seconds * 1000)
    wake = None if head.wake_ms is None else until
    return replace(head, holder=claim.holder, fence=fence, lease_until_ms=until, wake_ms=wake, claims=head.claims + 1)


def extended(head: Head | None, unit: Extension, now_ms: int) -> Head | LeaseLost:
    """Return the row with a lease that ends later; one that has ended is lost."""
    if head is None or not _is_holder(head, unit) or (head.lease_until_ms or 0) <= now_ms:
        return LeaseLost(fence=unit.fence)
    until = now_ms + round(unit.seconds * 1000)
    return replace(head, lease_until_ms=until, wake_ms=None if head.wake_ms is None else until)


def released(head: Head | None, unit: Release, now_ms: int) -> Head | LeaseLost:
    """Return the row without its holder; an execution that was to be run is due now."""
    if head is None or not _is_holder(head, unit):
        return LeaseLost(fence=unit.fence)
    return replace(head, holder=None, lease_until_ms=None, wake_ms=None if head.wake_ms is None else now_ms)


def rested(head: Head, rest: Rest, now_ms: int, *, is_nudged: bool) -> Head:
    """Return the row without its holder and with the time when it is due; a nudge that came meanwhile makes it due now."""
    wake = None if rest.is_final else now_ms if is_nudged else rest.wake_ms
    return replace(head, holder=None, lease_until_ms=None, wake_ms=wake)


def lease_on(head: Head) -> Lease:
    """Return the lease that a row was granted."""
    return Lease(head.execution_id, head.holder or "", head.fence, head.lease_until_ms or 0)


def _is_holder(head: Head, unit: Extension | Release) -> bool:
    return (head.holder, head.fence) == (unit.holder, unit.fence)
