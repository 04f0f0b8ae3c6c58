"""Commits and the other units of writing, and their outcomes: what goes to a store and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec

from stepwell.errors import StepwellError
from stepwell.model.ids import is_made_for
from stepwell.model.queue_item import (
    CancelItem,
    ClaimItems,
    DropItems,
    Enqueue,
    ItemMark,
    NewItem,
    PutQueue,
    PutTier,
    PutWorkspace,
    RecoverItems,
    Redrive,
    ReturnItem,
)
from stepwell.model.scoped_operations import StateOp
from stepwell.model.snapshot import StoredSnapshot

__all__ = [
    "ANY_VERSION",
    "Acquire",
    "Adoption",
    "Archiving",
    "Claim",
    "ClaimDue",
    "Commit",
    "CommitKind",
    "Creation",
    "Deletion",
    "Extension",
    "Head",
    "Lease",
    "Loaded",
    "LockGuard",
    "Outcome",
    "Release",
    "Renew",
    "Rest",
    "Seen",
    "StateBatch",
    "StoredCommit",
    "Sweep",
    "Unit",
    "Unlock",
    "Written",
]


ANY_VERSION = 2**31 - 1
"""The highest version."""


class Creation(msgspec.Struct, frozen=True, gc=False):
    """The fields of a new execution's row that its head does not have."""

    workflow_id: str
    version: int
    parent_id: str | None = None
    holder: str | None = None
    """The worker that holds its lease from the start; None if no worker does."""
    lease_seconds: float = 0
    is_runnable: bool = False
    """Whether workers run it; an execution that is driven by hand never comes due."""
    slot: NewItem | None = None
    """The item by which the execution takes a slot of its workspace; without a free one the commit is refused.

    An item that is not started waits for a slot, and the execution with it.
    """
    fence: int = 1
    """The fence of the holder's lease: that of the claim, for an execution from a queue item, so that it rises with each claim."""

    @property
    def granted_fence(self) -> int:
        """The fence that the row begins with: 0 without a holder."""
        return 0 if self.holder is None else self.fence


class Rest(msgspec.Struct, frozen=True, gc=False):
    """Give the execution's lease back with this commit, and say when a worker should next look at it (None: when nudged)."""

    wake_ms: int | None = None
    is_final: bool = False
    """The execution has ended: nothing wakes it any more."""


class LockGuard(msgspec.Struct, frozen=True, gc=False):
    """A lock that the writer holds: its write lands only if the lock was granted to no other holder since."""

    name: str
    fence: int


class CommitKind(Enum):
    """The kind of a commit, as far as a store's fast path is concerned.

    Every kind but GENERAL promises: Stepwell made the commit id for this very revision, and the commit carries no state
    operations, lock guards, nudges, queue items, version or snapshot. A store may write any kind as a GENERAL one.
    """

    STEP = "step"
    """Only adds a receipt."""
    ROW = "row"
    """Also changes the status or rests, and moves no queue item."""
    LAST = "last"
    """Ends the execution, and with it the queue item that it came from, if any, whether or not that item was started."""
    FIRST = "first"
    """Creates the execution, which goes on, and moves the item that was claimed for it, if any."""
    RUN = "run"
    """Creates and ends the execution, and ends the item that was claimed for it."""
    GENERAL = "general"
    """Anything else."""


