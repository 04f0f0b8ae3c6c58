"""The rows of one execution in memory."""

from __future__ import annotations

from stepwell.model.commit import Commit, Head, Seen, StoredCommit
from stepwell.model.snapshot import StoredSnapshot

__all__ = ["MemoryExecution"]


class MemoryExecution:
    """One execution's rows; ``commits`` starts right after the head's base revision."""

    __slots__ = ("by_commit_id", "commits", "head", "is_nudged", "snapshots")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.commits: list[StoredCommit] = []
        self.by_commit_id: dict[str, int] = {}
        self.snapshots: list[StoredSnapshot] = []
        self.is_nudged = False

    def row(self, revision: int) -> StoredCommit:
        base = self.head.base_revision
        return self.commits[revision - base - 1] if revision > base else StoredCommit(revision, b"", b"")

    def rows(self, after: int, upto: int) -> list[StoredCommit]:
        base = self.head.base_revision + 1
        return self.commits[max(after + 1 - base, 0) : max(upto + 1 - base, 0)]

    def seen(self, commit: Commit) -> Seen | None:
        """The first writing of a commit id, if there was one."""
        revision = self.by_commit_id.get(commit.commit_id)
        if revision is None:
            return None
        row = self.row(revision)
        return Seen(row.header, row.body)
