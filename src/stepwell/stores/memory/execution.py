"""The rows of one execution in memory."""

from __future__ import annotations

from stepwell.model.commit import Commit, Head, StoredCommit
from stepwell.model.snapshot import StoredSnapshot

__all__ = ["Execution", "first_head"]


class Execution:
    """One execution's rows; ``commits`` starts right after the head's base revision."""

    __slots__ = ("by_commit_id", "commits", "head", "is_nudged", "snapshots")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.commits: list[StoredCommit] = []
        self.by_commit_id: dict[str, int] = {}
        self.snapshots: list[StoredSnapshot] = []
        self.is_nudged = False

    def row(self, revision: int) -> StoredCommit:
        return self.commits[revision - self.head.base_revision - 1]

    def rows(self, after: int, upto: int) -> list[StoredCommit]:
        base = self.head.base_revision + 1
        return self.commits[max(after + 1 - base, 0) : max(upto + 1 - base, 0)]


def first_head(commit: Commit, now_ms: int) -> Head:
    """The head of an execution before its creation is written."""
    assert commit.creation is not None, "only a creation makes a new execution"  # noqa: S101
    is_held = commit.creation.holder is not None
    until = now_ms + round(commit.creation.lease_seconds * 1000) if is_held else None
    return Head(
        fence=int(is_held),
        holder=commit.creation.holder,
        lease_until_ms=until,
        wake_ms=None if not commit.creation.is_runnable else until if is_held else now_ms,
        execution_id=commit.execution_id,
        workspace_id=commit.workspace_id,
        workflow_id=commit.creation.workflow_id,
        version=commit.creation.version,
        parent_id=commit.creation.parent_id,
        status=commit.status or "PENDING",
        revision=-1,
        digest=commit.previous,
        created_ms=commit.committed_ms,
        updated_ms=commit.committed_ms,
    )
