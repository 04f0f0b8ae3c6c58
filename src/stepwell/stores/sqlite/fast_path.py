"""The fast path: statements that write many commits at once: one for steps, one for first commits and one for last ones.

Every statement releases the GIL and has to get it back, behind the process's other threads; so a group is written by as few
statements as possible. If any commit of a statement cannot land, the statement writes nothing, and the general way writes each
commit by itself to find it. Commits of different executions do not touch each other, so their order does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeGuard

from stepwell.model.commit import Commit, CommitKind, Creation, Rest, Unit
from stepwell.model.queue_lifecycle import storable

__all__ = [
    "BATCH_STATEMENTS",
    "FIRST",
    "LAST",
    "MOST_AT_ONCE",
    "STEPS",
    "are_steps",
    "batch_row",
    "batch_statement",
    "lease_of",
    "statement_of",
    "step_row",
]

STEPS, FIRST, LAST = BATCH_STATEMENTS = "commits", "first_commits", "last_commits"
"""The names of the statements."""

_STATEMENT_OF_KIND = {CommitKind.STEP: STEPS, CommitKind.FIRST: FIRST, CommitKind.RUN: FIRST, CommitKind.LAST: LAST}

MOST_AT_ONCE = 256
"""The most commits in one statement. apsw does not cache a statement of more than 16 KiB, and preparing it again takes longer
than running it."""

_ROW = re.compile(r"^\(\?.*\)$", re.MULTILINE)


def are_steps(units: Sequence[Unit], numbers: Mapping[str, int]) -> TypeGuard[Sequence[Commit]]:
    """Return whether the units are steps of different executions, all of whose numbers are known."""
    for unit in units:
        if type(unit) is not Commit or unit.kind is not CommitKind.STEP or unit.execution_id not in numbers:
            return False
    count = len(units)
    return count == 1 or (0 < count <= MOST_AT_ONCE and len({unit.execution_id for unit in units if type(unit) is Commit}) == count)


def batch_statement(unit: Unit, numbers: Mapping[str, int]) -> str | None:
    """Return the name of the statement that can write this unit with others, or None."""
    if type(unit) is not Commit or (unit.creation is None and unit.execution_id not in numbers):
        return None
    return _STATEMENT_OF_KIND.get(unit.kind)


def statement_of(sql: str, rows: Sequence[tuple[object, ...]]) -> tuple[str, list[object]]:
    """Return the statement for all these rows from the statement for one row, and its arguments.

    Values are bound one by one: SQLite takes as long to extract them from a JSON list as to write them. The number of rows is
    rounded up to a power of two and filled with NULL, so that there are few statements to prepare.
    """
    if len(rows) == 1:
        return sql, [*rows[0]]
    size = 1 << (len(rows) - 1).bit_length()
    arguments = [value for row in rows for value in row]
    arguments += [None] * ((size - len(rows)) * len(rows[0]))
    return _widened(sql, size), arguments


@cache
def _widened(sql: str, size: int) -> str:
    return _ROW.sub(lambda row: ",".join([row[0]] * size), sql)


def batch_row(statement: str, commit: Commit, numbers: Mapping[str, int], now_ms: int) -> tuple[object, ...]:
    """Return the arguments of a batch statement for one commit."""
    if statement == FIRST:
        return _first_row(commit, now_ms)
    number = numbers[commit.execution_id]
    return step_row(number, commit) if statement == STEPS else _last_row(number, commit, now_ms)


def step_row(number: int | None, commit: Commit) -> tuple[object, ...]:
    """Return the arguments of the statement ``commits`` for one commit."""
    return (*_head_move(number, commit), commit.is_named, commit.header, commit.body)


def _head_move(number: int | None, commit: Commit) -> tuple[object, ...]:
    """Return the head before and after the commit, and the fence it needs."""
    return (
        number,
        commit.revision,
        commit.previous,
        commit.fence,
        commit.digest,
        commit.signature,
        commit.committed_ms,
        commit.commit_id,
    )


def _last_row(number: int, commit: Commit, now_ms: int) -> tuple[object, ...]:
    mark = commit.mark
    return (
        *_head_move(number, commit),
        commit.header,
        commit.body,
        commit.status,
        commit.execution_id,
        *((None, None, None) if mark is None else (mark.item_id, mark.status, storable(mark.error))),
        now_ms,
    )


def _first_row(commit: Commit, now_ms: int) -> tuple[object, ...]:
    creation, mark = commit.creation, commit.mark
    assert creation is not None  # noqa: S101 - it is a first commit
    return (
        commit.execution_id,
        commit.workspace_id,
        creation.workflow_id,
        creation.version,
        creation.parent_id,
        commit.status or "PENDING",
        commit.revision,
        commit.digest,
        commit.signature,
        commit.committed_ms,
        *lease_of(creation, commit.rest, now_ms),
        commit.commit_id,
        commit.header,
        commit.body,
        *((None, None, None, None) if mark is None else (mark.item_id, mark.status, mark.fence, storable(mark.error))),
        now_ms,
    )


def lease_of(creation: Creation, rest: Rest | None, now_ms: int) -> tuple[str | None, int | None, int | None, int]:
    """Return holder, end of the lease, wake time and fence of a new execution; only the fence if its first commit ends it."""
    if rest is not None and rest.is_final:
        return None, None, None, creation.granted_fence
    until = None if creation.holder is None else now_ms + round(creation.lease_seconds * 1000)
    wake = None if not creation.is_runnable else now_ms if until is None else until
    return creation.holder, until, wake, creation.granted_fence
