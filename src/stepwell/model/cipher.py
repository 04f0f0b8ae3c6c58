"""AES-256-GCM with named keys: encrypt bytes under the active key, decrypt what any key of the ring encrypted.

Every ciphertext begins with the id of its key, so that keys can be rotated: a ring has one active key, and older ones that only
decrypt. It is bound to a *place*, bytes that both ends know, such as a workspace and a key; at any other place it is refused.

``cryptography`` is loaded only when something is encrypted: ``pip install 'stepwell[encryption]'``.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from stepwell.errors import Corrupted, EncryptionKeyMissing, InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = [
    "KEY_BYTES",
    "KeyRing",
    "cipher_of",
    "decrypt",
    "encrypt",
    "key_id_of",
    "new_key",
    "open_sealed",
    "parse_keyring",
    "seal_with",
]

KEY_BYTES = 32
"""The length of a key: AES-256."""

_NONCE_BYTES = 12
_TAG_BYTES = 16
_VERSION = 1
_MOST_ID_BYTES = 64


class KeyRing(msgspec.Struct, frozen=True):
    """Named keys of 32 bytes: one is active, the others decrypt what they encrypted before."""

    keys: dict[str, bytes]
    active: str
    """The id of the key that encrypts."""

    def __post_init__(self) -> None:
        if not isinstance(self.keys, dict) or not self.keys:
            raise InvalidInput("a key ring has one key at least: a dict from its id to 32 bytes")
        for name, key in self.keys.items():
            if not isinstance(name, str) or not name.isascii() or not name.isprintable() or not 0 < len(name) <= _MOST_ID_BYTES:
                raise InvalidInput(f"the id of a key is 1 to {_MOST_ID_BYTES} printable ASCII characters, not {name!r}")
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise InvalidInput(f"key {name!r} is not {KEY_BYTES} random bytes; make one with `stepwell encryption key`")
        if self.active not in self.keys:
            raise InvalidInput(f"the active key {self.active!r} is none of the ring; give it, or name another one")

    @classmethod
    def of(cls, keys: Mapping[str, bytes], active: str | None = None) -> KeyRing:
        """Return a ring of keys.

        - ``keys``: keys of 32 bytes by name.
        - ``active``: the name of the key that encrypts; None: the last one.
        """
        if not isinstance(keys, Mapping) or not keys:
            raise InvalidInput("a key ring has one key at least: a dict from its id to 32 bytes")
        return cls(dict(keys), list(keys)[-1] if active is None else active)

    def __repr__(self) -> str:
        return f"<KeyRing of {', '.join(self.keys)}; active={self.active!r}>"  # never the keys


def new_key() -> bytes:
    """Return a new random key."""
    return os.urandom(KEY_BYTES)


def parse_keyring(text: str | bytes) -> KeyRing:
    """Return the key ring of a JSON text: ``{"active": "2026-07", "keys": {"2026-07": "<base64>"}}``.

    Raise ``InvalidInput`` for any other text; the message never has a part of it, since that may be a key.
    """
    try:
        found = msgspec.json.decode(text, type=_KeyFile)
        keys = {name: base64.b64decode(key, validate=True) for name, key in found.keys.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error, ValueError):
        message = 'a key ring is JSON such as {"active": "2026-07", "keys": {"2026-07": "<32 bytes in base64>"}}'
        raise InvalidInput(message) from None
    return KeyRing.of(keys, found.active)


class _KeyFile(msgspec.Struct):
    keys: dict[str, str]
    active: str | None = None


def encrypt(ring: KeyRing, data: bytes, place: bytes) -> bytes:
    """Return the data encrypted under the active key, bound to a place.

    - ``place``: where the data will be found again; not secret, and not part of the result.
    """
    name = ring.active.encode()
    head = bytes((_VERSION, len(name))) + name
    nonce = os.urandom(_NONCE_BYTES)
    return head + nonce + cipher_of(ring.keys[ring.active]).encrypt(nonce, data, head + place)


def decrypt(ring: KeyRing, data: bytes, place: bytes) -> bytes:
    """Return what ``encrypt`` was given.

    Raise ``EncryptionKeyMissing`` if the ring has not the key, and ``Corrupted`` for bytes that were changed, that were encrypted
    at another place, or whose key has another value here.
    """
    name = key_id_of(data)
    key = ring.keys.get(name)
    if key is None:
        raise EncryptionKeyMissing(
            f"this was encrypted with key {name!r}, which is not among the keys given here ({', '.join(ring.keys)})", key_id=name
        )
    start = 2 + len(name)
    return open_sealed(cipher_of(key), data[start:], data[:start] + place)


def key_id_of(data: bytes) -> str:
    """Return the id of the key that data was encrypted with. Raise ``Corrupted`` for bytes that ``encrypt`` did not make."""
    length = data[1] if len(data) > 1 else 0
    if length == 0 or data[0] != _VERSION or len(data) < 2 + length + _NONCE_BYTES + _TAG_BYTES:
        raise Corrupted("these bytes are no ciphertext of Stepwell, or were cut")
    return data[2 : 2 + length].decode("ascii", "replace")


def seal_with(cipher: AESGCM, data: bytes, place: bytes, nonce: bytes | None = None) -> bytes:
    """Return nonce and ciphertext of data under one cipher; a random nonce unless one is given."""
    nonce = os.urandom(_NONCE_BYTES) if nonce is None else nonce[:_NONCE_BYTES]
    return nonce + cipher.encrypt(nonce, data, place)


def open_sealed(cipher: AESGCM, data: bytes, place: bytes) -> bytes:
    """Return what ``seal_with`` was given. Raise ``Corrupted`` if it was changed or belongs to another place."""
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place)
    except (InvalidTag, ValueError):
        raise Corrupted(
            "an encrypted value does not open: it was changed, was copied from another place, or its key is another one here"
        ) from None


@lru_cache(1024)
def cipher_of(key: bytes) -> AESGCM:
    """Return the cipher of a key. Raise ``InvalidInput`` if ``cryptography`` is not installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise InvalidInput("encryption needs a library; run pip install 'stepwell[encryption]'") from error
    return AESGCM(key)
