"""Commits as the columns of the statements that write many of them at once."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.model.commit import Commit
from stepwell.model.ids import revision_in
from stepwell.model.queue_lifecycle import storable
from stepwell.stores.postgres.wire import blobs, booleans, integers, texts

__all__ = ["creation_columns", "is_named", "later_columns"]


def is_named(commit: Commit) -> bool:
    """Whether a commit is looked up by its id, and not by the revision that the id says."""
    return commit.is_named and revision_in(commit.commit_id) != commit.revision


def later_columns(commits: Sequence[Commit], *, is_marked: bool) -> list[bytes]:
    """The arguments of ``commit_group``, or of ``commit_marked``."""
    columns = [
        texts([commit.execution_id for commit in commits]),
        integers([commit.revision for commit in commits]),
        texts([commit.digest for commit in commits]),
        blobs([commit.signature for commit in commits]),
        integers([commit.committed_ms for commit in commits]),
        texts([commit.status for commit in commits]),
        texts([commit.previous for commit in commits]),
        integers([commit.fence for commit in commits]),
        *_commit_columns(commits),
        booleans([commit.rest is not None for commit in commits]),
        booleans([commit.rest is not None and commit.rest.is_final for commit in commits]),
        integers([None if commit.rest is None else commit.rest.wake_ms for commit in commits]),
    ]
    if is_marked:
        columns += [*_item_columns(commits), _error_column(commits)]
    return columns


def creation_columns(commits: Sequence[Commit], *, is_marked: bool) -> list[bytes]:
    """The arguments of ``create_group``, or of ``create_marked``."""
    creations = [commit.creation for commit in commits if commit.creation is not None]
    columns = [
        texts([commit.execution_id for commit in commits]),
        texts([commit.workspace_id for commit in commits]),
        texts([creation.workflow_id for creation in creations]),
        integers([creation.version for creation in creations]),
        texts([creation.parent_id for creation in creations]),
        texts([commit.status or "PENDING" for commit in commits]),
        integers([commit.revision for commit in commits]),
        texts([commit.digest for commit in commits]),
        blobs([commit.signature for commit in commits]),
        integers([commit.committed_ms for commit in commits]),
        *_commit_columns(commits),
        texts([creation.holder for creation in creations]),
        integers([round(creation.lease_seconds * 1000) for creation in creations]),
        booleans([creation.is_runnable for creation in creations]),
        booleans([commit.rest is not None for commit in commits]),
        integers([None if commit.rest is None or commit.rest.is_final else commit.rest.wake_ms for commit in commits]),
    ]
    if is_marked:
        fences = integers([None if commit.mark is None else commit.mark.fence for commit in commits])
        columns += [*_item_columns(commits), fences, _error_column(commits)]
    return columns


def _commit_columns(commits: Sequence[Commit]) -> list[bytes]:
    return [
        texts([commit.commit_id for commit in commits]),
        booleans([is_named(commit) for commit in commits]),
        blobs([commit.header for commit in commits]),
        blobs([commit.body for commit in commits]),
    ]


def _item_columns(commits: Sequence[Commit]) -> list[bytes]:
    return [
        texts([None if commit.mark is None else commit.mark.item_id for commit in commits]),
        texts([None if commit.mark is None else commit.mark.status for commit in commits]),
    ]


def _error_column(commits: Sequence[Commit]) -> bytes:
    return texts([None if commit.mark is None else storable(commit.mark.error) for commit in commits])
