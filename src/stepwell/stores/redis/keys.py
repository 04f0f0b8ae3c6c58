"""Build the names of a store's keys.

Ids and names are percent-encoded, and the colon that separates the parts is encoded inside them, so two things never share a key.
Sorted sets list every execution, scope and lock: no KEYS or SCAN is needed.

    prefix:execution:ID:head|commits|ids|snapshots
    prefix:scope:PATH:rows|keys|revisions|ends|tombs
    prefix:lock:NAME
    prefix:store|executions|scopes|ends|tombs|counts|locks|fence|stop|due:WORKFLOW
    prefix:queue:...    see ``includes/items.lua``
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

__all__ = ["AGE_BYTES", "ExecutionKeys", "Keys", "ScopeKeys", "age_place", "in_place", "workspace_place"]

_MOST_KNOWN = 4_096

AGE_BYTES = 16
"""The length of the age in a place of the index of executions."""


class ExecutionKeys(NamedTuple):
    """An execution: its row, its commits in order, their ids, and its snapshots, by revision."""

    head: bytes
    commits: bytes
    ids: bytes
    snapshots: bytes


class ScopeKeys(NamedTuple):
    """A scope; see ``includes/scoped_state.lua``."""

    rows: bytes
    keys: bytes
    revisions: bytes
    ends: bytes
    tombs: bytes


class Keys:
    """Build the names of one store's keys."""

    def __init__(self, prefix: str) -> None:
        self.prefix = quote(prefix, safe="")
        # Encoding a name takes longer than finding it in a cache, and few executions are busy at a time.
        self.execution = lru_cache(_MOST_KNOWN)(self._execution)
        """The keys of an execution."""
        self.lock = lru_cache(_MOST_KNOWN)(self._lock)
        """The key of a lock."""
        self.store = self._central("store")
        """The store's mark: that it is Stepwell's, its schema, and its random id."""
        self.executions = self._central("executions")
        """Sorted set: the place of every execution by age, workspace and status."""
        self.scopes = self._central("scopes")
        """Sorted set: the paths of all scopes, and again by workspace."""
        self.ends = self._central("ends")
        """Sorted set: scopes by the first end of any of their keys."""
        self.tombs = self._central("tombs")
        """Sorted set: scopes by their oldest tombstone."""
        self.counts = self._central("counts")
        """Hash: how much scoped state workspaces have, and workflows in them; see ``includes/scoped_state.lua``."""
        self.locks = self._central("locks")
        """Sorted set: locks by their ends."""
        self.fence = self._central("fence")
        """The last fence of any lock."""
        self.stop = self._central("stop")
        """The group of units that was stopped last; see ``includes/group_order.lua``."""
        self.probe = self._central("probe")
        """A key on which opening a store tries the commands."""
        self.due = self._central("due")
        """The start of a sorted set for each workflow: its executions by when a worker should look at them."""
        self.queue = self._central("queue")
        """The start of all keys of the queue; see ``includes/items.lua``."""
        self.lock_channel = self._central("lock")
        self.state_channel = self._central("state")
        self.due_channel = self._central("woken")
        self.queue_channel = self._central("queued")

    def _central(self, name: str) -> bytes:
        return f"{self.prefix}:{name}".encode()

    def _execution(self, execution_id: str) -> ExecutionKeys:
        tag = f"{self.prefix}:execution:{quote(execution_id, safe='')}:".encode()
        return ExecutionKeys(tag + b"head", tag + b"commits", tag + b"ids", tag + b"snapshots")

    def scope(self, path: str) -> ScopeKeys:
        """Return the keys of a scope."""
        tag = f"{self.prefix}:scope:{quote(path, safe='')}:".encode()
        return ScopeKeys(tag + b"rows", tag + b"keys", tag + b"revisions", tag + b"ends", tag + b"tombs")

    def _lock(self, name: str) -> bytes:
        return f"{self.prefix}:lock:{quote(name, safe='')}".encode()


def age_place(created_ms: int, execution_id: str) -> bytes:
    """Return an execution's place by age, as ``includes/execution_index.lua`` builds it: the age in a fixed width, and the id."""
    return b"%016d" % (created_ms + 10**15) + execution_id.encode()


def workspace_place(workspace_id: str) -> bytes:
    """Return the start of a place by workspace, as ``includes/execution_index.lua`` and ``includes/scoped_state.lua`` build it."""
    encoded = workspace_id.encode()
    return b"w/%d:" % len(encoded) + encoded


_PLACE = re.compile(rb"(?:a/|s/[^/]*/|w/(\d+):)(.*)", re.DOTALL)


def in_place(place: bytes) -> tuple[int, str] | None:
    """Return when the execution of a place was created, and its id; None if it is no place of this schema."""
    match = _PLACE.fullmatch(place)
    if match is None:
        return None
    rest = match[2][int(match[1] or 0) :]
    return int(rest[:AGE_BYTES]) - 10**15, rest[AGE_BYTES:].decode()
