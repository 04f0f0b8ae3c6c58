"""Find and erase the data of a subject, and rotate the keys that wrap data keys.

To erase is to destroy the subject's data key: values stay where they are, encrypted, and every chain of receipts still verifies.
Each step lands in one transaction, and the last one destroys the key, removes the subject's name and writes the receipt together.
An erasure that was interrupted is finished by the same call; until then nothing new is stored about the subject.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from hashlib import sha256
from urllib.parse import unquote

import msgspec

from stepwell.clock import from_ms
from stepwell.contract.store import Store
from stepwell.errors import Conflict, NotFound
from stepwell.fault_points import fault
from stepwell.model.commit import Head, Rest, StateBatch
from stepwell.model.data_key import (
    binding_path,
    data_key_path,
    decode_key,
    encode_key,
    erasure_path,
    rewrap,
    subject_path,
)
from stepwell.model.execution_state import ONLY
from stepwell.model.ids import check_key
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import Item, ItemStatus
from stepwell.model.queue_lifecycle import cancelled_in_wait
from stepwell.model.record import decode_status
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path, is_internal
from stepwell.model.scoped_operations import Clear, Delete, Put, StateOp
from stepwell.model.sealed_value import is_sealed, read_sealed
from stepwell.model.status import FINAL
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.queue.operations import QueueOperations
from stepwell.state.executions import CommitTerms, Executions
from stepwell.state.history import ExecutionSummary
from stepwell.state.subjects import SubjectRow, Subjects, encode_subject, index_rows, read_subject

__all__ = ["Erasing", "ErasureReceipt", "RotationReport", "SubjectData", "rotate_keys"]

_BATCH = 100
_PAGE = 1_000
_MOST_TRIES = 20
_WAITING = frozenset((ItemStatus.QUEUED, ItemStatus.CLAIMED))


class SubjectData(PlainRecord, frozen=True, kw_only=True):
    """The data of a subject in one workspace."""

    subject: str
    workspace: str
    runs: tuple[ExecutionSummary, ...]
    items: tuple[str, ...]
    """The ids of queue items."""
    scopes: tuple[str, ...]
    """The paths of scopes of state."""


class ErasureReceipt(PlainRecord, frozen=True, kw_only=True):
    """Proof that the data of a subject was erased. It does not have the subject's name, but can be found by it."""

    workspace: str
    subject_digest: str
    """SHA-256 of the subject's name."""
    data_key: str
    """The id of the data key that was destroyed."""
    erased_at: datetime
    runs: int
    items: int
    scopes: int
    digest: str = ""
    """SHA-256 of all the above."""
    signature: str | None = None
    """HMAC of the digest with the well's signing key, if it has one, in hex."""

    @classmethod
    def signed(cls, receipt: ErasureReceipt, key: bytes | None) -> ErasureReceipt:
        """Return the receipt with its digest and signature."""
        digest = sha256(_encode(msgspec.structs.replace(receipt, digest="", signature=None))).hexdigest()
        return msgspec.structs.replace(
            receipt, digest=digest, signature=None if key is None else hmac.digest(key, digest.encode(), "sha256").hex()
        )


class RotationReport(PlainRecord, frozen=True, kw_only=True):
    """A rotation of keys."""

    active: str
    """The id of the key of the ring that wraps every data key now."""
    rewrapped: int
    """How many data keys were wrapped anew."""
    unchanged: int
    """How many had that key already."""


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode_receipt = msgspec.json.Decoder(ErasureReceipt).decode