class Commit(msgspec.Struct, frozen=True, gc=False):
    """An atomic batch of changes to one execution, ready to be stored."""

    execution_id: str
    workspace_id: str
    commit_id: str
    revision: int
    previous: str
    """Digest of the receipt that must be the head now."""
    digest: str
    """Digest of this commit's receipt: the head afterwards."""
    header: bytes
    body: bytes
    committed_ms: int
    status: str | None = None
    """The execution's status afterwards, if this commit changes it."""
    fence: int | None = None
    """The fence of the writer's lease; None for a writer without a lease, which only the revision guards."""
    signature: bytes | None = None
    creation: Creation | None = None
    snapshot: StoredSnapshot | None = None
    """The state before this commit, if a snapshot is due; it lands in the same transaction."""
    ops: tuple[StateOp, ...] = ()
    """Scoped-state operations that land with the commit."""
    guards: tuple[LockGuard, ...] = ()
    """Locks that the writer must still hold."""
    rest: Rest | None = None
    """The rest that ends the lease; None keeps it."""
    nudges: tuple[str, ...] = ()
    """Executions to nudge with this commit."""
    items: tuple[NewItem, ...] = ()
    """Queue items that land with it; if one is refused, so is the commit."""
    mark: ItemMark | None = None
    """The new status of the queue item that the execution came from."""
    is_named: bool = True
    """Whether the user chose the commit id; an id that Stepwell made contains its revision, and is used for no other."""

    version: int | None = None
    """The version of the workflow that the execution goes on with, if this commit changes it."""

    kind: CommitKind = CommitKind.GENERAL
    """The kind of the commit; computed from the other fields."""

    def __post_init__(self) -> None:
        """Decide the commit's kind, once for every store and every copy of the commit."""
        is_general = (
            self.is_named
            or self.snapshot is not None
            or self.ops
            or self.guards
            or self.nudges
            or self.items
            or self.version is not None
            or not is_made_for(self.commit_id, self.revision)
        )
        if is_general:
            kind = CommitKind.GENERAL
        elif self.status is self.rest is self.creation is self.mark is None:
            kind = CommitKind.STEP  # nearly every commit
        else:
            kind = _kind_of_change(self)
        msgspec.structs.force_setattr(self, "kind", kind)


def _kind_of_change(commit: Commit) -> CommitKind:
    is_final = commit.rest is not None and commit.rest.is_final
    if commit.creation is not None:
        return _kind_of_first(commit, is_final=is_final)
    if is_final and commit.status is not None and (commit.mark is None or _ends_item(commit.mark)):
        return CommitKind.LAST
    return CommitKind.ROW if commit.mark is None else CommitKind.GENERAL


def _kind_of_first(commit: Commit, *, is_final: bool) -> CommitKind:
    has_claim = commit.mark is not None and commit.mark.fence is not None
    if is_final:
        return CommitKind.RUN if has_claim else CommitKind.GENERAL
    return CommitKind.FIRST if commit.rest is None and (has_claim or commit.mark is None) else CommitKind.GENERAL


def _ends_item(mark: ItemMark) -> bool:
    """Return whether the mark ends an item that was claimed: while its item waits, an execution can only be cancelled."""
    return mark.fence is None and mark.status not in ("CANCELLED", "QUEUED")


class StateBatch(msgspec.Struct, frozen=True, gc=False):
    """Operations on scoped state that land together, outside any execution."""

    ops: tuple[StateOp, ...]
    guards: tuple[LockGuard, ...] = ()
    nudges: tuple[str, ...] = ()
    """Executions to nudge; a resting one comes due at once."""


class Deletion(msgspec.Struct, frozen=True, gc=False):
    """Delete an execution. A tombstone stays, so that a late writer finds nothing to revive and the id is not used again."""

    execution_id: str
    head: str | None = None
    """The digest of the newest receipt that the decision is based on: ``Conflict`` if it is another by now. None: any."""


class Archiving(msgspec.Struct, frozen=True, gc=False):
    """Drop the commits up to a snapshot's revision; the snapshot is the new start of the chain."""

    execution_id: str
    snapshot: StoredSnapshot


