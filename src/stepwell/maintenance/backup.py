"""Make a backup of a store, or of one workspace, while it is in use; and check one without restoring it.

A view of the store at one moment is read once, and others may write all the time. A store without such views (Redis) is read twice:
a pass over all heads, scopes and items that finds nothing changed since it was copied proves that all copies are of the moment at
which that pass began. Revisions only rise, so what is the same before and after that moment was the same at it. A store that is
written to all the time has no such pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec

from stepwell.clock import from_ms, to_ms
from stepwell.contract.store import ExecutionQuery, Store, StoreReads
from stepwell.errors import Conflict, InvalidBackup, InvalidInput
from stepwell.maintenance.backup_files import (
    MANIFEST,
    ChainRecord,
    CommitRecord,
    EntryRecord,
    HeadRecord,
    ItemRecord,
    Manifest,
    QueueRecord,
    Record,
    ScopeRecord,
    Segment,
    SegmentWriter,
    TierRecord,
    WorkspaceRecord,
    manifests,
    read_manifest,
    read_segment,
    remove_unnamed,
    write_manifest,
)
from stepwell.model.commit import Head, StoredCommit
from stepwell.model.data_key import SEALING, is_key_path
from stepwell.model.execution_state import sha256_hex
from stepwell.model.ids import NewId, check_key
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import Item, ItemQuery, ItemStatus
from stepwell.model.receipt_chain import verify
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.snapshot import StoredSnapshot
from stepwell.pipeline.paged_reads import all_entries, all_executions
from stepwell.stores.sealed_store import as_stored

__all__ = [
    "BackupReport",
    "BackupSummary",
    "BackupVerification",
    "Moment",
    "create_backup",
    "list_backups",
    "time_of",
    "verify_backup",
]

_MOST_PASSES = 20
_PAGE = 1_000
_DEFINITIONS = internal_path("definition", DEFAULT_WORKSPACE)
_NOT_KEPT = ("worker/", "restore/")
"""Scopes of a store itself: which workers serve it, and what was restored into it."""


class BackupReport(PlainRecord, frozen=True, kw_only=True):
    """A backup that was made."""

    backup_id: str
    generation: int
    """1 for a new backup; higher for one that added to the backup in its folder."""
    counts: dict[str, int]
    """How many ``executions``, ``commits``, ``keys`` and ``items`` it has."""
    new_commits: int
    """How many commits were copied this time."""
    size: int
    """Bytes of all its files."""
    digest: str


class BackupSummary(PlainRecord, frozen=True):
    """A backup that a folder keeps."""

    backup_id: str
    generation: int
    created_at: datetime
    counts: dict[str, int]
    """How many ``executions``, ``commits``, ``keys`` and ``items`` it has."""
    digest: str


class BackupVerification(PlainRecord, frozen=True, kw_only=True):
    """The result of a check of a backup."""

    ok: bool
    problems: tuple[str, ...]
    executions: int = 0
    receipts: int = 0
    keys: int = 0
    items: int = 0


class _Sink(Protocol):
    def write(self, record: Record) -> None: ...


class _Nowhere:
    def write(self, record: Record) -> None: ...


class _Sum:
    """A digest over lines in any order: lines can be added and taken away again."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, *parts: object) -> None:
        self._sum = (self._sum + _number(*parts)) % 2**256

    def hex(self) -> str:
        return f"{self._sum:064x}"


def _number(*parts: object) -> int:
    return int.from_bytes(sha256(msgspec.json.encode(parts)).digest(), "big")


