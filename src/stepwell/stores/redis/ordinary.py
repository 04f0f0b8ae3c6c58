"""The short path: a group of nothing but ordinary commits to different executions, each by the smallest script there is.

It says which commits landed. Why the others did not is asked by the general path, which is tried with them afterwards: that is
rare, and since the group's executions are all different, their order does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from stepwell.model.commit import Commit, Unit
from stepwell.model.ids import revision_in
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.link import Command
from stepwell.stores.redis.rows import pack_commit
from stepwell.stores.redis.scripts import SCRIPTS

__all__ = ["PlainCommits", "is_ordinary"]


def is_ordinary(units: Sequence[Unit]) -> TypeGuard[Sequence[Commit]]:
    """Whether the group is nothing but plain commits to different executions, each with an id that was made for its revision."""
    for unit in units:
        if not isinstance(unit, Commit) or not unit.is_plain or revision_in(unit.commit_id) != unit.revision:
            return False
    return len(units) == 1 or len({unit.execution_id for unit in units if isinstance(unit, Commit)}) == len(units)


class PlainCommits:
    """Builds the calls of ``append.lua`` for one store on a single server."""

    def __init__(self, keys: Keys, store_id: bytes, ttl_ms: int) -> None:
        self._keys, self._id, self._ttl_ms = keys, store_id, ttl_ms
        self._sha = SCRIPTS["append"].sha

    def command(self, commit: Commit) -> tuple[bytes, Command]:
        """The call of one commit, with the key that says where to."""
        keys, revision = self._keys.execution(commit.execution_id), commit.revision
        row = pack_commit(commit.commit_id, commit.header, commit.body)
        return keys.head, (
            *("EVALSHA", self._sha, 5, *keys, self._keys.store, self._id, revision - 1, commit.previous),
            *(revision, commit.digest, row, commit.committed_ms, commit.signature or b""),
            *("" if commit.fence is None else commit.fence, self._ttl_ms),
        )
