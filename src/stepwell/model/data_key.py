"""Data keys: the keys that encrypt values, each stored wrapped by a key of the well's ring, and where they are stored.

A workspace has one data key, and each subject in it has one of its own. Rotation wraps them again with the ring's active key; no
value changes. To erase a subject is to overwrite its data key: what was encrypted under it cannot be read again, and every digest
still fits.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from hashlib import sha256

import msgspec

from stepwell.errors import Corrupted
from stepwell.model.cipher import KeyRing, decrypt, encrypt, key_id_of, new_key
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path, is_internal, workspace_of
from stepwell.model.sealed_value import KEY_ID_BYTES

__all__ = [
    "SEALING",
    "StoredKey",
    "binding_path",
    "data_key_path",
    "decode_key",
    "encode_key",
    "erasure_path",
    "holds_values",
    "index_path",
    "is_key_path",
    "key_id_of_workspace",
    "make_key",
    "new_key_id",
    "rewrap",
    "subject_path",
    "unwrap",
    "workspace_of_values",
]

SEALING = internal_path("sealing", DEFAULT_WORKSPACE)
"""Says that values of this store are encrypted or compressed, so that no process opens it without its keys."""

_VALUES = frozenset(("inbox", "conversation_record", "idempotency", "schedule", "webhook", "engine_payload"))
"""Stepwell's own records that hold values of users."""


class StoredKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A data key as it is stored."""

    workspace: str
    wrapped: str = ""
    """Encrypted under a key of the ring, in base64; empty once it was erased."""
    is_subject: bool = False
    created_ms: int = 0
    erased_ms: int = 0


encode_key = msgspec.json.Encoder(order="deterministic").encode
decode_key = msgspec.json.Decoder(StoredKey).decode


def new_key_id() -> str:
    """Return a new random id of a data key."""
    return os.urandom(KEY_ID_BYTES).hex()


def key_id_of_workspace(workspace: str) -> str:
    """Return the id of a workspace's own data key."""
    return sha256(b"stepwell.workspace.1\0" + workspace.encode()).hexdigest()[: 2 * KEY_ID_BYTES]


def make_key(ring: KeyRing, workspace: str, key_id: str, now_ms: int, *, is_subject: bool) -> tuple[StoredKey, bytes]:
    """Return a new data key, as it is stored and as it is."""
    key = new_key()
    wrapped = b64encode(encrypt(ring, key, _place(workspace, key_id))).decode()
    return StoredKey(workspace, wrapped, is_subject, now_ms), key


def unwrap(ring: KeyRing, key_id: str, stored: StoredKey) -> bytes:
    """Return the data key of a stored one. Raise ``EncryptionKeyMissing`` if the ring has not the key that wraps it."""
    return decrypt(ring, _wrapped(stored), _place(stored.workspace, key_id))


def rewrap(ring: KeyRing, key_id: str, stored: StoredKey) -> StoredKey | None:
    """Return the same data key wrapped with the ring's active key; None if it is so already, or was erased."""
    if stored.erased_ms or key_id_of(_wrapped(stored)) == ring.active:
        return None
    wrapped = encrypt(ring, unwrap(ring, key_id, stored), _place(stored.workspace, key_id))
    return msgspec.structs.replace(stored, wrapped=b64encode(wrapped).decode())


def _wrapped(stored: StoredKey) -> bytes:
    try:
        return b64decode(stored.wrapped, validate=True)
    except ValueError:
        raise Corrupted("a stored data key cannot be read; restore a backup") from None


def _place(workspace: str, key_id: str) -> bytes:
    return msgspec.json.encode(("data key", workspace, key_id))


def data_key_path(workspace: str, key_id: str) -> str:
    """Return the scope in which a data key is stored."""
    return internal_path("data_key", DEFAULT_WORKSPACE, workspace, key_id[:2])


def subject_path(workspace: str, subject: str) -> str:
    """Return the scope that says which data key a subject has."""
    return internal_path("subject", DEFAULT_WORKSPACE, workspace, _bucket(subject))


def index_path(workspace: str, key_id: str, name: str) -> str:
    """Return the scope that lists what was encrypted under a subject's data key; it is one of sixteen."""
    return internal_path("subject_index", DEFAULT_WORKSPACE, workspace, key_id, _bucket(name)[0])


def binding_path(path: str) -> str:
    """Return the scope that says which subject's data a scope of state holds."""
    return internal_path("subject_scope", DEFAULT_WORKSPACE, workspace_of_values(path), _bucket(path))


def erasure_path(workspace: str) -> str:
    """Return the scope of the receipts of erasure."""
    return internal_path("erasure", DEFAULT_WORKSPACE, workspace)


def _bucket(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:2]


def holds_values(path: str) -> bool:
    """Return whether a scope holds values of users."""
    return not is_internal(path) or path.split("/", 1)[0] in _VALUES


def is_key_path(path: str, workspace: str) -> bool:
    """Return whether a scope is one that a backup of one workspace needs to read its values."""
    kind, _, *names = path.split("/")
    owner = internal_path("erasure", DEFAULT_WORKSPACE, workspace).split("/")[2]
    return kind == "sealing" or (kind in ("data_key", "subject", "subject_index", "subject_scope", "erasure") and names[0] == owner)


def workspace_of_values(path: str) -> str:
    """Return the workspace under whose data key the values of a scope are encrypted."""
    return workspace_of(path) or DEFAULT_WORKSPACE
