"""Named points on the write path where a test can make the process fail.

In production ``fault`` does nothing. A test arms it with a function that is called with the name of each point that is reached. The
function may raise, block, or kill the process. Arming changes no path: a point stands where the shipping code really passes, so
that a store which writes in one statement has no point inside of it. Cut such a statement at the disk or the wire.

``POINTS`` is the registry: a test compares it with the points that a traced commit reaches, so that no write is added without one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from stepwell.errors import CommitUnknown

__all__ = [
    "BACKUP_POINTS",
    "LEASE_POINTS",
    "MIGRATION_POINTS",
    "POINTS",
    "QUEUE_POINTS",
    "RETENTION_POINTS",
    "armed",
    "fault",
    "fault_after_commit",
]

# The numbers are the fault points FP0-FP14 of the reliability catalogue.
POINTS: dict[str, str] = {
    "commit.buffered": "FP0 mutations are buffered, nothing is checked",
    "commit.validating": "FP1 before the batch is validated",
    "commit.mutation_checked": "FP2 inside validation, after each mutation",
    "commit.validated": "FP3 the batch is valid and its receipt is built",
    "commit.applying": "FP4 memory is being brought up to the stored state, before each entry",
    "store.before_begin": "FP5 before the transaction begins",
    "store.begun": "FP6 the transaction has begun",
    "store.head_written": "FP7/FP10 the execution's head is written, its commit row is not",
    "store.commit_written": "FP7/FP9 the commit row is written",
    "store.snapshot_written": "FP7 an automatic snapshot is written",
    "store.entry_written": "FP7/FP8 after each scoped-state row",
    "store.scope_written": "FP7 after each scope's totals",
    "store.before_commit": "FP11 before COMMIT",
    "store.committed": "FP12 COMMIT is done, no caller knows",
    "commit.persisted": "FP13 stored, memory not updated",
    "commit.applied": "FP14 memory updated, caller not answered",
}

QUEUE_POINTS: dict[str, str] = {
    "queue.items_written": "FP7 the items of an enqueue, or of a commit, are written",
    "queue.items_claimed": "FP7 items are claimed, fairness and rates not counted",
    "queue.claim_counted": "FP7 a claim's fairness and rates are counted",
    "queue.item_moved": "FP7 after each item that is marked, returned, cancelled, driven again, recovered or dropped",
}
"""Points that only writes to the queue reach."""

BACKUP_POINTS: dict[str, str] = {
    "backup.segment_written": "after each segment of a backup is written, which no manifest names yet",
    "backup.manifest_written": "the new manifest is written beside the one that counts",
    "backup.finished": "the new manifest counts, files that it does not name are still there",
    "restore.batch_written": "after each batch that a restore has written",
    "import.batch_written": "after each batch of an imported run",
    "erasure.marked": "the subject is being erased, and nothing is yet",
    "erasure.batch_written": "after each batch of runs, items and scopes, which the index no longer lists",
    "erasure.destroyed": "the key is destroyed and the receipt written, caches are not cleared",
    "rotation.batch_written": "after each batch of data keys that a rotation has wrapped anew",
}
"""Points that only backups, restores, erasures and rotations reach."""

MIGRATION_POINTS: dict[str, str] = {
    "migration.planned": "the values to migrate are counted, and backed up if that was asked for; none is migrated",
    "migration.batch_written": "after each batch of values or executions that a migration of state has written",
    "upgrade.batch_written": "after each batch of runs that were moved to another version of their definition",
}
"""Points that only migrations of stored state reach."""

RETENTION_POINTS: dict[str, str] = {
    "retention.items_dropped": "after each batch of ended items that is dropped",
    "retention.archive_written": "an archive file is durable, its receipts are still in the store",
    "retention.tombstones_written": "the tombstones of a batch are written, its executions are still there",
    "retention.removed": "the executions of a batch are deleted",
    "retention.intents_noted": "a batch is to lose its values, and has them yet",
    "retention.values_removed": "after each execution whose values were removed by a commit, its receipts are still there",
    "retention.receipts_dropped": "snapshots have taken the place of receipts, the intents are still noted",
}
"""Points that only retention reaches."""

LEASE_POINTS: dict[str, str] = {
    "lease.claimed": "FP7 executions that were due are leased to a worker",
    "lease.rested": "FP7 an execution's lease is given back with its commit",
    "lease.nudged": "FP7 after each execution that is nudged",
}
"""Points that only leases and nudges of executions reach."""

_hook: Callable[[str], None] | None = None


def fault(point: str) -> None:
    """Report that ``point`` was reached. Costs one comparison unless a test armed it."""
    if _hook is not None:
        _hook(point)


def fault_after_commit() -> None:
    """Report that a store has committed. An error from here on is a lost reply: the caller cannot know that the write landed.

    :raises CommitUnknown: a test made the point fail
    """
    try:
        fault("store.committed")
    except Exception as error:
        raise CommitUnknown from error


@contextmanager
def armed(hook: Callable[[str], None]) -> Generator[None]:
    """Call ``hook`` at every point for as long as the block runs. For tests."""
    global _hook  # noqa: PLW0603 - one process-wide switch keeps the disarmed cost at one comparison
    _hook, before = hook, _hook
    try:
        yield
    finally:
        _hook = before
