"""How executions, commits, snapshots and state entries are written down in Redis, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepwell.errors import Corrupted
from stepwell.model.checksum import seal, unseal
from stepwell.model.commit import Head, StoredCommit
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry
from stepwell.model.snapshot import StoredSnapshot

__all__ = [
    "commit_beginning",
    "pack_commit",
    "pack_entry",
    "pack_snapshot",
    "pack_totals",
    "read_commit",
    "read_commits",
    "read_entry",
    "read_found_commit",
    "read_head",
    "read_pairs",
    "read_snapshot",
    "read_totals",
]

_encode = msgspec.msgpack.Encoder().encode
_decode_commit = msgspec.msgpack.Decoder(tuple[str, bytes, bytes]).decode
_decode_snapshot = msgspec.msgpack.Decoder(tuple[bytes, bytes, str]).decode
_DAMAGED = (ValueError, KeyError, IndexError, msgspec.MsgspecError)


def pack_commit(commit_id: str, header: bytes, body: bytes) -> bytes:
    """A commit as one value, which begins with its id."""
    return _encode((commit_id, header, body))


def commit_beginning(commit_id: str) -> bytes:
    """How the value of a commit with this id begins: the mark of a list of three, and the id."""
    return b"\x93" + _encode(commit_id)


def read_commit(execution_id: str, revision: int, data: object) -> StoredCommit:
    """The commit of a value."""
    try:
        _, header, body = _decode_commit(_bytes(data))
    except _DAMAGED:
        raise Corrupted(f"execution {execution_id!r} is quarantined: its commit {revision} cannot be read") from None
    return StoredCommit(revision, header, body)


def read_found_commit(execution_id: str, revision: int, data: object) -> StoredCommit:
    """The commit that was looked for by its id; of one that was archived, only the id is left."""
    return read_commit(execution_id, revision, data) if data else StoredCommit(revision, b"", b"")


def read_commits(execution_id: str, first: int, values: Sequence[object]) -> list[StoredCommit]:
    """The commits of a page that begins with a revision."""
    return [read_commit(execution_id, revision, data) for revision, data in enumerate(values, first)]


def pack_snapshot(snapshot: StoredSnapshot) -> bytes:
    """A snapshot as one value; its revision is kept beside it."""
    return _encode((snapshot.data, snapshot.accumulator, snapshot.digest))


def read_snapshot(execution_id: str, found: Sequence[Any]) -> StoredSnapshot | None:
    """The snapshot of a value and its revision; None if there is none."""
    if not found:
        return None
    try:
        return StoredSnapshot(int(found[1]), *_decode_snapshot(_bytes(found[0])))
    except _DAMAGED:
        raise Corrupted(f"execution {execution_id!r} is quarantined: its snapshot cannot be read") from None


def read_head(execution_id: str, flat: Sequence[bytes]) -> Head | None:
    """The head of a hash's fields and values; None if there is none, or a tombstone."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if not fields or b"deleted" in fields:
        return None
    try:
        return _head(execution_id, fields)
    except _DAMAGED as error:
        raise Corrupted(f"execution {execution_id!r} is quarantined: its head cannot be read ({error})") from None


def _head(execution_id: str, fields: Mapping[bytes, bytes]) -> Head:
    holder, until, wake = fields.get(b"holder"), fields.get(b"until"), fields.get(b"wake")
    return Head(
        execution_id=execution_id,
        workspace_id=fields[b"workspace"].decode(),
        workflow_id=fields[b"workflow"].decode(),
        version=int(fields[b"version"]),
        status=fields[b"status"].decode(),
        revision=int(fields[b"revision"]),
        digest=fields[b"digest"].decode(),
        fence=int(fields[b"fence"]),
        holder=None if holder is None else holder.decode(),
        lease_until_ms=None if until is None else int(until),
        base_revision=int(fields[b"base"]),
        signature=fields[b"signature"] or None,
        parent_id=fields[b"parent"].decode() or None,
        created_ms=int(fields[b"created"]),
        updated_ms=int(fields[b"updated"]),
        wake_ms=None if wake is None else int(wake),
        claims=int(fields.get(b"claims", b"0")),
    )


def pack_entry(scope: str, key: str, entry: StoredEntry) -> bytes:
    """A row of a scope: revision, end, TTL, ``s``liding or ``f``ixed, and the sealed data, if it is no tombstone."""
    ends = b"-" if entry.expires_ms is None else b"%d" % entry.expires_ms
    ttl = b"-" if entry.ttl_ms is None else b"%d" % entry.ttl_ms
    label = b"%d %b %b %b" % (entry.revision, ends, ttl, b"s" if entry.sliding else b"f")
    data = seal(scope, key, entry)
    return label if data is None else label + b" " + data


def read_entry(scope: str, key: str, data: object) -> StoredEntry | None:
    """The row of a value, sound or not; None if there is none."""
    if data is None:
        return None
    try:
        revision, ends, ttl, kind, *rest = _bytes(data).split(b" ", 4)
        row = StoredEntry(
            rest[0] if rest else None,
            int(revision),
            None if ends == b"-" else int(ends),
            None if ttl == b"-" else int(ttl),
            kind == b"s",
        )
    except _DAMAGED:
        return StoredEntry(b"", 0, is_sound=False)
    return unseal(scope, key, row)


def read_pairs(scope: str, flat: Sequence[bytes]) -> list[tuple[str, StoredEntry]]:
    """The entries of a list of key, row, key, row."""
    names = [key.decode() for key in flat[::2]]
    pairs = ((key, read_entry(scope, key, row)) for key, row in zip(names, flat[1::2], strict=True))
    return [(key, entry.checked(scope, key)) for key, entry in pairs if entry is not None]


def pack_totals(edition: int, totals: ScopeTotals) -> bytes:
    """A scope's totals. The edition counts all writes; a sliding TTL started anew changes nothing else."""
    return b"%d %d %d %d" % (edition, totals.revision, totals.keys, totals.bytes)


def read_totals(scope: str, data: object) -> tuple[int, ScopeTotals]:
    """The edition and totals of a value; zeros for a scope that is not there."""
    if data is None:
        return 0, ScopeTotals()
    try:
        edition, revision, keys, size = (int(part) for part in _bytes(data).split(b" "))
    except _DAMAGED:
        raise Corrupted(f"the totals of scope {scope!r} cannot be read; restore them from a backup") from None
    return edition, ScopeTotals(revision, keys, size)


def _bytes(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise ValueError("a value is missing")
    return data
