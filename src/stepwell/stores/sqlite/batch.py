"""Commits that can be written many at a time: plain ones, first ones and last ones, each kind by one statement.

Every statement gives up Python's lock and has to wait for it again, behind whatever else the process does. So what comes in a
group is written by as few as possible: one for each kind. If any commit of a statement cannot land, the statement writes nothing,
and each is written by itself, to tell which. Commits of different executions do not touch each other, so their order is of no
account.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stepwell.model.commit import Commit, Creation, Rest, Unit
from stepwell.model.lifecycle import storable

__all__ = ["FIRST", "LAST", "PLAIN", "arguments_of", "kind_of", "lease_of"]

PLAIN, FIRST, LAST = "commits", "first_commits", "last_commits"
"""The names of the statements."""


def kind_of(unit: Unit, numbers: Mapping[str, int]) -> str | None:
    """Which statement a unit can be written by; None if it has to be written by itself."""
    if (
        type(unit) is not Commit
        or unit.is_named
        or unit.snapshot is not None
        or unit.ops
        or unit.guards
        or unit.nudges
        or unit.items
    ):
        return None
    rest, mark = unit.rest, unit.mark
    if rest is not None and not rest.is_final:
        return None
    if unit.creation is not None:
        return FIRST if mark is None or mark.fence is not None else None
    if unit.execution_id not in numbers:
        return None
    if rest is None:
        return PLAIN if unit.status is mark is None else None
    return LAST if unit.status is not None and (mark is None or mark.fence is None) else None


def arguments_of(kind: str, commits: Sequence[Commit], numbers: Mapping[str, int], now_ms: int) -> tuple[str, bytes]:
    """The arguments of a statement: rows, and their bytes."""
    rows: list[tuple[object, ...]] = []
    blobs: list[bytes] = []
    start = 1
    for commit in commits:
        header, body, signature = commit.header, commit.body, commit.signature or b""
        place = start, len(header), len(body), len(signature)
        rows.append((*place, *(_first(commit, now_ms) if kind == FIRST else _next(kind, commit, numbers, now_ms))))
        blobs += (header, body, signature)
        start += len(header) + len(body) + len(signature)
    return msgspec.json.encode(rows).decode(), b"".join(blobs)


def _next(kind: str, commit: Commit, numbers: Mapping[str, int], now_ms: int) -> tuple[object, ...]:
    number = numbers[commit.execution_id]
    row = number, commit.revision, commit.previous, commit.fence, commit.digest, commit.committed_ms, commit.commit_id
    if kind == PLAIN:
        return row
    mark = commit.mark
    item = (None, None, None) if mark is None else (mark.item_id, mark.status, storable(mark.error))
    return (*row, commit.status, commit.execution_id, *item, now_ms)


def _first(commit: Commit, now_ms: int) -> tuple[object, ...]:
    creation, mark = commit.creation, commit.mark
    assert creation is not None  # noqa: S101 - it is a first commit
    holder, until, wake = lease_of(creation, commit.rest, now_ms)
    item = (None, None, None, None) if mark is None else (mark.item_id, mark.status, mark.fence, storable(mark.error))
    return (
        commit.execution_id,
        commit.workspace_id,
        creation.workflow_id,
        creation.version,
        creation.parent_id,
        commit.status or "PENDING",
        commit.revision,
        commit.digest,
        commit.committed_ms,
        holder,
        until,
        wake,
        int(creation.holder is not None),
        commit.commit_id,
        *item,
        now_ms,
    )


def lease_of(creation: Creation, rest: Rest | None, now_ms: int) -> tuple[str | None, int | None, int | None]:
    """Holder, end of lease and time to wake of a new execution; one that ends with its first commit has none of them."""
    if rest is not None and rest.is_final:
        return None, None, None
    until = None if creation.holder is None else now_ms + round(creation.lease_seconds * 1000)
    wake = None if not creation.is_runnable else now_ms if until is None else until
    return creation.holder, until, wake