class Erasing:
    """Finds and erases subjects in one store."""

    def __init__(self, store: Store, executions: Executions, queue: QueueOperations, signing_key: bytes | None) -> None:
        self._store, self._executions, self._queue, self._key = store, executions, queue, signing_key

    @property
    def _subjects(self) -> Subjects:
        return self._executions.subjects

    def find(self, subject: str, workspace: str | None) -> Operation[list[SubjectData]]:
        """Return what is stored about a subject, in one workspace or in all."""
        found: list[SubjectData] = []
        for name, row in (yield from self._rows(subject, workspace)):
            runs, items, scopes = yield from self._listed(name, row.data_key)
            summaries = tuple(ExecutionSummary.of(head) for head in runs)
            ids = tuple(item.item_id for item in items)
            found.append(SubjectData(subject=subject, workspace=name, runs=summaries, items=ids, scopes=tuple(scopes)))
        return found

    def _rows(self, subject: str, workspace: str | None) -> Operation[list[tuple[str, SubjectRow]]]:
        _ = self._subjects.keys  # refuses a well without encryption
        check_key(subject, "a subject")
        if workspace is not None:
            check_key(workspace, "a workspace id")
        names = [workspace] if workspace is not None else (yield from read(lambda: self._workspaces(subject)))
        found: list[tuple[str, SubjectRow]] = []
        for name in names:
            known = yield from read(lambda name=name: read_subject(self._store, name, subject))
            if known is not None:
                found.append((name, known[0]))
        return found

    def _workspaces(self, subject: str) -> list[str]:
        """Return the workspaces that may know a subject."""
        names = {DEFAULT_WORKSPACE: None, **{each.workspace_id: None for each in self._store.workspaces()}}
        # A workspace of runs that are driven by hand need not be among those of the queue.
        paths = (path for path in self._store.scopes(DEFAULT_WORKSPACE) if path.startswith("subject/"))
        for path in paths:
            names[_owner(path)] = None
        return [name for name in names if read_subject(self._store, name, subject) is not None]

    def _listed(self, workspace: str, data_key: str) -> Operation[tuple[list[Head], list[Item], list[str]]]:
        names = yield from read(lambda: [name for _, name, _ in index_rows(self._store, workspace, data_key)])
        return (yield from self._resolved(names))

    def _resolved(self, names: list[str]) -> Operation[tuple[list[Head], list[Item], list[str]]]:
        """Return the runs, items and scopes of names in an index that are still there."""
        runs: dict[str, Head] = {}
        items: list[Item] = []
        scopes: list[str] = []
        for name in names:
            kind, _, rest = name.partition("/")
            if kind == "scope":
                if not is_internal(rest):
                    scopes.append(rest)
                continue
            run_id = rest
            if kind == "item":
                item = yield from read(lambda rest=rest: self._store.item(rest))
                if item is None:
                    continue
                items.append(item)
                run_id = item.execution_id
            head = yield from read(lambda run_id=run_id: self._store.head(run_id))
            if head is not None:
                runs[head.execution_id] = head
        return list(runs.values()), items, scopes

    def erase(self, subject: str, workspace: str | None, *, cancels: bool) -> Operation[list[ErasureReceipt]]:
        """Erase a subject in one workspace or in all, and return the receipts.

        Raise ``NotFound`` if nothing is stored about it, and, unless it ``cancels``, ``Conflict`` while runs of it have not ended.
        """
        rows = yield from self._rows(subject, workspace)
        if not rows:
            raise NotFound(f"nothing is stored about subject {subject!r}; was it erased already? `stepwell erase --list` shows it")
        for name, row in rows:
            runs, items, _ = yield from self._listed(name, row.data_key)
            live = [head.execution_id for head in runs if head.status not in FINAL]
            live += [item.item_id for item in items if item.status in _WAITING]
            if live and not cancels:
                raise Conflict(
                    f"subject {subject!r} has {len(live)} runs in workspace {name!r} that have not ended, such as {live[0]!r}; "
                    "wait for them or cancel them first, or let the erasure cancel them"
                )
        receipts: list[ErasureReceipt] = []
        for name, _ in rows:
            receipts.append((yield from self._erase_in(name, subject)))
        return receipts

    def _erase_in(self, workspace: str, subject: str) -> Operation[ErasureReceipt]:
        row = yield from self._marked(workspace, subject)
        while names := (yield from read(lambda row=row: self._next_names(workspace, row.data_key))):
            row = yield from self._clean(workspace, subject, row, names)
            fault("erasure.batch_written")
        return (yield from self._destroy(workspace, subject, row))

    def _marked(self, workspace: str, subject: str) -> Operation[SubjectRow]:
        """Note that a subject is being erased, so that nothing new is stored about it."""
        for _ in range(_MOST_TRIES):
            known = yield from read(lambda: read_subject(self._store, workspace, subject))
            if known is None:
                raise Conflict(f"subject {subject!r} was erased by another process at this moment")
            row, revision = known
            if row.is_erasing:
                return row
            row = msgspec.structs.replace(row, is_erasing=True)
            try:
                yield from write_or_raise(StateBatch((_put(subject_path(workspace, subject), subject, row, revision),)))
            except Conflict:
                continue
            fault("erasure.marked")
            return row
        raise Conflict(f"subject {subject!r} changes all the time; try again")

    def _next_names(self, workspace: str, data_key: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for path, name, _ in index_rows(self._store, workspace, data_key):
            found.append((path, name))
            if len(found) == _BATCH:
                break
        return found

    def _clean(self, workspace: str, subject: str, row: SubjectRow, names: list[tuple[str, str]]) -> Operation[SubjectRow]:
        """End runs, empty inboxes and unbind scopes; then take them out of the index."""
        runs, items, _ = yield from self._resolved([name for _, name in names])
        for item in items:
            if item.status in _WAITING:
                yield from self._queue.cancel(item.item_id)
        ops: list[StateOp] = []
        for head in runs:
            if head.status not in FINAL:
                yield from self._end(head.execution_id)
            self._executions.forget(head.execution_id)
            own = (internal_path(kind, head.workspace_id, head.execution_id) for kind in ("inbox", "late_result", "child_places"))
            payloads = internal_path("engine_payload", DEFAULT_WORKSPACE, head.execution_id)
            for path in (*own, payloads):
                if (yield from read(partial(self._store.totals, path))).keys:
                    ops.append(Clear(path))
        scopes = [name.partition("/")[2] for _, name in names if name.startswith("scope/")]
        for path in scopes:
            yield from self._empty(path, row.data_key)
            ops.append(Delete(binding_path(path), path))
        row = msgspec.structs.replace(
            row,
            runs=row.runs + sum(name.startswith("run/") for _, name in names),
            items=row.items + sum(name.startswith("item/") for _, name in names),
            scopes=row.scopes + sum(not is_internal(path) for path in scopes),
        )
        known = yield from read(lambda: read_subject(self._store, workspace, subject))
        revision = 0 if known is None else known[1]
        ops += [_put(subject_path(workspace, subject), subject, row, revision), *(Delete(path, name) for path, name in names)]
        yield from write_or_raise(StateBatch(tuple(ops)))
        return row

    def _end(self, execution_id: str) -> Operation[None]:
        """End a live run as CANCELLED, by a commit of its own. Its worker finds that it has ended."""
        for attempt in range(_MOST_TRIES):
            session = yield from self._executions.begin(execution_id, CommitTerms(rest=Rest(is_final=True)))
            with session.live.lock:
                state = session.live.state
                if decode_status(state.sections["status"][ONLY]) in FINAL:
                    return
                batch = cancelled_in_wait(state, "it was cancelled, since the data of its subject was erased")
            try:
                yield from self._executions.commit(session, batch)
            except Conflict:
                if attempt == _MOST_TRIES - 1:
                    raise
            else:
                return

    def _empty(self, path: str, data_key: str) -> Operation[None]:
        """Delete what a scope holds that is not encrypted under the key that is to be destroyed: counters, and late writes."""
        after = None
        while page := (yield from read(partial(self._store.scan, path, after=after, limit=_PAGE))):
            others = [
                Delete(path, key)
                for key, row in page
                if row.data is not None and not (is_sealed(row.data) and read_sealed(row.data).key_id == data_key)
            ]
            if others:
                yield from write_or_raise(StateBatch(tuple(others)))
            after = page[-1][0]

    def _destroy(self, workspace: str, subject: str, row: SubjectRow) -> Operation[ErasureReceipt]:
        """Destroy the data key, remove the subject's name and write the receipt, in one transaction."""
        now_ms = yield from read(self._store.now_ms)
        path = data_key_path(workspace, row.data_key)
        known = yield from read(lambda: read_subject(self._store, workspace, subject))
        stored = (yield from read(lambda: self._store.entries(path, (row.data_key,)))).get(row.data_key)
        if known is None or stored is None:
            raise Conflict(f"subject {subject!r} was erased by another process at this moment")
        receipt = ErasureReceipt.signed(
            ErasureReceipt(
                workspace=workspace,
                subject_digest=sha256(subject.encode()).hexdigest(),
                data_key=row.data_key,
                erased_at=from_ms(now_ms),
                runs=row.runs,
                items=row.items,
                scopes=row.scopes,
            ),
            self._key,
        )
        gone = msgspec.structs.replace(decode_key(stored.data or b""), wrapped="", erased_ms=now_ms)
        yield from write_or_raise(
            StateBatch(
                (
                    Put(path, row.data_key, msgspec.Raw(encode_key(gone)), expected=stored.revision),
                    Delete(subject_path(workspace, subject), subject, known[1]),
                    Put(erasure_path(workspace), row.data_key, msgspec.Raw(_encode(receipt))),
                )
            )
        )
        fault("erasure.destroyed")
        self._subjects.keys.forget(row.data_key)
        return receipt

    def receipts(self, workspace: str | None) -> Operation[list[ErasureReceipt]]:
        """Return the receipts of erasure, of one workspace or of all, the oldest first."""
        return (yield from read(lambda: sorted(self._receipts(workspace), key=lambda each: each.erased_at)))

    def _receipts(self, workspace: str | None) -> Iterator[ErasureReceipt]:
        wanted = None if workspace is None else erasure_path(check_key(workspace, "a workspace id"))
        for path in _paths(self._store, "erasure/"):
            if wanted in (None, path):
                for _, row in all_entries(self._store, path):
                    yield _decode_receipt(row.data or b"")


def _put(path: str, key: str, row: SubjectRow, revision: int) -> Put:
    return Put(path, key, msgspec.Raw(encode_subject(row)), expected=revision)


def _owner(path: str) -> str:
    """Return the workspace that the scope of a subject names."""
    return unquote(path.split("/")[2])


def _paths(store: Store, prefix: str) -> list[str]:
    return [path for path in store.scopes(DEFAULT_WORKSPACE) if path.startswith(prefix)]


def rotate_keys(store: Store, subjects: Subjects, rechecked: Callable[[], None]) -> Operation[RotationReport]:
    """Wrap every data key with the ring's active key. No value is encrypted anew; a rotation that was interrupted goes on."""
    ring = subjects.keys.ring
    rewrapped = unchanged = 0
    yield from read(rechecked)
    for path in (yield from read(lambda: _paths(store, "data_key/"))):
        after = None
        while page := (yield from read(partial(store.scan, path, after=after, limit=_BATCH))):
            ops: list[StateOp] = []
            for key_id, row in page:
                fresh = None if row.data is None else rewrap(ring, key_id, decode_key(row.data))
                if fresh is None:
                    unchanged += 1
                else:
                    ops.append(Put(path, key_id, msgspec.Raw(encode_key(fresh)), expected=row.revision))
            try:
                if ops:
                    yield from write_or_raise(StateBatch(tuple(ops)))
            except Conflict:  # a key was erased or wrapped meanwhile: read this page again
                unchanged -= len(page) - len(ops)
                continue
            rewrapped += len(ops)
            fault("rotation.batch_written")
            after = page[-1][0]
    return RotationReport(active=ring.active, rewrapped=rewrapped, unchanged=unchanged)
