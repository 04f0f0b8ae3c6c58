"""A store whose values are encrypted, compressed, or both, around any other store.

Digests cover what is stored, so that a chain of receipts verifies without the key. Each value is bound to its place: a
commit and a snapshot to their execution and revision, a value of scoped state to its scope and key, an input to its queue item.
The bodies of commits come here sealed, since their receipts name their digests; everything else is sealed here.

Numbers that ``increment`` and merges change are stored as they are, because the store adds to them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, cast

import msgspec

from stepwell.contract.store import Store
from stepwell.errors import (
    CommitUnknown,
    Conflict,
    Corrupted,
    EncryptionKeyMissing,
    StepwellError,
    StoreUnavailable,
    ValueErased,
)
from stepwell.model.cipher import KeyRing, decrypt, encrypt, key_id_of
from stepwell.model.commit import Adoption, Archiving, Commit, Loaded, Outcome, Seen, StateBatch, StoredCommit, Unit, Written
from stepwell.model.data_key import (
    SEALING,
    StoredKey,
    binding_path,
    data_key_path,
    decode_key,
    encode_key,
    holds_values,
    key_id_of_workspace,
    make_key,
    unwrap,
    workspace_of_values,
)
from stepwell.model.queue_item import Claimed, Enqueue, Item, ItemMark, ItemQuery, NewItem
from stepwell.model.receipt import decode_header
from stepwell.model.record import ERASED_INPUT, UNREADABLE_INPUT, split_input
from stepwell.model.scoped_operations import (
    ABSENT,
    Copy,
    Delete,
    Increment,
    Merge,
    Migrate,
    Put,
    StateOp,
    StoredEntry,
    Touch,
    current_entry,
)
from stepwell.model.sealed_value import Place, is_sealed, open_value, read_sealed, seal_value
from stepwell.model.snapshot import StoredSnapshot, seal_snapshot, stored_state
from stepwell.model.value import canonical, decode

__all__ = ["DataKeys", "SealedStore", "as_stored", "check_unsealed", "is_erased", "joined_settings"]

_FRESH_SECONDS = 10.0
"""How long after it was erased elsewhere a subject's key may still be used here; and how long a scope's subject is remembered."""
_MOST_CACHED = 10_000
_CHECKED = b"stepwell"
_CHECK_PLACE = b'["check"]'
_RETRIES = 20
_AS_IT_IS = -1
"""Notes an operation that was not replaced by others."""


class DataKeys:
    """The data keys of one store, unwrapped and cached in this process."""

    def __init__(self, store: Store, ring: KeyRing) -> None:
        self._store, self.ring = store, ring
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[bytes, float]] = {}
        self._bound: dict[str, tuple[str | None, float]] = {}

    def find(self, workspace: str, key_id: str) -> bytes | None:
        """Return a data key; None if there is none with this id. Raise ``ValueErased`` if it was erased."""
        known = self._known.get((workspace, key_id))
        if known is not None and monotonic() < known[1]:
            return known[0]
        row = self._store.entries(data_key_path(workspace, key_id), (key_id,)).get(key_id)
        if row is None:
            return None
        stored = _stored_key(row)
        if stored.erased_ms:
            self.forget(key_id)
            raise ValueErased("this was erased: the key of the person that it was about was destroyed")
        key = unwrap(self.ring, key_id, stored)
        self.keep(workspace, key_id, key, is_subject=stored.is_subject)
        return key

    def need(self, workspace: str, key_id: str) -> bytes:
        """Return a data key. Raise ``Corrupted`` if the store does not have it."""
        key = self.find(workspace, key_id)
        if key is None:
            raise Corrupted(
                f"workspace {workspace!r} has no data key {key_id}: the value was copied from another place, or the key is gone; "
                "restore a backup that has it"
            )
        return key

    def is_fresh(self, workspace: str, key_id: str) -> bool:
        """Return whether a data key is known here and needs no read."""
        known = self._known.get((workspace, key_id))
        return known is not None and monotonic() < known[1]

    def keep(self, workspace: str, key_id: str, key: bytes, *, is_subject: bool) -> None:
        """Remember a data key; a subject's key is looked up again after a few seconds, since it may be erased."""
        with self._lock:
            if len(self._known) >= _MOST_CACHED:
                self._known.clear()
            self._known[workspace, key_id] = key, monotonic() + (_FRESH_SECONDS if is_subject else float("inf"))

    def forget(self, key_id: str) -> None:
        """Forget a data key and which scopes have it; with an empty id, all of them."""
        with self._lock:
            self._known = {address: known for address, known in self._known.items() if key_id and address[1] != key_id}
            self._bound.clear()

    def workspace_unit(self, workspace: str) -> tuple[StateBatch, bytes]:
        """Return the write that makes the data key of a workspace, and the key."""
        key_id = key_id_of_workspace(workspace)
        stored, key = make_key(self.ring, workspace, key_id, self._store.now_ms(), is_subject=False)
        return StateBatch((_new(data_key_path(workspace, key_id), key_id, encode_key(stored)),)), key

    def of_scope(self, path: str) -> str | None:
        """Return the id of the data key of the subject whose data a scope holds; None for a scope that is no subject's."""
        known = self._bound.get(path)
        if known is not None and monotonic() < known[1]:
            return known[0]
        row = self._store.entries(binding_path(path), (path,)).get(path)
        found = None if row is None else str(decode(row.data or b'""'))
        with self._lock:
            if len(self._bound) >= _MOST_CACHED:
                self._bound.clear()
            self._bound[path] = found, monotonic() + _FRESH_SECONDS
        return found