class Moment:
    """The content of a store, or of one workspace, at one moment."""

    def __init__(
        self,
        reads: StoreReads,
        workspace: str | None,
        chains: _Sink | None = None,
        values: _Sink | None = None,
        *,
        is_still: bool = False,
    ) -> None:
        self._store, self._workspace, self._is_still = reads, workspace, is_still
        self._chains, self._values = chains or _Nowhere(), values or _Nowhere()
        self.copied: dict[str, tuple[int, str]] = {}
        """Of each execution: the last revision whose receipt was copied, and its digest."""
        self.heads: dict[str, Head] = {}
        self.items: dict[str, Item] = {}
        self.scopes: dict[str, tuple[int, int, int]] = {}
        """Of each scope: its revision, its number of keys, and the sum over them."""
        self.new_commits = 0

    def find(self) -> None:
        """Copy until a pass finds nothing new: once, if what is read stands still.

        Raise ``Conflict`` if it does not, and is written to all the time.
        """
        for _ in range(_MOST_PASSES):
            changes = self._copy_executions() + self._copy_scopes() + self._copy_items()
            if not changes or self._is_still:
                return
        raise Conflict(
            f"the store was written to during each of {_MOST_PASSES} passes, so no moment could be found; "
            "pause its workspaces or drain its workers for the backup, or back up a detached replica of the server (see the page "
            "Backups and disaster recovery)"
        )

    def _copy_executions(self) -> int:
        changes, seen = 0, set[str]()
        for head in self._all_heads():
            seen.add(head.execution_id)
            before = self.heads.get(head.execution_id)
            if before is None or (before.revision, before.digest) != (head.revision, head.digest):
                changes += 1
                self._copy_chain(head)
            self.heads[head.execution_id] = head
        gone = self.heads.keys() - seen
        for execution_id in gone:
            del self.heads[execution_id]
        return changes + len(gone)

    def _all_heads(self) -> Iterator[Head]:
        return all_executions(self._store, ExecutionQuery(workspace_id=self._workspace, limit=_PAGE))

    def _copy_chain(self, head: Head) -> None:
        name = head.execution_id
        last, digest = self.copied.get(name, (-1, ""))
        base = None
        if last < head.base_revision:
            base = self._store.base(name)
            last = -1 if base is None else base.revision
        if last >= head.revision and digest == head.digest:
            return
        self._chains.write(ChainRecord(name, base))
        if base is not None:
            digest = head.digest  # if nothing follows the snapshot, it is the snapshot that the head names
        while rows := self._store.history(name, last, _PAGE):
            for row in rows:
                self._chains.write(CommitRecord(msgspec.Raw(row.header), msgspec.Raw(row.body)))
            last, digest = rows[-1].revision, sha256_hex(rows[-1].header)
            self.new_commits += len(rows)
        self.copied[name] = last, digest

    def _copy_scopes(self) -> int:
        changes, seen = 0, set[str]()
        for path in self._paths():
            seen.add(path)
            revision = self._store.totals(path).revision
            if path not in self.scopes or self.scopes[path][0] != revision:
                changes += 1
                self._copy_scope(path, revision)
        gone = self.scopes.keys() - seen
        for path in gone:
            del self.scopes[path]
        return changes + len(gone)

    def _paths(self) -> Iterator[str]:
        for path in self._store.scopes(self._workspace):
            if not path.startswith(_NOT_KEPT):
                yield path
        # Stored definitions are shared by all workspaces, so that a workspace alone needs them, too.
        if self._workspace in (None, DEFAULT_WORKSPACE):
            return
        if self._store.totals(_DEFINITIONS).keys:
            yield _DEFINITIONS
        yield from (path for path in self._store.scopes(DEFAULT_WORKSPACE) if is_key_path(path, self._workspace))

    def _copy_scope(self, path: str, revision: int) -> None:
        self._values.write(ScopeRecord(path, revision))
        keys = total = 0
        for key, row in all_entries(self._store, path):
            data = row.checked(path, key).data or b"null"
            record = EntryRecord(key, msgspec.Raw(data), row.expires_ms, row.ttl_ms, row.sliding, row.version)
            self._values.write(record)
            if row.expires_ms is None:
                keys, total = keys + 1, total + _number("entry", path, key, sha256_hex(data))
        # The settings of sealing are kept, and do not count: the store that it is restored into has some already.
        self.scopes[path] = (revision, 0, 0) if path == SEALING else (revision, keys, total)

    def _copy_items(self) -> int:
        found: dict[str, Item] = {}
        before = None
        while page := self._store.items(ItemQuery(workspace_id=self._workspace, before=before, limit=_PAGE)):
            found |= {item.item_id: item for item in page}
            before = page[-1].number
        is_changed = {name: _shape(item) for name, item in found.items()} != {
            name: _shape(item) for name, item in self.items.items()
        }
        self.items = found
        return int(is_changed)

    @property
    def digest(self) -> str:
        """A digest over all of it, the same for a store that was restored from a copy."""
        total = _Sum()
        for head in self.heads.values():
            total.add("head", head.execution_id, head.revision, head.digest, head.status)
        for item in self.items.values():
            total.add("item", item.item_id, _kept_status(item), item.execution_id)
        for path, (_, keys, entries) in self.scopes.items():
            if keys:
                total.add("scope", path, keys, entries % 2**256)
        return total.hex()

    @property
    def counts(self) -> dict[str, int]:
        """The number of records of each kind."""
        commits = sum(head.revision - head.base_revision for head in self.heads.values())
        return {
            "executions": len(self.heads),
            "commits": commits,
            "keys": sum(keys for _, keys, _ in self.scopes.values()),
            "items": len(self.items),
        }


