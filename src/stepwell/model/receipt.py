"""Receipts: the immutable proof of a commit, chained to the one before."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from stepwell.errors import Corrupted, EncryptionKeyMissing, ReceiptArchived, StepwellError
from stepwell.model.execution_state import sha256_hex
from stepwell.model.plain_data import PlainRecord, plain_data
from stepwell.model.sealed_value import is_sealed
from stepwell.model.value import Value, decode

__all__ = ["RECEIPT_SCHEMA", "Receipt", "ReceiptHeader", "decode_header", "encode_header", "read_receipts", "sign_head"]

RECEIPT_SCHEMA = 1


class ReceiptHeader(msgspec.Struct, frozen=True, gc=False):
    """The part of a receipt that its digest covers. It has the digest of the mutations, so that a body can be archived apart."""

    schema: int
    execution_id: str
    workspace_id: str
    revision: int
    commit_id: str
    committed_at: datetime
    mutations: str
    before: str
    after: str
    previous: str


encode_header = msgspec.json.Encoder().encode
decode_header = msgspec.json.Decoder(ReceiptHeader).decode


class Receipt(PlainRecord, frozen=True, gc=False, kw_only=True):
    """Proof that a commit landed: what it changed, the state's digest before and after, and the receipt before it."""

    execution_id: str
    workspace_id: str
    revision: int
    commit_id: str
    committed_at: datetime
    before: str
    """Digest of the state before the commit."""
    after: str
    """Digest of the state after it."""
    previous: str
    """Digest of the receipt before this one; zeros for the first."""
    digest: str
    """Digest of this receipt."""
    body: bytes
    """The mutations, as they are stored."""
    opened: Any = None
    """Of a sealed body: the mutations as bytes, or the error that says why they cannot be read."""

    def __repr__(self) -> str:
        # Without the body: it may be as large as a commit, and user data does not belong in logs.
        return f"<Receipt {self.execution_id!r} revision={self.revision} commit_id={self.commit_id!r} digest={self.digest[:12]}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt as plain data, with its mutations in place of their bytes."""
        names = (name for name in self.__struct_fields__ if name not in ("body", "opened"))
        return {name: plain_data(getattr(self, name)) for name in names} | {"mutations": plain_data(self.mutations)}

    @property
    def mutations(self) -> tuple[dict[str, Value], ...]:
        """Return the changes of the commit as plain data. Raise ``ValueErased`` if their key was destroyed."""
        return tuple(decode(self.readable))

    @property
    def readable(self) -> bytes:
        """Return the mutations as bytes, opened if they are sealed. Raise ``ValueErased`` if their key was destroyed."""
        if self.opened is None and not is_sealed(self.body):
            return self.body
        if self.opened is None or isinstance(self.opened, StepwellError):
            raise self.opened or EncryptionKeyMissing(f"the mutations of revision {self.revision} are sealed, and no key is here")
        return self.opened

    @classmethod
    def read(cls, header: bytes, body: bytes, opened: Any = None) -> Receipt:
        """Return the receipt of a stored commit. Raise ``Corrupted`` if its bytes cannot be read or do not belong together."""
        try:
            decoded, digest, mutations = decode_header(header), sha256_hex(header), sha256_hex(body)
        except (TypeError, ValueError, RecursionError):
            raise Corrupted("a stored receipt cannot be read; verify its execution to find the first broken one") from None
        if mutations != decoded.mutations:
            raise Corrupted(f"the mutations of revision {decoded.revision} of {decoded.execution_id!r} do not match their digest")
        return cls.of(decoded, digest, body, opened)

    @classmethod
    def found(cls, execution_id: str, commit_id: str, header: bytes, body: bytes, opened: Any = None) -> Receipt:
        """Return the receipt of a commit that was found by its id. Raise ``ReceiptArchived`` if only the id is left."""
        if not header and not body:
            raise ReceiptArchived(
                f"commit {commit_id!r} of execution {execution_id!r} landed, and its receipt was archived: look in the proof files",
                commit_id=commit_id,
                execution_id=execution_id,
            )
        return cls.read(header, body, opened)

    @classmethod
    def of(cls, header: ReceiptHeader, digest: str, body: bytes, opened: Any = None) -> Receipt:
        """Return the receipt of a header that was just built."""
        return cls(
            execution_id=header.execution_id,
            workspace_id=header.workspace_id,
            revision=header.revision,
            commit_id=header.commit_id,
            committed_at=header.committed_at,
            before=header.before,
            after=header.after,
            previous=header.previous,
            digest=digest,
            body=body,
            opened=opened,
        )


def read_receipts(execution_id: str, rows: Iterable[tuple[bytes, bytes, Any]]) -> list[Receipt]:
    """Return the receipts of stored commits in order; raise ``Corrupted`` if one is another execution's or breaks the chain."""
    receipts = [Receipt.read(header, body, opened) for header, body, opened in rows]
    for last, receipt in zip([None, *receipts], receipts, strict=False):
        follows = last is None or last.revision + 1 < receipt.revision or receipt.previous == last.digest
        if not follows or receipt.execution_id != execution_id:
            raise Corrupted(f"the receipt at revision {receipt.revision} is not of the chain of {execution_id!r}; verify it")
    return receipts


def sign_head(key: bytes, execution_id: str, revision: int, digest: str, after: str) -> bytes:
    """Return a signature over the newest receipt. Only the newest is kept, so that a truncated chain has none.

    It covers the digest of the state, too: once a chain is archived up to its head, no receipt with that digest is left.
    """
    message = b"stepwell.head.1\0" + msgspec.json.encode([execution_id, revision, digest, after])
    return hmac.new(key, message, sha256).digest()
