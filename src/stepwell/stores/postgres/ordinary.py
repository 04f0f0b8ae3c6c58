"""The short path: a group of nothing but ordinary commits, or nothing but creations, is one statement and one round trip.

Such a statement is a transaction by itself. It says which commits landed; why the others did not is asked afterwards, since that
is rare and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.model.commit import Commit, Head, Outcome, Seen, Unit, Written
from stepwell.model.ids import revision_in
from stepwell.stores.postgres.deciding import refusal_of
from stepwell.stores.postgres.link import Link
from stepwell.stores.postgres.wire import blobs, booleans, integers, texts

__all__ = ["is_ordinary", "why_refused", "write_ordinary"]

_WRITTEN = Written()

# Ids of so many characters fit into an index whatever the characters are; longer ones are measured on the general path.
_SHORT = 256


def is_ordinary(units: Sequence[Unit]) -> bool:
    """Whether one statement can write the group: commits of different executions, all of them first ones or none."""
    first = units[0]
    if not isinstance(first, Commit):
        return False
    is_creation = first.creation is not None
    for unit in units:
        if (
            not isinstance(unit, Commit)
            or unit.ops
            or unit.guards
            or unit.nudges
            or unit.items
            or unit.mark is not None
            or unit.snapshot is not None
            or (unit.creation is not None) is not is_creation
            or (is_creation and unit.rest is not None)
            or len(unit.execution_id) + len(unit.commit_id) + len(unit.workspace_id) > _SHORT
            or revision_in(unit.commit_id) not in (None, unit.revision)  # it may have landed at that other revision
        ):
            return False
    return len(units) == 1 or len({unit.execution_id for unit in units if isinstance(unit, Commit)}) == len(units)


def write_ordinary(link: Link, commits: Sequence[Commit], ahead_ms: int, channel: str) -> list[Outcome | None]:
    """Write them in one statement: an outcome for each that landed, None for the others."""
    if commits[0].creation is not None:
        return _create(link, commits, ahead_ms, channel)
    if len(commits) == 1 and commits[0].rest is None:
        commit = commits[0]
        is_plain = commit.is_plain and not _is_named(commit)
        return [_WRITTEN if (_commit_plain if is_plain else _commit_one)(link, commit) else None]
    return _commit_group(link, commits, ahead_ms, channel)


def _is_named(commit: Commit) -> bool:
    return revision_in(commit.commit_id) != commit.revision


def _commit_plain(link: Link, commit: Commit) -> bool:
    landed = link.tell(
        "commit_plain",
        commit.execution_id,
        commit.revision,
        commit.digest,
        commit.signature,
        commit.committed_ms,
        commit.previous,
        commit.fence,
        commit.commit_id,
        commit.header,
        commit.body,
    )
    return bool(landed)


def _commit_one(link: Link, commit: Commit) -> bool:
    landed = link.tell(
        "commit_one",
        commit.execution_id,
        commit.revision,
        commit.digest,
        commit.signature,
        commit.committed_ms,
        commit.status,
        commit.previous,
        commit.fence,
        commit.commit_id,
        _is_named(commit),
        commit.header,
        commit.body,
    )
    return bool(landed)


def _commit_group(link: Link, commits: Sequence[Commit], ahead_ms: int, channel: str) -> list[Outcome | None]:
    # Sorted, so that two processes lock the same executions in the same order.
    order = sorted(range(len(commits)), key=lambda position: commits[position].execution_id)
    rows = [commits[position] for position in order]
    landed = link.ask(
        "commit_group",
        texts([commit.execution_id for commit in rows]),
        integers([commit.revision for commit in rows]),
        texts([commit.digest for commit in rows]),
        blobs([commit.signature for commit in rows]),
        integers([commit.committed_ms for commit in rows]),
        texts([commit.status for commit in rows]),
        texts([commit.previous for commit in rows]),
        integers([commit.fence for commit in rows]),
        texts([commit.commit_id for commit in rows]),
        booleans([_is_named(commit) for commit in rows]),
        blobs([commit.header for commit in rows]),
        blobs([commit.body for commit in rows]),
        booleans([commit.rest is not None for commit in rows]),
        booleans([commit.rest is not None and commit.rest.is_final for commit in rows]),
        integers([None if commit.rest is None else commit.rest.wake_ms for commit in rows]),
        ahead_ms,
        channel,
    )
    outcomes: list[Outcome | None] = [None] * len(commits)
    for position, _ in landed:
        outcomes[order[position - 1]] = _WRITTEN
    return outcomes


def _create(link: Link, commits: Sequence[Commit], ahead_ms: int, channel: str) -> list[Outcome | None]:
    rows = sorted(commits, key=lambda commit: commit.execution_id)
    creations = [commit.creation for commit in rows if commit.creation is not None]
    created = link.ask(
        "create_group",
        texts([commit.execution_id for commit in rows]),
        texts([commit.workspace_id for commit in rows]),
        texts([creation.workflow_id for creation in creations]),
        integers([creation.version for creation in creations]),
        texts([creation.parent_id for creation in creations]),
        texts([commit.status or "PENDING" for commit in rows]),
        integers([commit.revision for commit in rows]),
        texts([commit.digest for commit in rows]),
        blobs([commit.signature for commit in rows]),
        integers([commit.committed_ms for commit in rows]),
        texts([commit.commit_id for commit in rows]),
        booleans([_is_named(commit) for commit in rows]),
        blobs([commit.header for commit in rows]),
        blobs([commit.body for commit in rows]),
        texts([creation.holder for creation in creations]),
        integers([round(creation.lease_seconds * 1000) for creation in creations]),
        booleans([creation.is_runnable for creation in creations]),
        ahead_ms,
        channel,
    )
    landed = {execution_id for execution_id, _ in created}
    return [_WRITTEN if commit.execution_id in landed else None for commit in commits]


def why_refused(link: Link, commits: Sequence[Commit]) -> list[Outcome]:
    """Why commits did not land: seen before, or what their execution's head says now."""
    ids = texts(commit.execution_id for commit in commits)
    revisions = integers(revision_in(commit.commit_id) for commit in commits)
    heads, seen = link.ask_all(
        [("heads", [ids]), ("seen_commits", [ids, texts(commit.commit_id for commit in commits), revisions])]
    )
    landed = {position - 1: Seen(header, body) for position, _, header, body in seen}
    alive = {row[0]: Head(*row[:-2]) for row in heads if row[-2] is None}
    return [landed.get(position) or refusal_of(commit, alive.get(commit.execution_id)) for position, commit in enumerate(commits)]
