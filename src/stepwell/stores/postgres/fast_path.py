"""The fast path: write a group of frequent units by a few statements, in one round trip.

One statement writes all first commits of a group, another all later ones, so a group of any size costs about the same. It is a
transaction by itself and returns which commits landed. Why the others did not is queried afterwards, which is rare.

Commits to different executions do not touch each other, so their order inside a group is free. They are sorted by the rows that
they lock, so that two processes never deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from stepwell.model.commit import ClaimDue, Commit, CommitKind, Head, Lease, Outcome, Seen, Unit, Written
from stepwell.model.execution_row import refusal_of
from stepwell.model.ids import revision_in
from stepwell.model.queue_item import ClaimItems, Enqueue, RecoverItems
from stepwell.model.queue_lifecycle import storable
from stepwell.model.refusals import claim_lost
from stepwell.stores.postgres.connection import PostgresConnection, StatementCall
from stepwell.stores.postgres.queue_statements import (
    claim_call,
    claimed,
    enqueue_call,
    enqueued,
    recover_call,
    recovered,
)
from stepwell.stores.postgres.statements import Row, blobs, booleans, integers, texts

__all__ = ["GroupStatement", "is_fast", "refusal_reasons", "statements_for"]

_WRITTEN = Written()

# Ids of so many characters fit into an index entry whatever the characters are. The general path measures longer ones in bytes.
_SHORT_IDS = 256


def is_fast(units: Sequence[Unit]) -> bool:
    """Return whether the fast path can write the group: only frequent kinds, and no execution and no item twice."""
    executions: set[str] = set()
    items: set[str] = set()
    for unit in units:
        if isinstance(unit, Commit):
            ids = len(unit.execution_id) + len(unit.commit_id) + len(unit.workspace_id)
            if unit.kind is CommitKind.GENERAL or unit.execution_id in executions or ids > _SHORT_IDS:
                return False
            executions.add(unit.execution_id)
            if unit.mark is not None:
                if unit.mark.item_id in items:
                    return False
                items.add(unit.mark.item_id)
        elif not isinstance(unit, ClaimItems | ClaimDue | RecoverItems | Enqueue):
            return False
    return True


class GroupStatement(NamedTuple):
    """One statement for some units of a group, and how to read their outcomes from its rows."""

    call: StatementCall
    places: Sequence[int]
    read: Callable[[Sequence[Row]], Sequence[Outcome | None]]
    """Returns an outcome for each unit, in the order of ``places``; None for a commit that did not land."""


def statements_for(units: Sequence[Unit], ahead_ms: int, channel: str) -> list[GroupStatement]:
    """Return the statements that write a group, in the order in which its units take effect."""
    found: list[GroupStatement] = []
    for kind, run in groupby(range(len(units)), key=lambda place: type(units[place])):
        places = list(run)
        if kind is Commit:
            found += _commit_statements(units, places, ahead_ms, channel)
        elif kind is Enqueue:
            found.append(_enqueue_statement([units[place] for place in places], places, ahead_ms, channel))
        else:
            found += [_other_statement(units[place], place, ahead_ms, channel) for place in places]
    return found


def _enqueue_statement(enqueues: Sequence[Any], places: Sequence[int], ahead_ms: int, channel: str) -> GroupStatement:
    return GroupStatement(enqueue_call(enqueues, ahead_ms, channel), places, partial(enqueued, enqueues))


def _other_statement(unit: Any, place: int, ahead_ms: int, channel: str) -> GroupStatement:
    match unit:
        case ClaimDue():
            return _single_statement(_due_call(unit, ahead_ms), place, partial(_leased, unit))
        case ClaimItems():
            return _single_statement(claim_call(unit, ahead_ms), place, claimed)
        case _:
            return _single_statement(recover_call(unit, ahead_ms, channel), place, recovered)


def _single_statement(call: StatementCall, place: int, read: Callable[[Sequence[Row]], Outcome]) -> GroupStatement:
    def read_all(rows: Sequence[Row]) -> list[Outcome]:
        return [read(rows)]

    return GroupStatement(call, [place], read_all)


def _due_call(claim: ClaimDue, ahead_ms: int) -> StatementCall:
    newest, length = integers(claim.newest().values()), round(claim.seconds * 1000)
    return "claim_due", [texts(claim.workflows), ahead_ms, claim.limit, newest, claim.holder, length]


def _leased(claim: ClaimDue, rows: Sequence[Row]) -> Written:
    return Written([Lease(execution_id, claim.holder, fence, until_ms) for execution_id, fence, until_ms in rows])


# Commits.


def _commit_statements(units: Sequence[Any], places: Sequence[int], ahead_ms: int, channel: str) -> Iterator[GroupStatement]:
    """Return the statements of commits: later ones before first ones.

    Every transaction locks existing executions first, then items, and inserts last, so that two never wait for each other.
    """
    later = [place for place in places if units[place].creation is None]
    first = [place for place in places if units[place].creation is not None]
    if len(units) == len(later) == 1 and _is_single(units[0]):
        yield GroupStatement(_one_call(units[0]), places, _read_one)
    elif later:
        later.sort(key=lambda place: units[place].execution_id)
        yield _later_statement([units[place] for place in later], later, ahead_ms, channel)
    if first:
        first.sort(key=lambda place: _lock_order(units[place]))
        yield _first_statement([units[place] for place in first], first, ahead_ms, channel)


def _is_single(commit: Commit) -> bool:
    return commit.mark is None and (commit.rest is None or commit.rest.is_final)


def _one_call(commit: Commit) -> StatementCall:
    """Return the statement of a single commit, without arrays: most commits come alone, and it takes 100 of 320 µs less."""
    head = commit.execution_id, commit.revision, commit.digest, commit.signature, commit.committed_ms
    return "commit_one", (
        *head,
        commit.status,
        commit.previous,
        commit.fence,
        commit.commit_id,
        commit.header,
        commit.body,
        commit.rest is not None,
    )


def _read_one(rows: Sequence[Row]) -> list[Outcome | None]:
    return [_WRITTEN if rows else None]


def _lock_order(commit: Commit) -> tuple[str, str]:
    """Return the key that first commits are sorted by: items are locked by their ids, and executions inserted by theirs."""
    return "" if commit.mark is None else commit.mark.item_id, commit.execution_id


def _later_statement(commits: Sequence[Commit], places: Sequence[int], ahead_ms: int, channel: str) -> GroupStatement:
    def read(rows: Sequence[Row]) -> list[Outcome | None]:
        landed = {row[0] for row in rows}
        return [_WRITTEN if position in landed else None for position in range(1, len(commits) + 1)]

    return GroupStatement(("commit_group", [*_later_columns(commits), ahead_ms, channel]), places, read)


def _first_statement(commits: Sequence[Commit], places: Sequence[int], ahead_ms: int, channel: str) -> GroupStatement:
    def read(rows: Sequence[Row]) -> list[Outcome | None]:
        created = {row[0] for row in rows}
        return [_WRITTEN if commit.execution_id in created else None for commit in commits]

    return GroupStatement(("create_group", [*_first_columns(commits), ahead_ms, channel]), places, read)


def _later_columns(commits: Sequence[Commit]) -> list[bytes]:
    return [
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
        *_item_columns(commits),
    ]


def _first_columns(commits: Sequence[Commit]) -> list[bytes]:
    creations = [commit.creation for commit in commits if commit.creation is not None]
    return [
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
        *_item_columns(commits),
        integers([None if commit.mark is None else commit.mark.fence for commit in commits]),
        integers([creation.granted_fence for creation in creations]),
    ]


def _commit_columns(commits: Sequence[Commit]) -> list[bytes]:
    return [
        texts([commit.commit_id for commit in commits]),
        blobs([commit.header for commit in commits]),
        blobs([commit.body for commit in commits]),
    ]


def _item_columns(commits: Sequence[Commit]) -> list[bytes]:
    marks = [commit.mark for commit in commits]
    return [
        texts([None if mark is None else mark.item_id for mark in marks]),
        texts([None if mark is None else mark.status for mark in marks]),
        texts([None if mark is None else storable(mark.error) for mark in marks]),
    ]


def refusal_reasons(link: PostgresConnection, commits: Sequence[Commit]) -> list[Outcome]:
    """Return why commits did not land: seen before, the claim of their item lost, or what their execution's head says now."""
    ids = texts(commit.execution_id for commit in commits)
    revisions = integers(revision_in(commit.commit_id) for commit in commits)
    heads, seen = link.run_all(
        [("heads", [ids]), ("seen_commits", [ids, texts(commit.commit_id for commit in commits), revisions])]
    )
    landed = {position - 1: Seen(header, body) for position, _, header, body in seen}
    taken = {row[0] for row in heads}
    alive = {row[0]: Head(*row[:-2]) for row in heads if row[-2] is None}

    def reason(position: int, commit: Commit) -> Outcome:
        if position in landed:
            return landed[position]
        if commit.creation is not None and commit.mark is not None and commit.execution_id not in taken:
            return claim_lost(commit.mark.item_id, commit.mark.fence)
        return refusal_of(commit, alive.get(commit.execution_id))

    return [reason(position, commit) for position, commit in enumerate(commits)]
