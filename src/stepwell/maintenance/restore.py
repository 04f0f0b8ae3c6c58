"""Restore a backup into a store that has nothing, through the contract: every receipt as it was, and nothing runs yet.

What is restored is held: executions do not come due, and workspaces are paused, until ``resume_restored``. Otherwise work that went
on in the old store after the backup was made would be done once more. A mark in the store says which backup is being restored, so
that a restore that was interrupted is continued by starting it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from stepwell.clock import to_ms
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import AlreadyExists, Corrupted, InvalidBackup, InvalidInput, NotFound, StepwellError
from stepwell.fault_points import fault
from stepwell.maintenance.backup import Chain, Moment, chains_of, joined, time_of, verify_backup
from stepwell.maintenance.backup_files import (
    EntryRecord,
    HeadRecord,
    ItemRecord,
    Manifest,
    QueueRecord,
    ScopeRecord,
    TierRecord,
    WorkspaceRecord,
    read_manifest,
    read_segment,
)
from stepwell.model.commit import Adoption, Commit, Creation, Head, Loaded, Outcome, StateBatch, StoredCommit, Unit, Written
from stepwell.model.data_key import SEALING
from stepwell.model.execution_state import ONLY, sha256_hex
from stepwell.model.ids import check_key, revision_in
from stepwell.model.mutation import Create, Restore, SetStatus, decode_mutations
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import (
    DEFAULT_QUEUE,
    Enqueue,
    Item,
    ItemMark,
    ItemQuery,
    ItemStatus,
    NewItem,
    PutQueue,
    PutTier,
    PutWorkspace,
    Workspace,
)
from stepwell.model.receipt import decode_header
from stepwell.model.receipt_chain import read_proof, rebuild, verify_proof
from stepwell.model.record import MANUAL, Metadata, decode_metadata, decode_status
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import Delete, Put, StateOp
from stepwell.model.sealed_value import is_sealed
from stepwell.model.snapshot import StoredSnapshot, stored_state
from stepwell.model.status import FINAL
from stepwell.model.value import canonical, decode
from stepwell.pipeline.operations import Operation, read, read_slowly, write_many, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.state.executions import is_driven_by_engine
from stepwell.stores.sealed_store import SealedStore, joined_settings

__all__ = ["RestoreReport", "import_run", "restore_backup", "resume_restored"]

_MARK = internal_path("restore", DEFAULT_WORKSPACE)
_STATE, _HELD, _PAUSED = "backup", "held/", "workspace/"
_BATCH = 1_000
_OPS = 200
_UNLIMITED = "unlimited"
_KEYS = ("data_key/", "sealing/")
"""Scopes that are needed to read what comes after them."""


class RestoreReport(PlainRecord, frozen=True, kw_only=True):
    """A backup that was restored."""

    backup_id: str
    counts: dict[str, int]
    """How many ``executions``, ``commits``, ``keys`` and ``items`` the store has now."""
    digest: str
    """The digest of everything in the store, which is that of the backup."""
    held: int
    """How many executions wait for ``resume_restored``."""


def restore_backup(
    store: Store, folder: Path, *, key: bytes | None, sealed: SealedStore | None = None, at: datetime | None = None
) -> Operation[RestoreReport]:
    """Restore a backup into a store that has nothing of it, and compare counts and digests at the end.

    ``sealed`` is the same store as it opens sealed values; they are restored as the backup has them. ``at`` restores the last
    backup that was made by this time.

    Raise ``InvalidBackup`` for a damaged backup before anything is written, ``AlreadyExists`` for a store that has other data, and
    ``Corrupted`` if what was restored is not what the backup has.
    """
    with nullcontext() if sealed is None else sealed.passing():
        return (yield from _restore(store, folder, key, sealed, at))


def _restore(
    store: Store, folder: Path, key: bytes | None, sealed: SealedStore | None, at: datetime | None
) -> Operation[RestoreReport]:
    manifest = yield from read(lambda: read_manifest(folder, time_of(at)))
    found = yield from read_slowly(lambda: verify_backup(folder, key=key, at=at))
    if not found.ok:
        raise InvalidBackup("; ".join(found.problems[:10]))
    restoring = _Restoring(store, folder, manifest, (yield from read(store.now_ms)), sealed)
    yield from read(restoring.check_keys)
    if not (yield from read(lambda: _is_marked(store, manifest))):
        yield from read(lambda: _check_empty(store, manifest))
        mark = Put(_MARK, _STATE, msgspec.Raw(canonical({"backup_id": manifest.backup_id, "is_complete": False})))
        yield from write_or_raise(StateBatch((mark,)))
    for batch in restoring.batches():
        outcomes = yield from write_many(batch)
        _check(batch, outcomes)
        fault("restore.batch_written")
    moment = yield from read_slowly(lambda: _restored(store, manifest))
    if moment.digest != manifest.digest:
        raise Corrupted(
            f"what was restored is not what the backup has ({moment.counts}, not {manifest.counts}); restore it into a new store"
        )
    done = Put(_MARK, _STATE, msgspec.Raw(canonical({"backup_id": manifest.backup_id, "is_complete": True})))
    yield from write_or_raise(StateBatch((done,)))
    return RestoreReport(backup_id=manifest.backup_id, counts=moment.counts, digest=moment.digest, held=restoring.held)


def _restored(store: Store, manifest: Manifest) -> Moment:
    with store.consistent_view() as reads:
        moment = Moment(reads, manifest.workspace, is_still=store.capabilities().has_consistent_view)
        moment.find()
    return moment


def resume_restored(store: Store) -> Operation[int]:
    """Let everything that a restore holds go on: executions come due, and workspaces that were not paused start their items.

    Return how many executions were held. Raise ``NotFound`` if no restore holds anything.
    """
    mark = yield from read(lambda: store.entries(_MARK, (_STATE,)))
    if _STATE not in mark:
        raise NotFound("nothing in this store was restored and waits; there is nothing to resume")
    if not decode(mark[_STATE].data or b"{}").get("is_complete"):
        raise InvalidInput("the restore into this store was interrupted; start it again, and resume when it is done")
    count = 0
    while rows := (yield from read(lambda: store.scan(_MARK, prefix=_HELD, limit=_OPS))):
        names = [key.removeprefix(_HELD) for key, _ in rows]
        yield from write_or_raise(StateBatch(tuple(Delete(_MARK, key) for key, _ in rows), nudges=tuple(names)))
        count += len(names)
    for key, _ in (yield from read(lambda: list(all_entries(store, _MARK, prefix=_PAUSED)))):
        yield from _start_workspace(store, key.removeprefix(_PAUSED))
    rest = yield from read(lambda: [key for key, _ in all_entries(store, _MARK)])
    yield from write_or_raise(StateBatch(tuple(Delete(_MARK, each) for each in rest)))
    return count


def _start_workspace(store: Store, name: str) -> Operation[None]:
    for each in (yield from read(store.workspaces)):
        if each.workspace_id == name:
            yield from write_or_raise(PutWorkspace(msgspec.structs.replace(each, is_paused=False)))


def _is_marked(store: Store, manifest: Manifest) -> bool:
    found = store.entries(_MARK, (_STATE,))
    if _STATE not in found:
        return False
    said = decode(found[_STATE].data or b"{}")
    if said.get("backup_id") != manifest.backup_id or said.get("is_complete"):
        raise AlreadyExists("another backup was restored into this store and waits to be resumed; restore into a new store")
    return True


def _check_empty(store: Store, manifest: Manifest) -> None:
    workspace = manifest.workspace
    paths = [path for path in store.scopes(workspace) if not path.startswith(("worker/", "restore/", "sealing/"))]
    if workspace is not None:
        paths = [path for path in paths if path != internal_path("definition", DEFAULT_WORKSPACE)]
    filled = [path for path in paths if store.totals(path).keys]
    has_runs = store.find(ExecutionQuery(workspace_id=workspace, limit=1))
    if filled or has_runs or store.items(ItemQuery(workspace_id=workspace, limit=1)):
        what = "this store" if workspace is None else f"workspace {workspace!r} of this store"
        raise AlreadyExists(f"{what} has data already; a backup is restored into a new store, so that nothing is overwritten")


def _check(units: Sequence[Unit], outcomes: Sequence[Outcome]) -> None:
    for unit, outcome in zip(units, outcomes, strict=True):
        if isinstance(outcome, AlreadyExists) and isinstance(unit, Adoption):
            continue  # an interrupted restore had come this far
        if isinstance(outcome, StepwellError):
            raise outcome
        if isinstance(outcome, Written) and isinstance(unit, Enqueue):
            for answer in outcome.answers:
                if isinstance(answer, StepwellError):
                    raise answer


def import_run(store: Store, proof: bytes, *, key: bytes | None, is_encrypting: bool, resumes: bool) -> Operation[Head]:
    """Take in a run from its proof, with every receipt as it was, and return its row. The same call finishes an interrupted one.

    A run that has not ended is held until it gets a signal, unless it ``resumes``.

    Raise ``InvalidInput`` for a broken proof, and for a run that cannot live in this store; ``AlreadyExists`` if the store has
    another history under its id.
    """
    head, chain, identity = _checked_run(proof, key, is_encrypting=is_encrypting)
    known = yield from read(lambda: store.head(head.execution_id))
    if known is not None and not _is_begun(known, chain):
        raise AlreadyExists(f"execution {head.execution_id!r} is in this store already, with another history")
    units: list[Unit] = [] if chain.base is None else [_adoption(head, chain, chain.base, chain.base)]
    units += [_commit_of(head, row)[0] for row in chain.commits]
    for start in range(0, len(units), _BATCH):
        batch = units[start : start + _BATCH]
        _check(batch, (yield from write_many(batch)))
        fault("import.batch_written")
    if resumes and head.status not in FINAL and is_driven_by_engine(identity):
        yield from write_or_raise(StateBatch((), nudges=(head.execution_id,)))
    return head


def _checked_run(proof: bytes, key: bytes | None, *, is_encrypting: bool) -> tuple[Head, Chain, Metadata]:
    checked = verify_proof(proof, key=key)
    if not checked.ok:
        raise InvalidInput(f"the proof is broken, and nothing was written: {'; '.join(checked.problems[:3])}")
    if checked.unreadable:
        raise InvalidInput("the proof is of an encrypted run, whose data key is not in it; move it by a backup, which has the key")
    if is_encrypting:
        raise InvalidInput(
            "the receipts of the proof name values that are not encrypted, and this well stores no such values; import it into a "
            "well without encryption"
        )
    head, base, rows = read_proof(proof)
    check_key(head.execution_id, "an execution id")
    check_key(head.workspace_id, "a workspace id")
    chain = Chain(base, list(rows))
    state = rebuild(Loaded(head, base, chain.commits))
    who, status = state.identity, str(decode_status(state.sections["status"][ONLY]))
    if status not in FINAL and (who.item_id is not None or who.engine is not None):
        raise InvalidInput(
            f"execution {head.execution_id!r} has not ended, and has a queue item or another engine, which a proof does not hold; "
            "move its workspace by a backup"
        )
    more = {"workflow_id": who.workflow_id, "version": who.version, "parent_id": who.parent_id, "status": status}
    return msgspec.structs.replace(head, created_ms=to_ms(who.started_at), **more), chain, who


def _is_begun(known: Head, chain: Chain) -> bool:
    """Return whether an execution of a store is a beginning of a chain, or all of it."""
    if chain.base is not None and known.revision == chain.base.revision:
        return known.digest == stored_state(chain.base).receipt
    return any(row.revision == known.revision and sha256_hex(row.header) == known.digest for row in chain.commits)


class _Restoring:
    """The writes of a restore, in batches, in an order in which each refers only to earlier ones."""

    def __init__(self, store: Store, folder: Path, manifest: Manifest, now_ms: int, sealed: SealedStore | None) -> None:
        self._store, self._folder, self._manifest, self._now_ms, self._sealed = store, folder, manifest, now_ms, sealed
        self._workspaces: list[Workspace] = []
        self._heads: dict[str, Head] = {}
        self._items: list[Item] = []
        self.held = 0

    def check_keys(self) -> None:
        """Raise ``EncryptionKeyMissing`` if the keys of this well do not open what the backup has."""
        for _ in self._scopes(are_keys=True):
            pass

    def batches(self) -> Iterator[list[Unit]]:
        """Return the batches."""
        batch: list[Unit] = []
        for unit in self._units():
            if unit is not None:
                batch.append(unit)
            if len(batch) >= _BATCH or (unit is None and batch):
                yield batch
                batch = []
        if batch:
            yield batch

    def _units(self) -> Iterator[Unit | None]:
        """Return the writes; None before what needs all earlier ones to be in the store."""
        yield from self._settings()
        yield from self._scopes(are_keys=True)
        yield None
        yield from self._executions()
        yield from self._scopes(are_keys=False)
        yield from self._queue_items()
        # At the end, since until then no limit of a tier may refuse what was there before.
        for each in self._workspaces:
            yield PutWorkspace(msgspec.structs.replace(each, is_paused=True))

    def _settings(self) -> Iterator[Unit]:
        for record in self._records():
            match record:
                case TierRecord():
                    yield PutTier(record.tier)
                case WorkspaceRecord():
                    self._workspaces.append(record.workspace)
                case QueueRecord():
                    yield PutQueue(record.settings)
                case HeadRecord():
                    self._heads[record.head.execution_id] = record.head
                case ItemRecord():
                    self._items.append(record.item)
                case _:
                    pass
        for each in self._workspaces:
            yield PutWorkspace(msgspec.structs.replace(each, tier=_UNLIMITED, is_paused=True, overrides={}))
            if not each.is_paused:
                yield _noted(_PAUSED + each.workspace_id)

    def _records(self) -> Iterator[Any]:
        for segment in self._manifest.segments:
            if segment.kind == "moment":
                yield from read_segment(self._folder, segment)

    # Executions.

    def _executions(self) -> Iterator[Unit]:
        waiting: dict[str, Chain] = {}
        for name, piece in chains_of(self._folder, self._manifest):
            head = self._heads.get(name)
            if head is None:
                continue  # deleted before the backup's moment
            chain = joined(waiting.pop(name, None), piece)
            if chain.last < head.revision:
                waiting[name] = chain
                continue
            yield from self._history(head, chain)

    def _history(self, head: Head, chain: Chain) -> Iterator[Unit]:
        identity: Metadata | None = None
        if chain.base is not None:
            base = self._opened(chain.base, head)
            identity = None if base.is_dark else stored_state(base).identity
            yield _adoption(head, chain, chain.base, base)
        for row in chain.commits:
            if row.revision > head.revision:
                break
            unit, named = _commit_of(head, row if self._sealed is None else self._sealed.opened_row(row))
            identity = named or identity
            yield unit
        # Without the key of its content, all that is known is its row; a run that is driven by hand is not woken by a nudge.
        is_driven = head.workflow_id != MANUAL if identity is None else is_driven_by_engine(identity)
        if head.status not in FINAL and is_driven:
            self.held += 1
            yield _noted(_HELD + head.execution_id)

    def _opened(self, base: StoredSnapshot, head: Head) -> StoredSnapshot:
        return base if self._sealed is None else self._sealed.opened_snapshot(base, head.workspace_id, head.execution_id)

    # Scoped state.

    def _scopes(self, *, are_keys: bool) -> Iterator[Unit]:
        path, is_wanted, ops = "", False, list[StateOp]()
        for record in self._records():
            if isinstance(record, ScopeRecord):
                path, is_wanted = record.path, self._manifest.scopes.get(record.path) == record.revision
                is_wanted = is_wanted and path.startswith(_KEYS) == are_keys
            elif isinstance(record, EntryRecord) and is_wanted and (record.expires_ms or self._now_ms + 1) > self._now_ms:
                ops.append(_put(path, self._with_own_keys(record) if path == SEALING else record, self._now_ms))
                if len(ops) == _OPS:
                    yield StateBatch(tuple(ops))
                    ops = []
        if ops:
            yield StateBatch(tuple(ops))

    def _with_own_keys(self, record: EntryRecord) -> EntryRecord:
        """Return the settings of sealing with those that the store has already: it may hold other workspaces."""
        ring = None if self._sealed is None or self._sealed.keys is None else self._sealed.keys.ring
        value = joined_settings(self._store, ring, bytes(record.value))
        return msgspec.structs.replace(record, value=msgspec.Raw(value))

    # The queue.

    def _queue_items(self) -> Iterator[Unit]:
        for item in self._items:
            is_open = item.status is ItemStatus.QUEUED
            yield Enqueue(
                (
                    NewItem(
                        item_id=item.item_id,
                        workspace_id=item.workspace_id,
                        workflow_id=item.workflow_id,
                        version=item.version,
                        execution_id=item.execution_id,
                        input=item.input,
                        queue=item.queue or DEFAULT_QUEUE,
                        priority=item.priority,
                        run_at_ms=item.run_at_ms,
                        key=item.key,
                        body_digest=item.body_digest,
                        singleton=item.singleton,
                        debounce=item.debounce if is_open else None,
                        max_attempts=item.max_attempts,
                    ),
                )
            )
            if not is_open and item.status is not ItemStatus.CLAIMED:
                yield ItemMark(item.item_id, item.status, error=item.error)


def _adoption(head: Head, chain: Chain, stored: StoredSnapshot, opened: StoredSnapshot) -> Adoption:
    """Return the write of the snapshot that a chain starts from."""
    status, digest = head.status, _digest_at_base(head, chain)
    if not opened.is_dark:
        state = stored_state(opened)
        status, digest = str(decode_status(state.sections["status"][ONLY])), state.receipt
    return Adoption(
        execution_id=head.execution_id,
        workspace_id=head.workspace_id,
        creation=Creation(head.workflow_id, head.version, head.parent_id),
        status=status,
        digest=digest,
        snapshot=stored,
        signature=None if chain.commits else head.signature,
        adopted_ms=head.created_ms,
    )


def _noted(key: str) -> StateBatch:
    return StateBatch((Put(_MARK, key, msgspec.Raw(b"true")),))


def _put(path: str, record: EntryRecord, now_ms: int) -> Put:
    """Return the write of an entry: one with a fixed TTL ends when it would have ended, a sliding one begins anew."""
    if record.expires_ms is None:
        return Put(path, record.key, record.value, version=record.version)
    ttl_ms = record.ttl_ms if record.sliding else record.expires_ms - now_ms
    return Put(path, record.key, record.value, ttl_ms=ttl_ms, sliding=record.sliding, version=record.version)


def _commit_of(head: Head, row: StoredCommit) -> tuple[Commit, Metadata | None]:
    """Return a stored commit as one to write, and the identity that it gives the execution, if it does."""
    header = decode_header(row.header)
    status: str | None = None
    identity: Metadata | None = None
    is_dark = is_sealed(row.body) and not isinstance(row.opened, bytes)
    if is_dark and header.revision == head.revision:
        status = head.status  # the rows between have another one for as long as the restore lasts
    for mutation in [] if is_dark else decode_mutations(row.body if row.opened is None else row.opened):
        match mutation:
            case SetStatus():
                status = mutation.status
            case Create():
                identity = decode_metadata(bytes(mutation.metadata))
            case Restore() if ONLY in mutation.entries.get("identity", {}):
                identity = decode_metadata(bytes(mutation.entries["identity"][ONLY]))
                status = _status_in(mutation.entries) or status
            case Restore():
                status = _status_in(mutation.entries) or status
            case _:
                pass
    commit = Commit(
        head.execution_id,
        head.workspace_id,
        header.commit_id,
        header.revision,
        header.previous,
        sha256_hex(row.header),
        row.header,
        row.body,
        to_ms(header.committed_at),
        status,
        signature=head.signature if header.revision == head.revision else None,
        creation=Creation(head.workflow_id, head.version, head.parent_id) if header.revision == 0 else None,
        is_named=revision_in(header.commit_id) != header.revision,
    )
    return commit, identity


def _digest_at_base(head: Head, chain: Chain) -> str:
    """Return the digest of the receipt at the snapshot that a chain starts from: the next receipt has it."""
    return decode_header(chain.commits[0].header).previous if chain.commits else head.digest


def _status_in(entries: dict[str, dict[str, msgspec.Raw]]) -> str | None:
    data = entries.get("status", {}).get(ONLY)
    return None if data is None else str(decode_status(bytes(data)))
