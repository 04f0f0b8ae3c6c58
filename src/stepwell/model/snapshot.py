"""Snapshots: an execution at a revision as bytes with a label and digests, so that mistakes and changes are found."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from stepwell.errors import EncryptionKeyMissing, InvalidInput, InvalidSnapshot, StepwellError
from stepwell.model.execution_state import ONLY, SECTIONS, ExecutionState, State, sha256_hex
from stepwell.model.ids import MOST_REVISIONS
from stepwell.model.record import decode_metadata
from stepwell.model.sealed_value import is_sealed

__all__ = [
    "SNAPSHOT_SCHEMA",
    "Snapshot",
    "StoredSnapshot",
    "read_snapshot",
    "seal_snapshot",
    "store_snapshot",
    "stored_state",
    "unreadable",
    "write_snapshot",
]

SNAPSHOT_SCHEMA = 1
_FORMAT = "stepwell.snapshot"
_ACCUMULATOR_BYTES = 512


class _Label(msgspec.Struct, frozen=True):
    format: str
    schema: int
    digest: str


class Snapshot(msgspec.Struct, frozen=True):
    """The content of a snapshot."""

    execution_id: str
    workspace_id: str
    revision: int
    receipt: str
    """Digest of the receipt at this revision."""
    state: str
    """Digest of the state."""
    entries: dict[str, dict[str, msgspec.Raw]]


class StoredSnapshot(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A snapshot as a store keeps it: with its accumulator, so that loading need not hash every entry again."""

    revision: int
    data: bytes
    accumulator: bytes
    digest: str
    """SHA-256 over both, to find damage at rest."""
    opened: Any = None
    """Of sealed data: accumulator and data as bytes, or the error that says why they cannot be read. Never stored."""

    @property
    def is_dark(self) -> bool:
        """True if the content cannot be read here: its key is missing, or was erased."""
        return isinstance(self.opened, StepwellError) or (
            self.opened is None and isinstance(self.data, bytes) and is_sealed(self.data)
        )

    def as_opened(self) -> StoredSnapshot:
        """Return the snapshot as it would be stored without a seal; unchanged if it cannot be read."""
        if not isinstance(self.opened, bytes):
            return self
        accumulator, data = self.opened[:_ACCUMULATOR_BYTES], self.opened[_ACCUMULATOR_BYTES:]
        return StoredSnapshot(self.revision, data, accumulator, sha256(data + accumulator).hexdigest())

    def as_stored(self) -> StoredSnapshot:
        """Return the snapshot as it is stored, sealed if it was."""
        return self if self.opened is None else msgspec.structs.replace(self, opened=None)


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode_label = msgspec.json.Decoder(_Label).decode
_decode_body = msgspec.json.Decoder(Snapshot).decode


def write_snapshot(state: State) -> bytes:
    """Return the snapshot of a state: a line that labels it, then its content."""
    who = state.identity
    entries = {section: {key: msgspec.Raw(data) for key, data in rows.items()} for section, rows in state.sections.items() if rows}
    body = _encode(Snapshot(who.execution_id, who.workspace_id, state.revision, state.receipt, state.digest, entries))
    return _encode(_Label(_FORMAT, SNAPSHOT_SCHEMA, sha256_hex(body))) + b"\n" + body


def read_snapshot(data: object) -> tuple[Snapshot, State]:
    """Return the snapshot and its state, with every digest checked. Raise ``InvalidSnapshot`` with what is wrong."""
    snapshot = _read_content(data)
    state = _rebuild(snapshot, None)
    if state.digest != snapshot.state:
        raise InvalidSnapshot("the snapshot's entries do not add up to its state digest; it was changed after it was made")
    if not 0 <= snapshot.revision < MOST_REVISIONS:
        raise InvalidSnapshot(f"the snapshot is of revision {snapshot.revision}, and there is none such")
    who = state.identity
    if (who.execution_id, who.workspace_id) != (snapshot.execution_id, snapshot.workspace_id):
        raise InvalidSnapshot("the snapshot's label and its content name different executions")
    _check_readable(state)
    return snapshot, state


