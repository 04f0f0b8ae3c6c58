"""The names of this store's keys: built in one place, each part encoded, so that no two things can ever share one.

Ids and names are percent-encoded; what separates them never occurs inside. The part in braces decides the node on a cluster: all
keys of an execution have one, all of a scope, all of a lock, and so have the central keys, which list everything else (no KEYS or
SCAN is ever needed).

    prefix:{x:execution}:head|commits|ids|snapshots
    prefix:{s:scope}:rows|keys|revisions|ends|tombs
    prefix:{l:lock}:lock|fence
    prefix:{i}:store|executions|scopes|ends|tombs|held|locks|fence|stop|due:workflow
    prefix:{i}:queue:...    see ``parts/items.lua``
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

from redis.crc import key_slot

__all__ = ["AGE_BYTES", "ExecutionKeys", "Keys", "LockKeys", "ScopeKeys", "age_place", "in_place", "slot_of", "workspace_place"]

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
    """A scope; see ``parts/rows.lua``."""

    rows: bytes
    keys: bytes
    revisions: bytes
    ends: bytes
    tombs: bytes


class LockKeys(NamedTuple):
    """A lock, and the last fence that it had (on a cluster, where there is no common one)."""

    lock: bytes
    fence: bytes


class Keys:
    """Builds the names of one store's keys."""

    def __init__(self, prefix: str) -> None:
        self.prefix = quote(prefix, safe="")
        # The same few are asked for again and again, and encoding a name takes longer than finding it.
        self.execution = lru_cache(_MOST_KNOWN)(self._execution)
        """The keys of an execution."""
        self.lock = lru_cache(_MOST_KNOWN)(self._lock)
        """The keys of a lock."""
        self.store = self._central("store")
        """Says that this is a Stepwell store, of which schema, and which one."""
        self.executions = self._central("executions")
        """Sorted set: the place of every execution by age, workspace and status."""
        self.scopes = self._central("scopes")
        """Sorted set: the paths of all scopes, and again by workspace."""
        self.ends = self._central("ends")
        """Sorted set: scopes by the first end of any of their keys."""
        self.tombs = self._central("tombs")
        """Sorted set: scopes by their oldest tombstone."""
        self.held = self._central("held")
        """Hash: how many bytes of scoped state each workspace has."""
        self.locks = self._central("locks")
        """Sorted set: locks by their ends."""
        self.fence = self._central("fence")
        """The last fence of any lock."""
        self.stop = self._central("stop")
        """The group of units that was stopped last; see ``parts/order.lua``."""
        self.probe = self._central("probe")
        """What the commands are tried on when a store is opened."""
        self.due = self._central("due")
        """The beginning of a sorted set for each workflow: its executions by when a worker should look at them."""
        self.queue = self._central("queue")
        """The beginning of all keys of the queue; see ``parts/items.lua``."""
        self.lock_channel = self._central("lock")
        self.state_channel = self._central("state")
        self.due_channel = self._central("woken")
        self.queue_channel = self._central("queued")

    def _central(self, name: str) -> bytes:
        return f"{self.prefix}:{{i}}:{name}".encode()

    def _execution(self, execution_id: str) -> ExecutionKeys:
        tag = f"{self.prefix}:{{x:{quote(execution_id, safe='')}}}:".encode()
        return ExecutionKeys(tag + b"head", tag + b"commits", tag + b"ids", tag + b"snapshots")

    def scope(self, path: str) -> ScopeKeys:
        """The keys of a scope."""
        tag = f"{self.prefix}:{{s:{quote(path, safe='')}}}:".encode()
        return ScopeKeys(tag + b"rows", tag + b"keys", tag + b"revisions", tag + b"ends", tag + b"tombs")

    def _lock(self, name: str) -> LockKeys:
        tag = f"{self.prefix}:{{l:{quote(name, safe='')}}}:".encode()
        return LockKeys(tag + b"lock", tag + b"fence")


def slot_of(key: bytes) -> int:
    """The slot of a cluster that a key belongs to."""
    return key_slot(key)


def age_place(created_ms: int, execution_id: str) -> bytes:
    """The end of an execution's place in the index, as ``parts/places.lua`` builds it: its age in a fixed width, and its id."""
    return b"%016d" % (created_ms + 10**15) + execution_id.encode()


def workspace_place(workspace_id: str) -> bytes:
    """The beginning of a place by workspace, as ``parts/places.lua`` and ``parts/rows.lua`` build it."""
    encoded = workspace_id.encode()
    return b"w/%d:" % len(encoded) + encoded


_PLACE = re.compile(rb"(?:a/|s/[^/]*/|w/(\d+):)(.*)", re.DOTALL)


def in_place(place: bytes) -> tuple[int, str] | None:
    """When the execution of a place was created, and its id; None for what is no place of this schema."""
    match = _PLACE.fullmatch(place)
    if match is None:
        return None
    rest = match[2][int(match[1] or 0) :]
    return int(rest[:AGE_BYTES]) - 10**15, rest[AGE_BYTES:].decode()
