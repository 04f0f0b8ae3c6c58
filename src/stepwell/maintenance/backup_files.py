"""The files of a backup: compressed segments with checksums, and a manifest that names them.

A segment has lines of JSON, one record each. Segments are written and synced before the manifest, which replaces the one before it
in one step. So a backup that is interrupted leaves the backup before it, or none, and files that nothing names. Nothing in a backup
is code: a record of an unknown kind is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from stepwell.errors import InvalidBackup
from stepwell.fault_points import fault
from stepwell.maintenance.packed_lines import pack_lines, read_regular_file, unpacked_lines, write_new_file
from stepwell.model.commit import Head
from stepwell.model.queue_item import Item, QueueSettings, Tier, Workspace
from stepwell.model.snapshot import StoredSnapshot
from stepwell.model.state_versions import FIRST_VERSION

__all__ = [
    "BACKUP_SCHEMA",
    "MANIFEST",
    "ChainRecord",
    "CommitRecord",
    "EntryRecord",
    "HeadRecord",
    "ItemRecord",
    "Manifest",
    "QueueRecord",
    "Record",
    "ScopeRecord",
    "Segment",
    "SegmentWriter",
    "TierRecord",
    "WorkspaceRecord",
    "manifests",
    "read_manifest",
    "read_segment",
    "remove_unnamed",
    "write_manifest",
]

BACKUP_SCHEMA = 1
MANIFEST = "manifest.json"
_EARLIER = "manifest-*.json"
_FORMAT = "stepwell.backup"
_SEGMENT_BYTES = 8 * 1024 * 1024
_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: a datetime holds no later moment."""


class _Record(msgspec.Struct, frozen=True, tag_field="record", omit_defaults=True):
    """One line of a segment."""


class ChainRecord(_Record, frozen=True, tag="chain"):
    """The commits that follow are of this execution."""

    execution_id: str
    base: StoredSnapshot | None = None
    """The snapshot that the chain starts from, if its first receipts were archived."""


class CommitRecord(_Record, frozen=True, tag="commit"):
    """A receipt and its mutations, as the very bytes that the digests are taken over."""

    receipt: msgspec.Raw
    mutations: msgspec.Raw


class HeadRecord(_Record, frozen=True, tag="head"):
    """An execution's row. An execution without one is not part of the backup any more."""

    head: Head


class ScopeRecord(_Record, frozen=True, tag="scope"):
    """The entries that follow are all of this scope at this revision."""

    path: str
    revision: int


class EntryRecord(_Record, frozen=True, tag="entry"):
    """A key of a scope."""

    key: str
    value: msgspec.Raw
    expires_ms: int | None = None
    ttl_ms: int | None = None
    sliding: bool = False
    version: int = FIRST_VERSION
    """The version of its value, for state migrations."""


class ItemRecord(_Record, frozen=True, tag="item"):
    """A queue item."""

    item: Item


class TierRecord(_Record, frozen=True, tag="tier"):
    """A tier."""

    tier: Tier


class WorkspaceRecord(_Record, frozen=True, tag="workspace"):
    """A workspace."""

    workspace: Workspace


class QueueRecord(_Record, frozen=True, tag="queue"):
    """The settings of a queue."""

    settings: QueueSettings


