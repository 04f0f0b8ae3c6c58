"""Late results: outputs and errors that come after their call was given up. They are discarded, and noted beside the run.

A thread cannot be stopped, so the step of a cancelled call, of a join's loser or of an attempt that took too long may end after its
record was written, and even after its run has ended. The note is a scoped write of its own, and so disturbs no commit of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from stepwell.clock import from_ms
from stepwell.model.commit import StateBatch
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import internal_path
from stepwell.model.scoped_operations import Put, StoredEntry
from stepwell.model.value import decode, recode

__all__ = ["LateResult", "late_results", "note", "path_of"]


class LateResult(PlainRecord, frozen=True):
    """The result of a call that had been given up: it was discarded."""

    attempt: int
    """The attempt that gave it, from 1."""
    at: datetime


def path_of(execution_id: str, workspace_id: str) -> str:
    """Return the scope of an execution's late results."""
    return internal_path("late_result", workspace_id, execution_id)


def note(execution_id: str, workspace_id: str, step: str, attempt: int, at_ms: int, fresh: str) -> StateBatch:
    """Return the write that notes a late result of a step. ``fresh`` keeps notes in order and apart."""
    return StateBatch((Put(path_of(execution_id, workspace_id), fresh, msgspec.Raw(recode([step, attempt, at_ms]))),))


def late_results(rows: Sequence[tuple[str, StoredEntry]]) -> dict[str, tuple[LateResult, ...]]:
    """Return the late results by the keys of their steps, in the order in which they came."""
    found: dict[str, tuple[LateResult, ...]] = {}
    for _, row in rows:
        if row.data is not None:
            step, attempt, at_ms = decode(row.data)
            found[step] = (*found.get(step, ()), LateResult(attempt, from_ms(at_ms)))
    return found
