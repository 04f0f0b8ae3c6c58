"""Checksums in front of each stored value of scoped state, to find a byte that changed at rest when the value is read.

A checksum covers the whole row, with its scope and key, so that a row that was exchanged for another, or outlives its TTL, is
found as well. It guards against decay, not against people: any writer of the store can compute one. Data that must be
proven belongs in an execution, whose receipts are chained.

A value that was stored without a checksum begins as JSON does, and is accepted as it is. The version of a value stands between
checksum and value, unless it is the first: a store without migrated values spends no byte on versions.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from stepwell.model.scoped_operations import StoredEntry
from stepwell.model.state_versions import FIRST_VERSION

__all__ = ["seal", "unseal"]

_MARK = b"\x01"  # no JSON begins with it, nor with a byte that differs from it in one bit
_VERSIONED = b"\x04"  # the same holds for it; four bytes with the value's version come after the checksum
_LENGTH = 5
_VERSION_LENGTH = 4
_JSON = frozenset(b'"-0123456789[{ntf')


def seal(scope: str, key: str, entry: StoredEntry) -> bytes | None:
    """Return the data of a row as it is stored; None for a tombstone."""
    if entry.data is None:
        return None
    if entry.version == FIRST_VERSION:
        return _MARK + _checksum(scope, key, entry, entry.data) + entry.data
    data = entry.version.to_bytes(_VERSION_LENGTH, "big") + entry.data
    return _VERSIONED + _checksum(scope, key, entry, data) + data


def unseal(scope: str, key: str, entry: StoredEntry) -> StoredEntry:
    """Return a row as it is used; ``is_sound`` says whether it is what was stored."""
    stored = entry.data
    if stored is None:
        return entry
    is_versioned = stored.startswith(_VERSIONED)
    if not is_versioned and not stored.startswith(_MARK):
        is_sound = stored[:1] != b"" and stored[0] in _JSON
        return entry if is_sound else msgspec.structs.replace(entry, is_sound=False)
    data = stored[_LENGTH:]
    is_sound = stored[1:_LENGTH] == _checksum(scope, key, entry, data)
    version = FIRST_VERSION
    if is_versioned:
        version, data = int.from_bytes(data[:_VERSION_LENGTH], "big"), data[_VERSION_LENGTH:]
    return StoredEntry(data, entry.revision, entry.expires_ms, entry.ttl_ms, entry.sliding, is_sound, version)


def _checksum(scope: str, key: str, entry: StoredEntry, data: bytes) -> bytes:
    # Neither a path nor a key has a NUL, so no two rows have the same label.
    label = f"{scope}\0{key}\0{entry.revision}\0{entry.expires_ms}\0{entry.ttl_ms}\0{entry.sliding:d}\0"
    return crc32(data, crc32(label.encode("utf-8", "surrogatepass"))).to_bytes(4, "big")
