"""Commits as the columns of the statements that write many of them at once.

The short path: a group of ordinary commits, claims and enqueues is a few statements in one round trip.

All first commits between two units of another kind are one statement, all later ones another; commits to different executions do
not touch each other, so their order is of no account. One statement is a transaction by itself. Each says which commits landed;
why the others did not is asked afterwards, since that is rare and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from stepwell.model.commit import ClaimDue, Commit, Head, Lease, Outcome, Seen, Unit, Written
from stepwell.model.execution_row import refusal_of
from stepwell.model.ids import revision_in
from stepwell.model.queue_item import ClaimItems, Enqueue, RecoverItems
from stepwell.model.queue_lifecycle import storable
from stepwell.model.refusals import claim_lost
from stepwell.stores.postgres.connection import PostgresConnection, Question
from stepwell.stores.postgres.queue_statements import (
    claim_question,
    claimed,
    enqueue_question,
    enqueued,
    recover_question,
    recovered,
)
from stepwell.stores.postgres.statements import Row, blobs, booleans, integers, texts

__all__ = [
    "GroupStatement",
    "alone_question",
    "creation_columns",
    "is_named",
    "is_one_more",
    "is_ordinary",
    "is_plain_step",
    "later_columns",
    "plain_question",
    "steps_of",
    "why_refused",
]


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


_WRITTEN = Written()

# Ids of so many characters fit into an index whatever the characters are; longer ones are measured on the general path.
_SHORT = 256


def is_ordinary(units: Sequence[Unit]) -> bool:
    """Whether the group can be written this way: no execution and no item twice, and nothing that has to be decided here."""
    executions: set[str] = set()
    items: set[str] = set()
    commits = marks = 0
    for unit in units:
        if isinstance(unit, Commit):
            if not _is_simple(unit):
                return False
            executions.add(unit.execution_id)
            commits += 1
            if unit.mark is not None:
                items.add(unit.mark.item_id)
                marks += 1
        elif not isinstance(unit, ClaimItems | ClaimDue | RecoverItems | Enqueue):
            return False
    return len(executions) == commits and len(items) == marks


def _is_simple(commit: Commit) -> bool:
    if (
        commit.ops
        or commit.guards
        or commit.nudges
        or commit.items
        or commit.snapshot is not None
        or len(commit.execution_id) + len(commit.commit_id) + len(commit.workspace_id) > _SHORT
        # It may have landed at the revision that its id says.
        or (commit.is_named and revision_in(commit.commit_id) not in (None, commit.revision))
    ):
        return False
    # Whoever creates an execution from an item has claimed it; whoever ends one takes the item as it is. Whether an item may wait
    # again is decided.
    mark = commit.mark
    return mark is None or ((mark.fence is not None) is (commit.creation is not None) and mark.status != "PENDING")


def is_plain_step(units: Sequence[Unit]) -> bool:
    """Whether it is one commit that only adds a receipt: what a step is, and most of what is written."""
    if len(units) != 1 or type(units[0]) is not Commit:
        return False
    commit = units[0]
    return commit.is_plain and len(commit.execution_id) + len(commit.commit_id) <= _SHORT


def plain_question(commit: Commit) -> Question:
    """The statement for one such commit; it writes a row if that landed."""
    head = commit.execution_id, commit.revision, commit.digest, commit.signature, commit.committed_ms
    return "commit_plain", (*head, commit.previous, commit.fence, commit.commit_id, commit.header, commit.body)


def is_one_more(units: Sequence[Unit]) -> bool:
    """Whether it is one commit to an execution that goes on or ends, and moves no item."""
    if len(units) != 1 or not isinstance(units[0], Commit):
        return False
    commit = units[0]
    return commit.creation is commit.mark is None and (commit.rest is None or commit.rest.is_final)


def alone_question(commit: Commit) -> Question:
    """The statement for one such commit; it writes a row if that landed."""
    head = commit.execution_id, commit.revision, commit.digest, commit.signature, commit.committed_ms
    guard = commit.previous, commit.fence, commit.commit_id
    row = is_named(commit), commit.header, commit.body
    return "commit_one", (*head, commit.status, *guard, *row, commit.rest is not None)


class GroupStatement(NamedTuple):
    """One statement for some units of a group, and how to read what it says about them."""

    question: Question
    places: Sequence[int]
    read: Callable[[Sequence[Row]], Sequence[Outcome | None]]
    """An outcome for each unit that landed, in the order of the places; None for the others."""


def steps_of(units: Sequence[Unit], ahead_ms: int, channel: str) -> list[GroupStatement]:
    """The statements that write a group, in the order in which its units take effect."""
    steps: list[GroupStatement] = []
    for kind, run in groupby(range(len(units)), key=lambda place: type(units[place])):
        places = list(run)
        if kind is Commit:
            steps += _commit_steps(units, places, ahead_ms, channel)
        else:
            steps += [_other_step(units[place], place, ahead_ms, channel) for place in places]
    return steps


def _other_step(unit: Any, place: int, ahead_ms: int, channel: str) -> GroupStatement:
    match unit:
        case ClaimDue():
            return _lone_step(_due_question(unit, ahead_ms), place, partial(_leased, unit))
        case ClaimItems():
            return _lone_step(claim_question(unit, ahead_ms), place, claimed)
        case RecoverItems():
            return _lone_step(recover_question(unit, ahead_ms, channel), place, recovered)
        case _:
            return GroupStatement(enqueue_question([unit], ahead_ms, channel), [place], partial(enqueued, [unit]))


def _lone_step(question: Question, place: int, read: Callable[[Sequence[Row]], Outcome]) -> GroupStatement:
    def read_all(rows: Sequence[Row]) -> list[Outcome]:
        return [read(rows)]

    return GroupStatement(question, [place], read_all)


def _due_question(claim: ClaimDue, ahead_ms: int) -> Question:
    newest, length = integers(claim.newest().values()), round(claim.seconds * 1000)
    return "claim_due", [texts(claim.workflows), ahead_ms, claim.limit, newest, claim.holder, length]


def _leased(claim: ClaimDue, rows: Sequence[Row]) -> Written:
    return Written([Lease(execution_id, claim.holder, fence, until_ms) for execution_id, fence, until_ms in rows])


def _commit_steps(units: Sequence[Any], places: Sequence[int], ahead_ms: int, channel: str) -> Iterator[GroupStatement]:
    """Later commits before first ones: the executions that are there are locked before items and new ones, as elsewhere."""
    later = [place for place in places if units[place].creation is None]
    first = [place for place in places if units[place].creation is not None]
    if later:
        # Sorted, so that two processes lock the same executions in the same order.
        later.sort(key=lambda place: units[place].execution_id)
        yield _later_step([units[place] for place in later], later, ahead_ms, channel)
    if first:
        first.sort(key=lambda place: _order_of(units[place]))
        yield _first_step([units[place] for place in first], first, ahead_ms, channel)


def _order_of(commit: Commit) -> tuple[str, str]:
    """Items are locked in the order of their ids, and executions made in the order of theirs."""
    return "" if commit.mark is None else commit.mark.item_id, commit.execution_id


def _later_step(commits: Sequence[Commit], places: Sequence[int], ahead_ms: int, channel: str) -> GroupStatement:
    def read(rows: Sequence[Row]) -> list[Outcome | None]:
        landed = {row[0] for row in rows}
        return [_WRITTEN if position in landed else None for position in range(1, len(commits) + 1)]

    name = "commit_group" if all(commit.mark is None for commit in commits) else "commit_marked"
    return GroupStatement((name, [*later_columns(commits, is_marked=name == "commit_marked"), ahead_ms, channel]), places, read)


def _first_step(commits: Sequence[Commit], places: Sequence[int], ahead_ms: int, channel: str) -> GroupStatement:
    def read(rows: Sequence[Row]) -> list[Outcome | None]:
        created = {row[0] for row in rows}
        return [_WRITTEN if commit.execution_id in created else None for commit in commits]

    name = "create_group" if all(commit.mark is None for commit in commits) else "create_marked"
    return GroupStatement((name, [*creation_columns(commits, is_marked=name == "create_marked"), ahead_ms, channel]), places, read)


def why_refused(link: PostgresConnection, commits: Sequence[Commit]) -> list[Outcome]:
    """Why commits did not land: seen before, or what their execution's head says now, or the claim of their item was lost."""
    ids = texts(commit.execution_id for commit in commits)
    revisions = integers(revision_in(commit.commit_id) for commit in commits)
    heads, seen = link.ask_all(
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
