"""Proofs: one execution's receipts as a file that anybody can check without the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from stepwell.errors import InvalidInput
from stepwell.model.commit import Head, StoredCommit
from stepwell.model.digest import sha256_hex
from stepwell.model.ledger import Verification, verify
from stepwell.model.receipt import decode_header, sign_head
from stepwell.model.snapshot import StoredSnapshot

__all__ = ["PROOF_SCHEMA", "verify_proof", "write_proof"]

PROOF_SCHEMA = 1
_FORMAT = "stepwell.proof"


class _Label(msgspec.Struct, frozen=True):
    """The first line: what this is, whose, where it ends, and the snapshot it starts from, if any."""

    format: str
    schema: int
    execution_id: str
    workspace_id: str
    revision: int
    digest: str
    signature: bytes | None
    base: StoredSnapshot | None


class _Line(msgspec.Struct, frozen=True):
    """A receipt and its mutations, as the very bytes that the digests are taken over."""

    receipt: msgspec.Raw
    mutations: msgspec.Raw


_encode = msgspec.json.encode
_decode_label = msgspec.json.Decoder(_Label).decode
_decode_line = msgspec.json.Decoder(_Line).decode


def write_proof(head: Head, base: StoredSnapshot | None, rows: Iterable[StoredCommit], key: bytes | None) -> bytes:
    """The proof of these commits; it ends with the last of them."""
    last, lines = None, list[bytes]()
    for last in rows:
        lines.append(_encode(_Line(msgspec.Raw(last.header), msgspec.Raw(last.body))))
    # Up to the head, the head's own signature goes along: signing anew would lend the key to whatever is in the store now.
    digest, revision, signature = head.digest, head.revision, head.signature
    if last is not None and last.revision < head.revision:
        revision, digest = last.revision, sha256_hex(last.header)
        after = decode_header(last.header).after
        signature = None if key is None else sign_head(key, head.execution_id, revision, digest, after)
    label = _Label(_FORMAT, PROOF_SCHEMA, head.execution_id, head.workspace_id, revision, digest, signature, base)
    return b"\n".join([_encode(label), *lines, b""])


def verify_proof(data: bytes, *, key: bytes | None = None) -> Verification:
    """Check a proof by itself: every link, digest and state, up to the end that its first line names."""
    if not isinstance(data, bytes):
        raise InvalidInput(f"a proof is the bytes of a file, not {type(data).__name__}; read it with Path(...).read_bytes()")
    if key is not None and not isinstance(key, bytes):
        raise InvalidInput(f"key is the bytes that the receipts were signed with, not {type(key).__name__}")
    first, _, rest = data.partition(b"\n")
    try:
        label = _decode_label(first)
    except (ValueError, RecursionError):
        raise InvalidInput("these bytes are not a Stepwell proof: the first line is no label") from None
    if label.format != _FORMAT or label.schema > PROOF_SCHEMA:
        raise InvalidInput(f"this is {label.format!r} schema {label.schema}; this Stepwell reads {_FORMAT!r} up to {PROOF_SCHEMA}")
    head = Head(
        execution_id=label.execution_id,
        workspace_id=label.workspace_id,
        workflow_id="",
        version=0,
        status="",
        revision=label.revision,
        digest=label.digest,
        signature=label.signature,
        base_revision=-1 if label.base is None else label.base.revision,
    )
    try:
        return verify(head, label.base, _rows(rest, head.base_revision), key=key)
    except (ValueError, RecursionError) as error:
        return Verification(False, (f"a line of the proof cannot be read: {error}",))


def _rows(text: bytes, base_revision: int) -> Iterator[StoredCommit]:
    for number, line in enumerate(text.splitlines(), base_revision + 1):
        decoded = _decode_line(line)
        yield StoredCommit(number, bytes(decoded.receipt), bytes(decoded.mutations))