def _shape(item: Item) -> tuple[object, ...]:
    return item.status, item.attempts, item.execution_id, item.fence, item.run_at_ms


def _kept_status(item: Item) -> str:
    """Return the status that a restored item has: a claim ends with its store."""
    return ItemStatus.QUEUED if item.status is ItemStatus.CLAIMED else item.status


def create_backup(store: Store, folder: Path, workspace: str | None, new_id: NewId, keep: int = 7) -> BackupReport:
    """Make a backup into a folder. A folder that has a backup gets the commits since then, and the state and items of now.

    - ``keep``: how many earlier backups of the folder stay, to be restored as the store was then.

    Raise ``InvalidInput`` for a folder that cannot be used, ``InvalidBackup`` if the backup in it is damaged or of another
    workspace, and ``Conflict`` if a store on Redis is written to all the time. The backup in the folder stays as it was then.
    """
    if workspace is not None:
        check_key(workspace, "a workspace id")
    if type(keep) is not int or keep < 0:
        raise InvalidInput(f"keep is the number of earlier backups to keep, 0 or more, not {keep!r}")
    earlier = _earlier(folder, workspace)
    remove_unnamed(folder, None)
    generation = 1 if earlier is None else earlier.generation + 1
    chains, values = SegmentWriter(folder, generation, "chains"), SegmentWriter(folder, generation, "moment")
    kept: tuple[Segment, ...] = ()
    store = as_stored(store)
    is_still = store.capabilities().has_consistent_view
    with store.consistent_view() as reads:
        began_ms = store.now_ms()
        moment = Moment(reads, workspace, chains, values, is_still=is_still)
        if earlier is not None:
            kept = tuple(each for each in earlier.segments if each.kind == "chains")
            moment.copied = {head.execution_id: (head.revision, head.digest) for head in _heads_of(folder, earlier)}
        moment.find()
        _write_rest(reads, moment, values, workspace)
    chains.flush()
    values.flush()
    segments = (*kept, *chains.segments, *values.segments)
    manifest = Manifest(
        backup_id=new_id() if earlier is None else earlier.backup_id,
        generation=generation,
        created_ms=began_ms if is_still else store.now_ms(),
        workspace=workspace,
        segments=segments,
        scopes={path: revision for path, (revision, _, _) in moment.scopes.items()},
        counts=moment.counts,
        digest=moment.digest,
    )
    write_manifest(folder, manifest, earlier)
    remove_unnamed(folder, keep)
    return BackupReport(
        backup_id=manifest.backup_id,
        generation=generation,
        counts=manifest.counts,
        new_commits=moment.new_commits,
        size=sum(each.size for each in segments),
        digest=manifest.digest,
    )


