"""Payloads that are larger than what Temporal takes: they are kept in the store, and a reference is sent.

A row's key is the digest of its content, so what a reference leads to never changes, and a replayed workflow reads what it read
before. Rows of an execution stay for a week after its end, for those who replay its history.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeVar

import msgspec
from temporalio.common import RawValue

from stepwell.contract.store import Store
from stepwell.errors import NotFound
from stepwell.model.commit import StateBatch
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import Put
from stepwell.pipeline.operations import AsyncDriver, Operation, write_or_raise
from stepwell.pipeline.operations import read as reading
from stepwell.pipeline.paged_reads import all_entries
from stepwell.temporal.messages import MOST_BYTES, PayloadReference, payload, read, reference_in, referring

__all__ = ["PayloadStore", "rows_path"]

T = TypeVar("T")

_KEPT_AFTER_END_MS = 7 * 86_400_000


def rows_path(execution_id: str) -> str:
    """Return the scope of an execution's payloads, and of what else its workers note about it."""
    return internal_path("engine_payload", DEFAULT_WORKSPACE, execution_id)


class PayloadStore:
    """Reads and writes payloads of any size."""

    def __init__(self, store: Store, driver: AsyncDriver) -> None:
        self._store, self._driver = store, driver

    async def seal(self, execution_id: str, value: msgspec.Struct) -> RawValue:
        """Return a value as a payload, or as a reference to one that is kept in the store.

        Raise ``LimitExceeded`` if it is larger than what a scope of the store takes.
        """
        return await self.keep(execution_id, msgspec.json.encode(value))

    async def keep(self, execution_id: str, data: bytes) -> RawValue:
        """Return JSON as a payload, or as a reference to one that is kept in the store."""
        if len(data) <= MOST_BYTES:
            return payload(data)
        key = sha256(data).hexdigest()
        await self._driver.run(write_or_raise(StateBatch((Put(rows_path(execution_id), key, msgspec.Raw(data)),))))
        return referring(PayloadReference(execution_id, key))

    async def read(self, value: RawValue, kind: type[T]) -> T:
        """Return the value of a payload, wherever it is."""
        reference = reference_in(value)
        if reference is None:
            return read(value, kind)
        return msgspec.json.decode(await self._driver.run(self.load(reference)), type=kind)

    def load(self, reference: PayloadReference) -> Operation[bytes]:
        """Return what a reference leads to. Raise ``NotFound`` if it is kept no more."""
        rows = yield from reading(lambda: self._store.entries(rows_path(reference.execution_id), [reference.key]))
        row = rows.get(reference.key)
        if row is None or row.data is None:
            raise NotFound(f"a payload of execution {reference.execution_id!r} on Temporal is not in the store any more")
        return row.data

    async def release(self, execution_id: str) -> None:
        """Let the payloads of an execution that has ended go after a while."""
        path = rows_path(execution_id)
        rows = await self._driver.run(reading(lambda: list(all_entries(self._store, path))))
        for key, row in rows:
            op = Put(path, key, msgspec.Raw(row.data or b"null"), ttl_ms=_KEPT_AFTER_END_MS)
            await self._driver.run(write_or_raise(StateBatch((op,))))
