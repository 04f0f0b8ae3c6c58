"""Subjects: the people or things whose data runs and scopes hold, each with a data key of its own.

A subject is known under its name in one workspace. An index lists everything that was encrypted under its data key, to be found
and erased: ``run/<id>``, ``item/<id>`` and ``scope/<path>``. The names in the index are those of runs and scopes, never the
subject's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import msgspec

from stepwell.contract.store import Store
from stepwell.errors import Conflict, InvalidInput
from stepwell.model.commit import StateBatch
from stepwell.model.data_key import (
    StoredKey,
    binding_path,
    data_key_path,
    encode_key,
    index_path,
    key_id_of_workspace,
    make_key,
    new_key_id,
    subject_path,
    workspace_of_values,
)
from stepwell.model.ids import check_key
from stepwell.model.record import Metadata
from stepwell.model.scope import DEFAULT_WORKSPACE, Scope, internal_path
from stepwell.model.scoped_operations import ABSENT, Put, StoredEntry
from stepwell.model.value import canonical
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.stores.sealed_store import DataKeys, SealedStore

__all__ = ["SubjectRow", "Subjects", "encode_subject", "index_rows", "read_subject"]

_PAGE = 500


class SubjectRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which data key a subject has, and how far its erasure is."""

    data_key: str
    is_erasing: bool = False
    runs: int = 0
    items: int = 0
    scopes: int = 0
    """How many were erased so far."""


encode_subject = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(SubjectRow).decode


def read_subject(store: Store, workspace: str, subject: str) -> tuple[SubjectRow, int] | None:
    """Return a subject's row and its revision; None for a subject that nothing is stored about."""
    row = store.entries(subject_path(workspace, subject), (subject,)).get(subject)
    return None if row is None or row.data is None else (_decode(row.data), row.revision)


def index_rows(store: Store, workspace: str, key_id: str) -> Iterator[tuple[str, str, StoredEntry]]:
    """Return the path, name and row of everything that was encrypted under a subject's data key."""
    for bucket in "0123456789abcdef":
        path = _index(workspace, key_id, bucket)
        for name, row in all_entries(store, path):
            yield path, name, row


def _index(workspace: str, key_id: str, bucket: str) -> str:
    return internal_path("subject_index", DEFAULT_WORKSPACE, workspace, key_id, bucket)


