"""Scopes in which the queue keeps rows of its own, read so that a damaged row hides only itself."""

from __future__ import annotations

from stepwell.contract.store import Store
from stepwell.errors import Corrupted
from stepwell.model.scoped_operations import StoredEntry

__all__ = ["scan_sound"]

_PAGE = 1_000


def scan_sound(store: Store, path: str) -> tuple[list[tuple[str, StoredEntry]], list[str]]:
    """All entries of a scope, and the keys of those that are damaged."""
    found: list[tuple[str, StoredEntry]] = []
    damaged: list[str] = []
    after, limit = None, _PAGE
    while True:
        try:
            rows = store.scan(path, after=after, limit=limit)
        except Corrupted as error:
            if error.key is None:
                raise
            # A page with a damaged row is not given out: smaller ones bring what comes before it, and the last one is that row.
            limit //= 2
            if not limit:
                damaged.append(error.key)
                after, limit = error.key, _PAGE
            continue
        if not rows:
            return found, damaged
        found += rows
        after = rows[-1][0]