def _stored_key(row: StoredEntry) -> StoredKey:
    try:
        return decode_key(row.data or b"")
    except msgspec.MsgspecError:
        raise Corrupted("a stored data key cannot be read; restore a backup") from None


def _new(path: str, key: str, data: bytes) -> Put:
    return Put(path, key, msgspec.Raw(data), expected=ABSENT)


class _ErasedEntry:
    """An entry whose key was erased: it can be listed and deleted, and reading its value raises."""

    def __init__(self, stored: StoredEntry, error: ValueErased) -> None:
        self.revision, self.expires_ms, self.ttl_ms, self.sliding = (
            stored.revision,
            stored.expires_ms,
            stored.ttl_ms,
            stored.sliding,
        )
        self.is_sound, self.version, self._error = True, stored.version, error

    @property
    def data(self) -> bytes:
        """Raise ``ValueErased``."""
        raise self._error


class SealedStore:
    """A store with sealed values. Verbs that carry no values are those of the store inside.

    - ``inner``: the store that keeps the values.
    - ``ring``: the keys to encrypt with; None to compress only.
    - ``compress_over``: compress values of more bytes than this; None for none.
    """

    def __init__(self, inner: Store, ring: KeyRing | None, compress_over: int | None) -> None:
        self.inner, self.compress_over = inner, compress_over
        self.keys = None if ring is None else DataKeys(inner, ring)
        self._is_passing = False
        self._numbers: set[tuple[str, str]] = set()
        """Keys that the store adds to in the write under way: what the same write puts there stays as it is."""

    @contextmanager
    def passing(self) -> Generator[None]:
        """Write units as they come inside the block, for a restore: what a backup has is sealed already, or never was."""
        self._is_passing = True
        try:
            yield
        finally:
            self._is_passing = False
            if self.keys is not None:
                self.keys.forget("")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    # Opening.

    def check_settings(self) -> None:
        """Note that values are sealed from now on, and check that the keys are those of the store.

        Raise ``EncryptionKeyMissing`` if values are encrypted under another key, and ``Corrupted`` if a key has another value.
        """
        found = _settings(self.inner)
        if self.keys is None:
            if found.check:
                raise _no_keys()
            fresh = _Settings(is_compressed=True)
        else:
            ring = self.keys.ring
            if found.check:
                decrypt(ring, _unhex(found.check), _CHECK_PLACE)
            check = found.check or encrypt(ring, _CHECKED, _CHECK_PLACE).hex()
            fresh = _Settings(check=check, is_compressed=found.is_compressed or self.compress_over is not None)
        if fresh != found:
            self.inner.write((StateBatch((Put(SEALING, _KEY, msgspec.Raw(_encode_settings(fresh))),)),))

    def renew_check(self) -> None:
        """Encrypt the known text of the settings under the active key, so that older keys are not needed to open the store."""
        assert self.keys is not None  # noqa: S101 - the caller rotates its keys
        found, ring = _settings(self.inner), self.keys.ring
        if not found.check or key_id_of(_unhex(found.check)) != ring.active:
            fresh = msgspec.structs.replace(found, check=encrypt(ring, _CHECKED, _CHECK_PLACE).hex())
            self.inner.write((StateBatch((Put(SEALING, _KEY, msgspec.Raw(_encode_settings(fresh))),)),))

    # Sealing and opening.

    def commit_seal(self, workspace: str, execution_id: str, data_key: str | None) -> Callable[[bytes, int], bytes]:
        """Return the function that seals the body of a commit at a revision."""

        def seal(body: bytes, revision: int) -> bytes:
            place = ("commit", workspace, execution_id, str(revision))
            return seal_value(body, place, self._key(workspace, data_key), self.compress_over)

        return seal

    def _key(self, workspace: str, data_key: str | None) -> tuple[str, bytes] | None:
        """Return the data key to seal with. A workspace without one gets it, in a write of its own."""
        keys = self.keys
        if keys is None:
            return None
        if data_key is not None:
            key = keys.find(workspace, data_key)
            if key is not None:
                return data_key, key
        key_id = key_id_of_workspace(workspace)
        key = keys.find(workspace, key_id)
        if key is None:
            key = self._new_key(keys, workspace, key_id)
            keys.keep(workspace, key_id, key, is_subject=False)
        return key_id, key

    def _new_key(self, keys: DataKeys, workspace: str, key_id: str) -> bytes:
        unit, key = keys.workspace_unit(workspace)
        try:
            outcome = self.inner.write((unit,))[0]
        except CommitUnknown:  # about the key alone: what it is for was not written yet
            found = keys.find(workspace, key_id)
            if found is None:
                raise StoreUnavailable(f"the data key of workspace {workspace!r} could not be stored; try again") from None
            return found
        if isinstance(outcome, Conflict):  # another process was first
            return keys.need(workspace, key_id)
        if isinstance(outcome, StepwellError):
            raise outcome
        return key

    def _open(self, data: bytes, workspace: str, place: Place) -> bytes:
        sealed = read_sealed(data)
        if not sealed.key_id:
            return open_value(sealed, place, None)
        if self.keys is None:
            raise _no_keys()
        return open_value(sealed, place, self.keys.need(workspace, sealed.key_id))

    def _tried(self, data: bytes, workspace: str, place: Place) -> bytes | StepwellError:
        try:
            return self._open(data, workspace, place)
        except StepwellError as error:
            return error

    # Executions.

    def load(self, execution_id: str, at: int | None = None, since: int | None = None) -> Loaded | None:
        """Return what an execution's state is built from, opened."""
        loaded = self.inner.load(execution_id, at, since)
        if loaded is None:
            return None
        snapshot = (
            None if loaded.snapshot is None else self.opened_snapshot(loaded.snapshot, loaded.head.workspace_id, execution_id)
        )
        return Loaded(loaded.head, snapshot, [self.opened_row(row) for row in loaded.commits])

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        """Return a page of commits, opened."""
        return [self.opened_row(row) for row in self.inner.history(execution_id, after, limit)]

    def base(self, execution_id: str) -> StoredSnapshot | None:
        """Return the snapshot that the retained chain starts from, opened."""
        stored = self.inner.base(execution_id)
        if stored is None or not is_sealed(stored.data):
            return stored
        head = self.inner.head(execution_id)
        return stored if head is None else self.opened_snapshot(stored, head.workspace_id, execution_id)

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        """Return the commit with this id, opened."""
        row = self.inner.commit_of(execution_id, commit_id)
        return None if row is None else self.opened_row(row)

    def opened_row(self, row: StoredCommit) -> StoredCommit:
        """Return a commit with its body opened, or with the error that says why it cannot be."""
        if not isinstance(row.body, bytes) or not is_sealed(row.body):  # a damaged file may return anything
            return row
        return StoredCommit(row.revision, row.header, row.body, self._body(row.header, row.body))

    def _body(self, data: bytes, body: bytes) -> bytes | StepwellError:
        try:
            header = decode_header(data)
        except (TypeError, ValueError, RecursionError):
            return Corrupted("a stored receipt cannot be read; verify its execution to find the first broken one")
        place = ("commit", header.workspace_id, header.execution_id, str(header.revision))
        return self._tried(body, header.workspace_id, place)

    def opened_snapshot(self, stored: StoredSnapshot, workspace: str, execution_id: str) -> StoredSnapshot:
        """Return a snapshot with its content opened, or with the error that says why it cannot be."""
        if not isinstance(stored.data, bytes) or not is_sealed(stored.data):
            return stored
        opened = self._tried(stored.data, workspace, ("snapshot", workspace, execution_id, str(stored.revision)))
        return msgspec.structs.replace(stored, opened=opened)

    # Scoped state.

    def entries(self, scope: str, keys: Sequence[str]) -> dict[str, StoredEntry]:
        """Return the live entries of these keys, opened."""
        return {key: self._entry(scope, key, row) for key, row in self.inner.entries(scope, keys).items()}

    def scan(self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> list[tuple[str, StoredEntry]]:
        """Return a page of live entries, opened."""
        return [(key, self._entry(scope, key, row)) for key, row in self.inner.scan(scope, prefix=prefix, after=after, limit=limit)]

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        """Return the entries that changed after a revision, opened; those that were erased are left out."""
        rows = ((key, self._entry(scope, key, row)) for key, row in self.inner.changes(scope, after))
        return [(key, row) for key, row in rows if not isinstance(row, _ErasedEntry)]

    def _entry(self, scope: str, key: str, row: StoredEntry) -> StoredEntry:
        if row.data is None or not is_sealed(row.data):
            return row
        try:
            data = self._open(row.data, workspace_of_values(scope), ("state", scope, key))
        except ValueErased:
            error = ValueErased(f"the value of key {key!r} in scope {scope!r} was erased with its subject", key=key)
            return cast("StoredEntry", _ErasedEntry(row, error))
        return msgspec.structs.replace(row, data=data)

    # The queue.

    def item(self, item_id: str) -> Item | None:
        """Return a queue item, opened."""
        found = self.inner.item(item_id)
        return None if found is None else self._opened_item(found)

    def items(self, query: ItemQuery) -> list[Item]:
        """Return queue items, opened."""
        return [self._opened_item(item) for item in self.inner.items(query)]

    def _opened_item(self, item: Item) -> Item:
        given, error = self._tried_input(item.input, item.workspace_id, item.item_id), item.error
        if isinstance(given, StepwellError):
            given = ERASED_INPUT if isinstance(given, ValueErased) else UNREADABLE_INPUT
        if error is not None and is_sealed(error.encode("utf-8", "replace")):
            opened = self._tried(
                error.encode("utf-8", "replace"), item.workspace_id, ("item error", item.workspace_id, item.item_id)
            )
            error = "erased" if isinstance(opened, StepwellError) else opened.decode()
        if given is item.input and error is item.error:
            return item
        return msgspec.structs.replace(item, input=given, error=error)

    def _tried_input(self, data: bytes, workspace: str, item_id: str) -> bytes | StepwellError:
        return self._tried(data, workspace, ("item", workspace, item_id)) if is_sealed(data) else data

    # Writing.

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write units as ``Store.write`` does, with their values sealed."""
        if self._is_passing:
            return self.inner.write(units)
        if len(units) > 1 and any(isinstance(op, Copy) for unit in units for op in _ops_of(unit)):
            # A copy is sealed from what is stored now, so what comes before it has to be there.
            return [outcome for unit in units for outcome in self.write((unit,))]
        self._numbers = {(op.scope, op.key) for unit in units for op in _ops_of(unit) if isinstance(op, Increment | Merge)}
        outcomes: list[Outcome | None] = [None] * len(units)
        sealed: list[tuple[int, Unit, list[int]]] = []
        for number, unit in enumerate(units):
            answers: list[int] = []
            try:
                sealed.append((number, self._sealed(unit, answers), answers))
            except StepwellError as error:
                outcomes[number] = error
        written = self.inner.write([unit for _, unit, _ in sealed]) if sealed else []
        for (number, _, answers), outcome in zip(sealed, written, strict=True):
            outcomes[number] = self._opened(outcome, answers)
        return cast("list[Outcome]", outcomes)

    def _sealed(self, unit: Unit, answers: list[int]) -> Unit:
        replace = msgspec.structs.replace
        match unit:
            case Commit():
                return self._sealed_commit(unit, answers)
            case StateBatch():
                return replace(unit, ops=self._sealed_ops(unit.ops, answers))
            case Enqueue():
                return replace(unit, items=tuple(map(self._sealed_item, unit.items)))
            case ItemMark(error=str() as error):
                item = self.inner.item(unit.item_id)
                return (
                    unit if item is None else replace(unit, error=self._sealed_error(item.workspace_id, item.item_id, error, None))
                )
            case Adoption():
                return replace(unit, snapshot=self._sealed_snapshot(unit.snapshot, unit.workspace_id, unit.execution_id))
            case Archiving():
                head = self.inner.head(unit.execution_id)
                if head is None:
                    return unit
                return replace(unit, snapshot=self._sealed_snapshot(unit.snapshot, head.workspace_id, unit.execution_id))
            case _:
                return unit

    def _sealed_commit(self, commit: Commit, answers: list[int]) -> Commit:
        changes: dict[str, Any] = {}
        if commit.ops:
            changes["ops"] = self._sealed_ops(commit.ops, answers)
        if commit.items:
            changes["items"] = tuple(map(self._sealed_item, commit.items))
        if commit.creation is not None and commit.creation.slot is not None:
            slot = self._sealed_item(commit.creation.slot)
            changes["creation"] = msgspec.structs.replace(commit.creation, slot=slot)
        if commit.snapshot is not None:
            changes["snapshot"] = self._sealed_snapshot(commit.snapshot, commit.workspace_id, commit.execution_id)
        if commit.mark is not None and commit.mark.error is not None:
            key_id = read_sealed(commit.body).key_id if is_sealed(commit.body) else None
            error = self._sealed_error(commit.workspace_id, commit.mark.item_id, commit.mark.error, key_id)
            changes["mark"] = msgspec.structs.replace(commit.mark, error=error)
        return msgspec.structs.replace(commit, **changes) if changes else commit

    def _sealed_error(self, workspace: str, item_id: str, error: str, key_id: str | None) -> str:
        place = ("item error", workspace, item_id)
        return seal_value(error.encode("utf-8", "replace"), place, self._key(workspace, key_id), self.compress_over).decode()

    def _sealed_snapshot(self, stored: StoredSnapshot, workspace: str, execution_id: str) -> StoredSnapshot:
        key = self._key(workspace, stored_state(stored).identity.data_key if self.keys is not None else None)
        place = ("snapshot", workspace, execution_id, str(stored.revision))
        return seal_snapshot(stored, lambda data: seal_value(data, place, key, self.compress_over))

    def _sealed_item(self, item: NewItem) -> NewItem:
        key = self._key(item.workspace_id, split_input(item.input).data_key)
        place = ("item", item.workspace_id, item.item_id)
        # A debounced request gives its input to an item that waits, whose id it does not know.
        data = seal_value(item.input, place, key, self.compress_over, is_loose=item.debounce is not None)
        return msgspec.structs.replace(item, input=data)

    def _sealed_ops(self, ops: Sequence[StateOp], answers: list[int]) -> tuple[StateOp, ...]:
        """Return operations with sealed values; note of each copy how many operations it became."""
        sealed: list[StateOp] = []
        for number, op in enumerate(ops):
            if isinstance(op, Put | Migrate) and holds_values(op.scope) and (op.scope, op.key) not in self._numbers:
                sealed.append(msgspec.structs.replace(op, value=msgspec.Raw(self._value(op.scope, op.key, bytes(op.value)))))
            elif isinstance(op, Copy) and (copied := self._copied(op, ops[:number])) is not None:
                sealed += copied
                answers.append(len(copied))
                continue
            else:
                if isinstance(op, Increment | Merge):
                    self._make_plain(op.scope, op.key)
                sealed.append(op)
            answers.append(_AS_IT_IS)
        return tuple(sealed)

    def _value(self, scope: str, key: str, data: bytes) -> bytes:
        pair = None
        if self.keys is not None:
            pair = self._key(workspace_of_values(scope), self.keys.of_scope(scope))
        return seal_value(data, ("state", scope, key), pair, self.compress_over)

    def _copied(self, op: Copy, before: Sequence[StateOp]) -> list[StateOp] | None:
        """Return the operations of a copy: what is sealed for one place opens at no other, so the value is sealed anew.

        None for a value that is not sealed: the store copies it.
        """
        for earlier in reversed(before):
            if isinstance(earlier, Put) and (earlier.scope, earlier.key) == (op.scope, op.key):
                value = msgspec.Raw(self._value(op.to_scope, op.to_key, bytes(earlier.value)))
                put = Put(op.to_scope, op.to_key, value, ttl_ms=earlier.ttl_ms, sliding=earlier.sliding)
                return [put, Delete(op.scope, op.key)] if _is_moved(op) else [put]
            if earlier.scope == op.scope and getattr(earlier, "key", op.key) == op.key and not isinstance(earlier, Copy | Touch):
                return None  # deleted, cleared, or a number
        row = self.inner.entries(op.scope, (op.key,)).get(op.key)
        if row is None or row.data is None or not is_sealed(row.data):
            return None
        row = current_entry(op.scope, op.key, self._entry(op.scope, op.key, row))
        left = None if row.expires_ms is None else max(1, row.expires_ms - self.inner.now_ms())
        value = msgspec.Raw(self._value(op.to_scope, op.to_key, row.data or b"null"))
        put = Put(op.to_scope, op.to_key, value, ttl_ms=row.ttl_ms if row.sliding else left, sliding=row.sliding)
        return [put, Delete(op.scope, op.key, row.revision)] if _is_moved(op) else [put]

    def _make_plain(self, scope: str, key: str) -> None:
        """Store a sealed value as it is, before the store adds to it."""
        for _ in range(_RETRIES):
            row = self.inner.entries(scope, (key,)).get(key)
            if row is None or row.data is None or not is_sealed(row.data):
                return
            opened = self._entry(scope, key, row)
            left = None if row.expires_ms is None else max(1, row.expires_ms - self.inner.now_ms())
            put = Put(
                scope,
                key,
                msgspec.Raw(opened.data or b"null"),
                ttl_ms=row.ttl_ms if row.sliding else left,
                sliding=row.sliding,
                expected=row.revision,
                version=row.version,
            )
            self.inner.write((StateBatch((put,)),))

    def _opened(self, outcome: Outcome, answers: list[int]) -> Outcome:
        if isinstance(outcome, Seen):
            opened = self._body(outcome.header, outcome.body) if is_sealed(outcome.body) else None
            return Seen(outcome.header, outcome.body, opened)
        if not isinstance(outcome, Written):
            return outcome
        if any(count != _AS_IT_IS for count in answers):
            return Written(_merged(outcome.answers, answers))
        if not any(isinstance(each, Item | Claimed) for each in outcome.answers):
            return outcome
        return Written([self._opened_answer(each) for each in outcome.answers])

    def _opened_answer(self, answer: object) -> object:
        if isinstance(answer, Item):
            return self._opened_item(answer)
        if isinstance(answer, Claimed):
            data = self._tried_input(answer.input, answer.workspace_id, answer.item_id)
            if isinstance(data, StepwellError):
                return msgspec.structs.replace(answer, input=UNREADABLE_INPUT, input_error=data)
            return answer if data is answer.input else msgspec.structs.replace(answer, input=data)
        return answer


def _ops_of(unit: Unit) -> Sequence[StateOp]:
    return unit.ops if isinstance(unit, Commit | StateBatch) else ()


def _is_moved(op: Copy) -> bool:
    return op.move and (op.scope, op.key) != (op.to_scope, op.to_key)


def _merged(answers: Sequence[object], counts: Sequence[int]) -> list[object]:
    """Return an answer to each operation that was asked for: of a copy, whether there was something to copy."""
    left, found = iter(answers), list[object]()
    for count in counts:
        if count == _AS_IT_IS:
            found.append(next(left))
            continue
        for _ in range(count):
            next(left)
        found.append(count > 0)
    return found


def as_stored(store: Store) -> Store:
    """Return a store that gives values as they are stored, sealed if they are."""
    return store.inner if isinstance(store, SealedStore) else store


def is_erased(row: StoredEntry) -> bool:
    """Return whether the value of an entry was erased: its ``data`` raises."""
    return isinstance(row, _ErasedEntry)


class _Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings by which the values of a store are sealed."""

    check: str = ""
    """A known text encrypted under a key of the ring, in hex; empty if nothing is encrypted."""
    is_compressed: bool = False


_KEY = "settings"
_decode_settings = msgspec.json.Decoder(_Settings).decode


def _encode_settings(settings: _Settings) -> bytes:
    return canonical(msgspec.to_builtins(settings))


def _settings(store: Store) -> _Settings:
    row = store.entries(SEALING, (_KEY,)).get(_KEY)
    return _Settings() if row is None or row.data is None else _decode_settings(row.data)


def joined_settings(store: Store, ring: KeyRing | None, restored: bytes) -> bytes:
    """Return the settings of a store that gets the sealed values of another, too.

    - ``ring``: the keys of the well; None: it has none, and its store keeps the values for one that has.
    - ``restored``: the settings of the other.

    Raise ``EncryptionKeyMissing`` if the ring has not the key of the other's values.
    """
    own = _settings(store)
    try:
        other = _decode_settings(restored)
    except msgspec.MsgspecError:
        raise Corrupted("the settings of the encryption of what is to be restored cannot be read") from None
    if ring is not None and other.check:
        decrypt(ring, _unhex(other.check), _CHECK_PLACE)
    fresh = _Settings(check=own.check or other.check, is_compressed=own.is_compressed or other.is_compressed)
    return _encode_settings(fresh)


def _unhex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Corrupted("the settings of the store's encryption cannot be read; restore a backup") from None


def check_unsealed(store: Store) -> None:
    """Raise ``EncryptionKeyMissing`` if values of a store are encrypted or compressed, for a process that would not know."""
    found = _settings(store)
    if found.check:
        raise _no_keys()
    if found.is_compressed:
        raise EncryptionKeyMissing(
            "values of this store are compressed; open it with compress_over=..., or set STEPWELL_COMPRESS_OVER to a number"
        )


def _no_keys() -> EncryptionKeyMissing:
    return EncryptionKeyMissing(
        "values of this store are encrypted, and no keys were given; open it with encryption=..., or set STEPWELL_KEYRING to the "
        "file of the keys"
    )