class Subjects:
    """Operations on the subjects of one store; without keys it refuses every subject."""

    def __init__(self, sealed: SealedStore | None) -> None:
        self.sealed = sealed
        """The store that seals values; None if nothing is encrypted or compressed."""
        self._keys = None if sealed is None else sealed.keys

    @property
    def keys(self) -> DataKeys:
        """Return the data keys. Raise ``InvalidInput`` for a well without encryption."""
        if self._keys is None:
            raise InvalidInput(
                "a subject's data is encrypted under a key of its own, and this well has no keys; open it with encryption=..., "
                "or set STEPWELL_KEYRING"
            )
        return self._keys

    @property
    def has_keys(self) -> bool:
        """True if values are encrypted."""
        return self._keys is not None

    def key_of(self, workspace: str, subject: str) -> Operation[str]:
        """Return the id of a subject's data key; make one for a new subject. Raise ``Conflict`` while it is being erased."""
        keys = self.keys
        check_key(workspace, "a workspace id")
        check_key(subject, "a subject")
        store = self._store
        while True:
            known = yield from read(lambda: read_subject(store, workspace, subject))
            if known is not None:
                if known[0].is_erasing:
                    raise Conflict(f"subject {subject!r} is being erased; run `stepwell erase` again to finish it")
                key_id = known[0].data_key
                yield from read(lambda key_id=key_id: keys.need(workspace, key_id))
                return key_id
            now_ms = yield from read(store.now_ms)
            key_id = new_key_id()
            stored, key = make_key(keys.ring, workspace, key_id, now_ms, is_subject=True)
            try:
                yield from write_or_raise(StateBatch(_new_subject(workspace, subject, key_id, stored)))
            except Conflict:
                continue  # another process was first
            keys.keep(workspace, key_id, key, is_subject=True)
            return key_id

    def adopted(self, identity: Metadata) -> Operation[None]:
        """List an execution of another store under its subject, before it is stored here under the data key that it names.

        Raise ``Conflict`` if the subject has another data key here or is being erased, ``ValueErased`` if this key was erased here,
        and ``InvalidInput`` for a well without encryption.
        """
        workspace, subject, key_id = identity.workspace_id, identity.subject, identity.data_key
        if subject is None or key_id is None:
            return
        keys, store = self.keys, self._store
        known = yield from read(lambda: read_subject(store, workspace, subject))
        listed = self.listed(workspace, key_id, f"run/{identity.execution_id}")
        if known is not None:
            if known[0].data_key != key_id or known[0].is_erasing:
                raise Conflict(f"subject {subject!r} has another data key in this store, or is being erased; erase it here first")
            yield from write_or_raise(StateBatch((listed,)))
        elif (yield from read(lambda: keys.find(workspace, key_id))) is None:
            stored, _ = make_key(keys.ring, workspace, key_id, (yield from read(store.now_ms)), is_subject=True)
            yield from write_or_raise(StateBatch((*_new_subject(workspace, subject, key_id, stored), listed)))

    def protected(self, identity: Metadata, subject: str | None = None, data_key: str | None = None) -> Metadata:
        """Return an identity with its subject, and a salt if values are encrypted."""
        if self._keys is None:
            return identity
        return msgspec.structs.replace(identity, subject=subject, data_key=data_key, salt=new_key_id())

    def listed(self, workspace: str, data_key: str, name: str) -> Put:
        """Return the operation that adds a run, an item or a scope to the index of a subject."""
        return Put(index_path(workspace, data_key, name), name, msgspec.Raw(b"true"))

    def ready(self, workspace: str, data_key: str | None) -> Operation[None]:
        """Have the data key of a commit at hand, so that sealing it reads nothing. Raise ``ValueErased`` if it was erased."""
        keys = self._keys
        if keys is None:
            return
        key_id = data_key or key_id_of_workspace(workspace)
        if keys.is_fresh(workspace, key_id):
            return
        if (yield from read(lambda: keys.find(workspace, key_id))) is None and data_key is None:
            unit, key = yield from read(lambda: keys.workspace_unit(workspace))
            try:
                yield from write_or_raise(unit)
            except Conflict:
                yield from read(lambda: keys.need(workspace, key_id))
            else:
                keys.keep(workspace, key_id, key, is_subject=False)

    def bind(self, scope: Scope, subject: str) -> Operation[None]:
        """Say whose data a scope holds. Values that it has already are encrypted anew, under the subject's key."""
        path = scope.path
        workspace = workspace_of_values(path)
        data_key = yield from self.key_of(workspace, subject)
        paths = [path]
        if scope.kind == "conversation":
            paths.append(internal_path("conversation_record", workspace, *scope.names))
        ops: list[Put] = []
        for each in paths:
            bound = yield from read(lambda each=each: self._store.entries(binding_path(each), (each,)).get(each))
            value = canonical(data_key)
            if bound is not None and bound.data != value:
                raise Conflict(f"the scope {each!r} holds the data of another subject; erase or clear it first")
            ops += [Put(binding_path(each), each, msgspec.Raw(value)), self.listed(workspace, data_key, f"scope/{each}")]
        yield from write_or_raise(StateBatch(tuple(ops)))
        self.keys.forget("")
        for each in paths:
            yield from self._seal_anew(each)

    def _seal_anew(self, path: str) -> Operation[None]:
        sealed = self.sealed
        assert sealed is not None  # noqa: S101 - the caller has keys
        after = None
        while page := (yield from read(partial(sealed.scan, path, after=after, limit=_PAGE))):
            for key, row in page:
                left = None if row.expires_ms is None else max(1, row.expires_ms - (yield from read(self._store.now_ms)))
                put = Put(
                    path,
                    key,
                    msgspec.Raw(row.data or b"null"),
                    ttl_ms=row.ttl_ms if row.sliding else left,
                    sliding=row.sliding,
                    expected=row.revision,
                    version=row.version,
                )
                with suppress(Conflict):  # it was written meanwhile, under the subject's key
                    yield from write_or_raise(StateBatch((put,)))
            after = page[-1][0]

    @property
    def _store(self) -> Store:
        assert self.sealed is not None  # noqa: S101 - the caller has keys
        return self.sealed.inner


def _new_subject(workspace: str, subject: str, key_id: str, stored: StoredKey) -> tuple[Put, Put]:
    """Return the operations that store a subject and its data key."""
    return (
        _fresh(subject_path(workspace, subject), subject, encode_subject(SubjectRow(key_id))),
        _fresh(data_key_path(workspace, key_id), key_id, encode_key(stored)),
    )


def _fresh(path: str, key: str, data: bytes) -> Put:
    return Put(path, key, msgspec.Raw(data), expected=ABSENT)