class Adoption(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Take in an execution from a snapshot made elsewhere; its history here begins with that snapshot."""

    execution_id: str
    workspace_id: str
    creation: Creation
    status: str
    digest: str
    snapshot: StoredSnapshot
    signature: bytes | None
    adopted_ms: int


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Ask for the lease of an execution: granted if free, expired, or held by the same holder."""

    execution_id: str
    holder: str
    seconds: float


class ClaimDue(msgspec.Struct, frozen=True, gc=False):
    """Ask for the leases of due executions (waiting to be run, woken, or left by a dead worker), the longest due first.

    The answers are leases, at most ``limit``. Each claim without a commit after it counts in the head's ``claims``.
    """

    workflows: tuple[str, ...]
    holder: str
    seconds: float
    limit: int
    versions: tuple[int, ...] = ()
    """The newest version of each workflow that the holder can run; empty: any. Executions of newer versions stay due."""

    def newest(self) -> dict[str, int]:
        """Return the newest version of each workflow that is asked for."""
        return dict(zip(self.workflows, self.versions or (ANY_VERSION,) * len(self.workflows), strict=True))


class Extension(msgspec.Struct, frozen=True, gc=False):
    """Ask to hold a lease for longer, counted from now."""

    execution_id: str
    holder: str
    fence: int
    seconds: float


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give a lease back."""

    execution_id: str
    holder: str
    fence: int


class Acquire(msgspec.Struct, frozen=True, gc=False):
    """Ask for a lock: granted if free or expired, with a fence higher than any that this store ever gave.

    A holder that has it already (its first reply was lost) gets the same fence again. Holders are unique to one acquisition.
    """

    name: str
    holder: str
    seconds: float


class Renew(msgspec.Struct, frozen=True, gc=False):
    """Ask to hold a lock for longer, counted from now."""

    name: str
    holder: str
    fence: int
    seconds: float


class Unlock(msgspec.Struct, frozen=True, gc=False):
    """Give a lock back; only its holder can. It stays taken until ``at_least_seconds`` after it was acquired."""

    name: str
    holder: str
    fence: int
    at_least_seconds: float = 0


class Sweep(msgspec.Struct, frozen=True, gc=False):
    """Turn expired state into tombstones, and drop expired locks and tombstones that are older than the given age."""

    tombstone_ms: int
    limit: int = 1_000


Unit = (
    Commit
    | StateBatch
    | Deletion
    | Archiving
    | Adoption
    | Claim
    | ClaimDue
    | Extension
    | Release
    | Acquire
    | Renew
    | Unlock
    | Sweep
    | Enqueue
    | ClaimItems
    | ItemMark
    | ReturnItem
    | CancelItem
    | Redrive
    | RecoverItems
    | DropItems
    | PutTier
    | PutWorkspace
    | PutQueue
)


class Lease(msgspec.Struct, frozen=True, gc=False):
    """Proof of holding an execution or a lock until a time; the fence only grows."""

    name: str
    """The execution's id or the lock's name."""
    holder: str
    fence: int
    until_ms: int


class Written(msgspec.Struct, frozen=True, gc=False):
    """The unit landed: an answer for each of its state operations, or the lease that it asked for."""

    answers: Sequence[object] = ()


class Seen(msgspec.Struct, frozen=True, gc=False):
    """The commit id landed before, and nothing was written now. Has the stored commit, or nothing if it was archived."""

    header: bytes
    body: bytes
    opened: Any = None
    """As in ``StoredCommit``."""


Outcome = Written | Seen | StepwellError
"""A refusal is an error that is returned as a value: it ends one unit, not its group."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """An execution's row."""

    execution_id: str
    workspace_id: str
    workflow_id: str
    version: int
    status: str
    revision: int
    digest: str
    fence: int = 0
    holder: str | None = None
    lease_until_ms: int | None = None
    base_revision: int = -1
    """The revision of the snapshot that the chain starts from; -1 if it starts with the creation."""
    signature: bytes | None = None
    parent_id: str | None = None
    created_ms: int = 0
    updated_ms: int = 0
    wake_ms: int | None = None
    """When the execution is due; None for never."""
    claims: int = 0
    """How often it was claimed since its last commit: shows a crash loop."""


class StoredCommit(msgspec.Struct, frozen=True, gc=False):
    """A commit as it is stored."""

    revision: int
    header: bytes
    body: bytes
    opened: Any = None
    """Of a sealed body: the mutations as bytes, or the error that says why they cannot be read. None for any other."""


class Loaded(msgspec.Struct, frozen=True, gc=False):
    """All data that an execution's state at a revision is built from, read in one consistent view."""

    head: Head
    snapshot: StoredSnapshot | None
    commits: Sequence[StoredCommit]
