"""Read all of a scope, or all executions that match a query, page by page.

These functions block, as every read of a store does: call them inside of ``pipeline.operations.read``. A caller that acts between
two pages, or continues at another time, pages by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from stepwell.contract.store import ExecutionQuery, ExecutionReads, ScopedStateReads
from stepwell.model.commit import Head
from stepwell.model.scoped_operations import StoredEntry

__all__ = ["all_entries", "all_executions"]

_PAGE = 1_000


def all_entries(store: ScopedStateReads, scope: str, *, prefix: str = "") -> Iterator[tuple[str, StoredEntry]]:
    """Yield all live entries of a scope in order of their keys, with a prefix."""
    after: str | None = None
    while True:
        page = store.scan(scope, prefix=prefix, after=after, limit=_PAGE)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1][0]


def all_executions(store: ExecutionReads, query: ExecutionQuery) -> Iterator[Head]:
    """Yield all executions that match a query, newest first; its ``limit`` is the size of a page."""
    while True:
        page = store.find(query)
        yield from page
        if len(page) < query.limit:
            return
        query = replace(query, after=(page[-1].created_ms, page[-1].execution_id))
