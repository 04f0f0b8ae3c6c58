"""Write the two commonest kinds of commit by small scripts: plain steps, and whole runs of queue items.

The scripts only say which commits landed. The writer tries the others again by the general path, which finds the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeGuard

from stepwell.model.commit import Commit, Unit
from stepwell.model.ids import revision_in
from stepwell.model.queue_lifecycle import storable
from stepwell.stores.redis.connection import Command, Reply
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.rows import pack, pack_commit, text
from stepwell.stores.redis.script_calls import ScriptCall
from stepwell.stores.redis.scripts import SCRIPTS

__all__ = [
    "PlainCommits",
    "WholeRuns",
    "WholeRunsCall",
    "is_ordinary",
]


def is_ordinary(units: Sequence[Unit]) -> TypeGuard[Sequence[Commit]]:
    """Whether the group is nothing but plain commits to different executions, each with an id that was made for its revision."""
    for unit in units:
        if not isinstance(unit, Commit) or not unit.is_plain or revision_in(unit.commit_id) != unit.revision:
            return False
    return len(units) == 1 or len({unit.execution_id for unit in units if isinstance(unit, Commit)}) == len(units)


class PlainCommits:
    """Build the calls of ``append.lua``."""

    def __init__(self, keys: Keys, store_id: bytes, ttl_ms: int) -> None:
        self._keys, self._id, self._ttl_ms = keys, store_id, ttl_ms
        self._sha = SCRIPTS["append"].sha

    def command(self, commit: Commit) -> Command:
        """Return the call of one commit."""
        keys, revision = self._keys.execution(commit.execution_id), commit.revision
        row = pack_commit(commit.commit_id, commit.header, commit.body)
        return (
            *("EVALSHA", self._sha, 5, *keys, self._keys.store, self._id, revision - 1, commit.previous),
            *(revision, commit.digest, row, commit.committed_ms, commit.signature or b""),
            *("" if commit.fence is None else commit.fence, self._ttl_ms),
        )


# Nothing else runs on the server while a script does; so many runs take it a few milliseconds.
_MOST = 200


def _is_run(unit: Unit) -> TypeGuard[Commit]:
    """Whether a unit makes an execution, ends it, and ends the item that it came from, and does nothing else."""
    return (
        type(unit) is Commit
        and unit.creation is not None
        and unit.rest is not None
        and unit.rest.is_final
        and unit.mark is not None
        and unit.mark.fence is not None
        and not (unit.is_named or unit.snapshot or unit.ops or unit.guards or unit.nudges or unit.items)
        and revision_in(unit.commit_id) == unit.revision
    )


class WholeRunsCall(ScriptCall):
    """The call of a script for several units."""

    __slots__ = ("_count",)

    def __init__(self, keys: Sequence[bytes], arguments: Sequence[bytes | str | int], count: int) -> None:
        super().__init__("runs", keys, arguments)
        self._count = count

    def shares(self, reply: Reply) -> list[Reply]:
        """What the reply means for each unit: that it landed, or that it has to be tried again, by itself."""
        if not isinstance(reply, bytes):
            return [reply] * self._count
        return [b"ok" if digit == b"1"[0] else b"stale" for digit in reply]


class WholeRuns:
    """Build the calls of ``runs.lua``."""

    def __init__(self, keys: Keys, store_id: bytes, ttl_ms: int, ahead_ms: Callable[[], int]) -> None:
        self._keys, self._id, self._ttl_ms, self._ahead_ms = keys, store_id, ttl_ms, ahead_ms

    def found_in(self, units: Sequence[Unit]) -> Iterator[tuple[Sequence[Unit], WholeRunsCall | None]]:
        """The group in order, in pieces: runs that stand together with their call, and all else without one."""
        for is_run, piece in groupby(units, _is_run):
            those = list(piece)
            if not is_run or len(those) == 1:
                yield those, None
                continue
            for start in range(0, len(those), _MOST):
                part = those[start : start + _MOST]
                yield part, self._call([unit for unit in part if _is_run(unit)])

    def _call(self, commits: Sequence[Commit]) -> WholeRunsCall:
        keys = self._keys
        arguments = (self._id, self._ahead_ms(), self._ttl_ms, keys.queue_channel, pack([self._run(each) for each in commits]))
        return WholeRunsCall((keys.store, keys.executions, keys.queue), arguments, len(commits))

    def _run(self, commit: Commit) -> tuple[object, ...]:
        creation, mark = commit.creation, commit.mark
        assert creation is not None and mark is not None, "a run has both"  # noqa: S101, PT018
        return (
            *(self._keys.execution(commit.execution_id).head.removesuffix(b"head").decode(), commit.execution_id),
            *(commit.workspace_id, creation.workflow_id, creation.version, creation.parent_id or "", commit.status or "PENDING"),
            *(commit.revision, commit.digest, text(commit.signature or b""), commit.committed_ms),
            *(text(pack_commit(commit.commit_id, commit.header, commit.body)), 0 if creation.holder is None else 1),
            *(mark.item_id, mark.status, mark.fence, storable(mark.error)),
        )