def _earlier(folder: Path, workspace: str | None) -> Manifest | None:
    """Return the manifest of the backup that a folder has; None for a folder that is new or empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise InvalidInput(f"the folder {str(folder)!r} cannot be used: {error.strerror}") from None
    if MANIFEST in names:
        earlier = read_manifest(folder)
        if earlier.workspace != workspace:
            raise InvalidBackup(f"the backup in {str(folder)!r} is of workspace {earlier.workspace!r}; name another folder")
        return earlier
    if any(not name.endswith((".jsonl.z", ".new")) for name in names):
        raise InvalidInput(f"the folder {str(folder)!r} has other files and no backup; name a new folder")
    return None


def _heads_of(folder: Path, manifest: Manifest) -> Iterator[Head]:
    for segment in manifest.segments:
        if segment.kind == "moment":
            for record in read_segment(folder, segment):
                if isinstance(record, HeadRecord):
                    yield record.head


def _write_rest(store: StoreReads, moment: Moment, values: SegmentWriter, workspace: str | None) -> None:
    for tier in store.tiers():
        values.write(TierRecord(tier))
    for each in store.workspaces():
        if workspace in (None, each.workspace_id):
            values.write(WorkspaceRecord(each))
    if workspace is None:
        for settings in store.queues():
            values.write(QueueRecord(settings))
    for head in moment.heads.values():
        values.write(HeadRecord(head))
    for item in sorted(moment.items.values(), key=lambda item: item.number):
        values.write(ItemRecord(item))


# Checking.


def time_of(at: datetime | None) -> int | None:
    """Return a time in milliseconds since 1970. Raise ``InvalidInput`` for one without a time zone."""
    if at is None:
        return None
    given: object = at
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise InvalidInput(f"at is a datetime with a time zone, such as datetime.now(UTC), not {given!r}")
    return to_ms(given)


class Chain(msgspec.Struct):
    """The receipts of one execution in a backup."""

    base: StoredSnapshot | None = None
    commits: list[StoredCommit] = []

    @property
    def last(self) -> int:
        """The revision that it ends with; -1 for an empty one."""
        return self.commits[-1].revision if self.commits else -1 if self.base is None else self.base.revision


def joined(before: Chain | None, piece: Chain) -> Chain:
    """Return a chain with its next piece. A piece with a base begins anew: what was before it was archived."""
    if before is None or piece.base is not None:
        return piece
    return Chain(before.base, [*before.commits, *(each for each in piece.commits if each.revision > before.last)])


def chains_of(folder: Path, manifest: Manifest) -> Iterator[tuple[str, Chain]]:
    """Return the pieces of chains in a backup, in the order in which they were copied."""
    for segment in manifest.segments:
        if segment.kind != "chains":
            continue
        name, chain = "", Chain()
        for record in read_segment(folder, segment):
            match record:
                case ChainRecord():
                    if name:
                        yield name, chain
                    name, chain = record.execution_id, Chain(record.base)
                case CommitRecord():
                    header = msgspec.json.decode(record.receipt, type=_Revision)
                    chain.commits.append(StoredCommit(header.revision, bytes(record.receipt), bytes(record.mutations)))
                case _:
                    raise InvalidBackup(f"segment {segment.name} has a record that is not of a chain")
        if name:
            yield name, chain


class _Revision(msgspec.Struct):
    revision: int


def list_backups(folder: str | Path) -> list[BackupSummary]:
    """Return the backups that a folder keeps, the oldest first.

    - ``folder``: the folder.

    Raise ``InvalidBackup`` if it has none that can be read.
    """
    return [
        BackupSummary(each.backup_id, each.generation, from_ms(each.created_ms), each.counts, each.digest)
        for each in manifests(Path(folder))
    ]


def verify_backup(folder: str | Path, *, key: bytes | None = None, at: datetime | None = None) -> BackupVerification:
    """Check a backup without restoring it: every checksum, and each receipt chain up to the head that it ends with.

    - ``folder``: the folder of the backup.
    - ``key``: the key that the heads were signed with; None to check no signatures.
    - ``at``: check the last backup that was made by this time; None: the newest.

    Return what was found. Raise ``InvalidBackup`` if there is no manifest that can be read.

    Example:

        assert verify_backup("backups/monday").ok
    """
    place = Path(folder)
    manifest = read_manifest(place, time_of(at))
    try:
        heads = {head.execution_id: head for head in _heads_of(place, manifest)}
        count = len(heads)
        problems: list[str] = []
        receipts = 0
        open_chains: dict[str, Chain] = {}
        for name, piece in chains_of(place, manifest):
            head = heads.get(name)
            if head is None:
                continue  # deleted since it was copied
            chain = joined(open_chains.pop(name, None), piece)
            if chain.last < head.revision:
                open_chains[name] = chain  # another segment goes on with it
                continue
            del heads[name]
            found = verify(head, chain.base, chain.commits, key=key, has_row=False)
            receipts += found.receipts
            problems += [f"execution {name!r}: {problem}" for problem in found.problems]
        problems += [f"execution {name!r}: its receipts end before revision {head.revision}" for name, head in heads.items()]
        keys = items = 0
        for segment in manifest.segments:
            if segment.kind == "moment":
                for record in read_segment(place, segment):
                    keys += isinstance(record, EntryRecord)
                    items += isinstance(record, ItemRecord)
    except InvalidBackup as error:
        return BackupVerification(ok=False, problems=(error.message,))
    if count != (counted := manifest.counts.get("executions")):
        problems.append(f"the manifest counts {counted} executions, and there are {count}")
    return BackupVerification(
        ok=not problems, problems=tuple(problems), executions=count, receipts=receipts, keys=keys, items=items
    )