def _check_readable(state: State) -> None:
    """Raise for entries that cannot be decoded: digests match any content, so they do not find those."""
    view = ExecutionState(state)
    try:
        read = {section: getattr(view, section) for section in SECTIONS}
    except (InvalidInput, KeyError, ValueError) as error:
        raise InvalidSnapshot(f"the snapshot's content cannot be read: {error}") from None
    if type(read["step_count"]) is not int or type(read["metadata"]) is not dict or "root" not in read["scopes"]:
        raise InvalidSnapshot("the snapshot's step count, metadata or root scope is not what it must be")


def store_snapshot(state: State) -> StoredSnapshot:
    """Return the state as a store keeps it."""
    data, accumulator = write_snapshot(state), state.accumulator.to_bytes(_ACCUMULATOR_BYTES, "little")
    return StoredSnapshot(state.revision, data, accumulator, sha256(data + accumulator).hexdigest())


def stored_state(stored: StoredSnapshot) -> State:
    """Return the state of a stored snapshot. The digest finds damage."""
    is_bytes = isinstance(stored.data, bytes) and isinstance(stored.accumulator, bytes)  # a damaged file may return anything
    if not is_bytes or sha256(stored.data + stored.accumulator).hexdigest() != stored.digest:
        raise InvalidSnapshot("the stored snapshot does not match its digest")
    if stored.opened is None and not is_sealed(stored.data):
        return _rebuild(_read_content(stored.data), int.from_bytes(stored.accumulator, "little"))
    if stored.opened is None or isinstance(stored.opened, StepwellError):
        raise stored.opened or unreadable("the snapshot")
    plain = stored.as_opened()
    return _rebuild(_read_content(plain.data), int.from_bytes(plain.accumulator, "little"))


def seal_snapshot(stored: StoredSnapshot, seal: Callable[[bytes], bytes]) -> StoredSnapshot:
    """Return a snapshot with its content sealed, and its accumulator, from which values could be guessed."""
    whole = stored.accumulator + stored.data
    sealed = seal(whole)
    if sealed is whole:
        return stored
    return StoredSnapshot(stored.revision, sealed, b"", sha256(sealed).hexdigest())


def unreadable(what: str) -> EncryptionKeyMissing:
    """Return the error for sealed content that was not opened."""
    return EncryptionKeyMissing(f"{what} is sealed, and no key was given here; open the store with its keys")


def _read_content(data: object) -> Snapshot:
    if not isinstance(data, bytes):
        raise InvalidSnapshot(f"a snapshot is bytes, not {type(data).__name__}")
    first, _, body = data.partition(b"\n")
    try:
        label = _decode_label(first)
    except (ValueError, RecursionError):
        raise InvalidSnapshot("these bytes are not a Stepwell snapshot: the first line is no label") from None
    if label.format != _FORMAT:
        raise InvalidSnapshot(f"these bytes are not a Stepwell snapshot but {label.format!r}")
    if label.schema > SNAPSHOT_SCHEMA:
        raise InvalidSnapshot(
            f"the snapshot has schema {label.schema} and this Stepwell reads up to {SNAPSHOT_SCHEMA}; upgrade it first"
        )
    if sha256_hex(body) != label.digest:
        raise InvalidSnapshot("the snapshot does not match its digest; it was changed or cut after it was made")
    try:
        return _decode_body(body)
    except (ValueError, RecursionError) as error:
        raise InvalidSnapshot(f"the snapshot's content cannot be read: {error}") from None


def _rebuild(snapshot: Snapshot, accumulator: int | None) -> State:
    unknown = snapshot.entries.keys() - SECTIONS.keys()
    if unknown:
        raise InvalidSnapshot(f"the snapshot has sections that this Stepwell does not know: {', '.join(sorted(unknown))}")
    try:
        entries = {section: {key: bytes(raw) for key, raw in rows.items()} for section, rows in snapshot.entries.items()}
        state = State.of(entries, snapshot.revision, snapshot.receipt, accumulator)
        _ = decode_metadata(state.sections["identity"].get(ONLY, b""))
    except (ValueError, InvalidInput) as error:
        raise InvalidSnapshot(f"the snapshot's content cannot be read: {error}") from None
    return state