Record = (
    ChainRecord | CommitRecord | HeadRecord | ScopeRecord | EntryRecord | ItemRecord | TierRecord | WorkspaceRecord | QueueRecord
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class Segment(msgspec.Struct, frozen=True):
    """A file of records."""

    name: str
    kind: str
    """``chains``: kept for the next backup, which adds to it. ``moment``: written anew by each backup."""
    sha256: str
    """Of the file as it is stored."""
    size: int
    records: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The list of a backup's files, with their digests."""

    format: str = _FORMAT
    schema: int = BACKUP_SCHEMA
    backup_id: str
    generation: Annotated[int, Meta(ge=1, le=2**53)]
    """How many backups were made into this folder."""
    created_ms: Annotated[int, Meta(ge=0, le=_LATEST_MS)]
    workspace: str | None
    """The only workspace in it; None for a whole store."""
    segments: tuple[Segment, ...]
    scopes: dict[str, int]
    """The revision of each scope at the backup's moment; entries of other revisions are left out."""
    counts: dict[str, int]
    digest: str
    """Over all executions, entries without a TTL, and items; the same for a store that was restored from it."""


class SegmentWriter:
    """Writes records into new segments of a folder."""

    def __init__(self, folder: Path, generation: int, kind: str) -> None:
        self._folder, self._stem, self._kind = folder, f"{generation:06d}-{kind}", kind
        self._lines: list[bytes] = []
        self._size = 0
        self._repeat: Record | None = None
        self.segments: list[Segment] = []

    def write(self, record: Record) -> None:
        """Add a record. A segment that begins in the middle of a chain or scope repeats its first record."""
        if isinstance(record, ChainRecord | ScopeRecord):
            self._repeat = record
        line = _encode(record)
        self._lines.append(line)
        self._size += len(line) + 1
        if self._size >= _SEGMENT_BYTES:
            self.flush()
            if isinstance(self._repeat, ChainRecord):
                self._lines.append(_encode(ChainRecord(self._repeat.execution_id)))
            elif self._repeat is not None:
                self._lines.append(_encode(self._repeat))

    def flush(self) -> None:
        """Write what was added."""
        if not self._lines:
            return
        data = pack_lines(self._lines, 1)
        name = f"{self._stem}-{len(self.segments) + 1:06d}.jsonl.z"
        write_new_file(self._folder / name, data)
        fault("backup.segment_written")
        self.segments.append(Segment(name, self._kind, sha256(data).hexdigest(), len(data), len(self._lines)))
        self._lines, self._size = [], 0


def read_segment(folder: Path, segment: Segment) -> Iterator[Record]:
    """Return the records of a segment, once its checksum is checked. Raise ``InvalidBackup`` for a damaged one."""
    try:
        data = read_regular_file(folder / segment.name, segment.size)
    except OSError as error:
        raise InvalidBackup(
            f"segment {segment.name} cannot be read: {error.strerror}; look for another copy of the backup"
        ) from None
    if len(data) != segment.size or sha256(data).hexdigest() != segment.sha256:
        raise InvalidBackup(f"segment {segment.name} does not match its checksum: it was changed or cut; look for another copy")
    try:
        for line in unpacked_lines(data, f"segment {segment.name}"):
            yield _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidBackup(f"segment {segment.name} cannot be read: {error}") from None


def read_manifest(folder: Path, at_ms: int | None = None) -> Manifest:
    """Return the manifest of a backup: the newest, or the last one that was made by a time.

    Raise ``InvalidBackup`` if the folder has none that this version reads, or none that is as old.
    """
    newest = _read_manifest(folder, MANIFEST)
    if at_ms is None or newest.created_ms <= at_ms:
        return newest
    earlier = [each for each in manifests(folder) if each.created_ms <= at_ms]
    if not earlier:
        raise InvalidBackup(f"no backup in {str(folder)!r} was made by then; see `stepwell backup list`")
    return earlier[-1]


def manifests(folder: Path) -> list[Manifest]:
    """Return the manifests of all backups that a folder keeps, the oldest first."""
    found = {each.generation: each for each in (_read_manifest(folder, path.name) for path in folder.glob(_EARLIER))}
    newest = _read_manifest(folder, MANIFEST)
    return [found[number] for number in sorted(found) if number < newest.generation] + [newest]


def _read_manifest(folder: Path, name: str) -> Manifest:
    try:
        data = read_regular_file(folder / name)
    except OSError as error:
        raise InvalidBackup(f"there is no backup in {str(folder)!r}: its manifest cannot be read ({error.strerror})") from None
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidBackup(f"the manifest in {str(folder)!r} cannot be read: {error}") from None
    if found.format != _FORMAT or found.schema > BACKUP_SCHEMA:
        raise InvalidBackup(f"the backup in {str(folder)!r} is of schema {found.schema}; this Stepwell reads up to {BACKUP_SCHEMA}")
    if any("/" in each.name or "\\" in each.name or each.name.startswith(".") for each in found.segments):
        raise InvalidBackup(f"the manifest in {str(folder)!r} names files outside of its folder")
    return found


def write_manifest(folder: Path, manifest: Manifest, earlier: Manifest | None) -> None:
    """Write the manifest in one step: what it names is the backup from now on. The one before it is kept beside it."""
    if earlier is not None:
        write_new_file(folder / f"manifest-{earlier.generation:06d}.json", (folder / MANIFEST).read_bytes())
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_new_file(folder / (MANIFEST + ".new"), data)
    fault("backup.manifest_written")
    (folder / (MANIFEST + ".new")).replace(folder / MANIFEST)
    _sync_folder(folder)
    fault("backup.finished")


def remove_unnamed(folder: Path, keep: int | None) -> None:
    """Remove segments that no manifest names: of an interrupted backup, or of a moment that is not kept any more.

    - ``keep``: how many earlier backups to keep; None to remove none of them.
    """
    kept = manifests(folder) if (folder / MANIFEST).exists() else []
    if keep is not None:
        for each in kept[: -keep - 1]:
            (folder / f"manifest-{each.generation:06d}.json").unlink(missing_ok=True)
        kept = kept[-keep - 1 :]
    named = {segment.name for each in kept for segment in each.segments}
    for path in folder.glob("*.jsonl.z"):
        if path.name not in named:
            path.unlink()


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
