"""Sealed values: bytes that were compressed, encrypted, or both, as a JSON object that no canonical value looks like.

Canonical JSON has no spaces, and a sealed value begins with ``{ "sealed"``. So the first bytes tell the two apart, and a store that
keeps JSON keeps both. A sealed value is encrypted under a key that is derived from a data key and from the family of its *place*
(an execution, a scope); the whole place is authenticated, so that it opens nowhere else.
"""

from __future__ import annotations

import binascii
import hmac
import zlib
from base64 import b64decode, b64encode
from functools import lru_cache
from typing import NamedTuple

import msgspec

from stepwell.errors import Corrupted
from stepwell.model.cipher import cipher_of, open_sealed, seal_with

__all__ = ["KEY_ID_BYTES", "SealedValue", "is_sealed", "open_value", "read_sealed", "seal_value"]

KEY_ID_BYTES = 16
"""The length of a data key's id, which is written as hex digits."""

Place = tuple[str, ...]
"""Where a value is: its family, and last the part of the family. Both ends know it, and it is no part of the value."""

_PREFIX, _SUFFIX = b'{ "sealed":"', b'"}'
_VERSION = 1
_COMPRESSED, _ENCRYPTED, _LOOSE = 1, 2, 4
_MOST_BYTES = 1024 * 1024 * 1024
"""How large a value may become when it is unpacked: more than any writer makes."""


class SealedValue(NamedTuple):
    """A sealed value that was read and not opened yet."""

    head: bytes
    flags: int
    key_id: str
    """The id of the data key; empty if it is compressed only."""
    content: bytes

    @property
    def is_loose(self) -> bool:
        """True if the value is bound to the family of its place alone."""
        return bool(self.flags & _LOOSE)


def is_sealed(data: bytes) -> bool:
    """Return whether stored bytes are a sealed value."""
    return data.startswith(_PREFIX)


def seal_value(
    data: bytes, place: Place, key: tuple[str, bytes] | None, compress_over: int | None, *, is_loose: bool = False
) -> bytes:
    """Return the data sealed for a place; unchanged if it is neither encrypted nor becomes smaller by compression.

    - ``key``: the id and the bytes of the data key; None to compress only.
    - ``compress_over``: compress data of more bytes than this; None for none.
    - ``is_loose``: bind the value to the family of the place, and not to its last part.
    """
    flags, content = 0, data
    if compress_over is not None and len(data) > compress_over:
        smaller = zlib.compress(data, 6)
        if len(smaller) < len(data) * 3 // 4:  # the text form adds a third
            flags, content = _COMPRESSED, smaller
    if key is None:
        return _packed(bytes((_VERSION, flags)) + content) if flags else data
    flags |= _ENCRYPTED | (_LOOSE if is_loose else 0)
    head = bytes((_VERSION, flags)) + bytes.fromhex(key[0])
    cipher = cipher_of(_derived(key[1], place[:-1]))
    return _packed(head + seal_with(cipher, content, head + _encode(place[:-1] if is_loose else place)))


def read_sealed(data: bytes) -> SealedValue:
    """Return the parts of a sealed value. Raise ``Corrupted`` for other bytes."""
    try:
        if not data.endswith(_SUFFIX):
            raise ValueError
        raw = b64decode(data[len(_PREFIX) : -len(_SUFFIX)], validate=True)
        version, flags = raw[0], raw[1]
    except (binascii.Error, ValueError, IndexError):
        raise Corrupted("a sealed value cannot be read: it was changed or cut") from None
    if version != _VERSION or not flags & (_COMPRESSED | _ENCRYPTED):
        raise Corrupted(f"a sealed value is of format {version}, which this Stepwell does not read")
    end = 2 + (KEY_ID_BYTES if flags & _ENCRYPTED else 0)
    return SealedValue(raw[:end], flags, raw[2:end].hex(), raw[end:])


def open_value(sealed: SealedValue, place: Place, key: bytes | None) -> bytes:
    """Return what ``seal_value`` was given. Raise ``Corrupted`` if it was changed, or belongs to another place.

    - ``key``: the bytes of the data key that it names; None for a value that is compressed only.
    """
    content = sealed.content
    if sealed.flags & _ENCRYPTED:
        cipher = cipher_of(_derived(key or b"", place[:-1]))
        content = open_sealed(cipher, content, sealed.head + _encode(place[:-1] if sealed.is_loose else place))
    if not sealed.flags & _COMPRESSED:
        return content
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(content, _MOST_BYTES)
    except zlib.error:
        data = b""
    if not unpacker.eof:
        raise Corrupted("a compressed value cannot be unpacked: it was changed or cut")
    return data


def _packed(raw: bytes) -> bytes:
    return _PREFIX + b64encode(raw) + _SUFFIX


_encode = msgspec.json.encode


@lru_cache(1024)
def _derived(key: bytes, family: Place) -> bytes:
    """Return the key of a family of places: with one each, no key comes near the number of random nonces that it can take."""
    return hmac.digest(key, b"stepwell.place.1\0" + _encode(family), "sha256")
