"""Commits that can be written many at a time: plain ones, first ones and last ones, each kind by one statement.

Every statement gives up Python's lock and has to wait for it again, behind whatever else the process does. So what comes in a
group is written by as few as possible: one for each kind. If any commit of a statement cannot land, the statement writes nothing,
and each is written by itself, to tell which. Commits of different executions do not touch each other, so their order is of no
account.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from stepwell.model.commit import Commit, CommitKind, Creation, Rest, Unit
from stepwell.model.queue_lifecycle import storable

__all__ = ["FIRST", "LAST", "MOST_AT_ONCE", "PLAIN", "commit_row", "kind_of", "kind_of_all", "lease_of", "row_of", "statement_of"]

PLAIN, FIRST, LAST = "commits", "first_commits", "last_commits"
"""The names of the statements."""

MOST_AT_ONCE = 256
"""How many commits one statement may have. apsw does not keep a statement of more than 16 KiB, and to prepare it anew takes longer
than to run it."""

_ROW = re.compile(r"^\(\?.*\)$", re.MULTILINE)


_STATEMENTS = {
    CommitKind.STEP: PLAIN,
    CommitKind.FIRST: FIRST,
    CommitKind.RUN: FIRST,
    CommitKind.LAST: LAST,
}


def kind_of(unit: Unit, numbers: Mapping[str, int]) -> str | None:
    """Which statement a unit can be written by; None if it has to be written by itself."""
    if type(unit) is not Commit:
        return None
    return _STATEMENTS.get(unit.kind) if unit.creation is not None or unit.execution_id in numbers else None


def kind_of_all(units: Sequence[Unit], numbers: Mapping[str, int]) -> str | None:
    """The statement that writes all of these units at once; None if there is none, or if two of them are of one execution."""
    kinds = {kind_of(unit, numbers) for unit in units}
    if len(kinds) != 1 or len(units) > MOST_AT_ONCE:
        return None
    executions = {unit.execution_id for unit in units if isinstance(unit, Commit)}
    return kinds.pop() if len(executions) == len(units) else None


def statement_of(sql: str, rows: Sequence[tuple[object, ...]]) -> tuple[str, list[object]]:
    """A statement on one row of values, as one on all of these rows; with its arguments.

    Values are bound as they are: to take them out of a JSON list took SQLite as long as to write them. There are as many statements
    as powers of two, or each would be prepared for a single group; so what is left over is filled with NULL.
    """
    size = 1 << (len(rows) - 1).bit_length()
    arguments = [value for row in rows for value in row]
    arguments += [None] * ((size - len(rows)) * len(rows[0]))
    return _widened(sql, size), arguments


@cache
def _widened(sql: str, size: int) -> str:
    return _ROW.sub(lambda row: ",".join([row[0]] * size), sql)


def row_of(kind: str, commit: Commit, numbers: Mapping[str, int], now_ms: int) -> tuple[object, ...]:
    """What a statement takes for one commit."""
    if kind == FIRST:
        return _first_row(commit, now_ms)
    number = numbers[commit.execution_id]
    return commit_row(number, commit) if kind == PLAIN else _last_row(number, commit, now_ms)


def commit_row(number: int | None, commit: Commit) -> tuple[object, ...]:
    """The arguments of the statement ``commit``, and of each row of ``commits``."""
    return (*_moving(number, commit), commit.is_named, commit.header, commit.body)


def _moving(number: int | None, commit: Commit) -> tuple[object, ...]:
    """What moves a head: from where, under which fence, and to where."""
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
        *_moving(number, commit),
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
        int(creation.holder is not None),
        commit.commit_id,
        commit.header,
        commit.body,
        *((None, None, None, None) if mark is None else (mark.item_id, mark.status, mark.fence, storable(mark.error))),
        now_ms,
    )


def lease_of(creation: Creation, rest: Rest | None, now_ms: int) -> tuple[str | None, int | None, int | None]:
    """Holder, end of lease and time to wake of a new execution; one that ends with its first commit has none of them."""
    if rest is not None and rest.is_final:
        return None, None, None
    until = None if creation.holder is None else now_ms + round(creation.lease_seconds * 1000)
    wake = None if not creation.is_runnable else now_ms if until is None else until
    return creation.holder, until, wake
