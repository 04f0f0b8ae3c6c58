"""Statements by name, inside the transaction that the store has begun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.stores.sqlite.batch import statement_of
from stepwell.stores.sqlite.connection import Database

__all__ = ["Statements"]


class Statements:
    """Runs the statements of one transaction, all of them at one time."""

    def __init__(self, db: Database, sql: Mapping[str, str], now_ms: int) -> None:
        self.db, self._sql, self.now_ms = db, sql, now_ms

    def run(self, name: str, *arguments: object) -> int:
        """Run a statement and say how many rows it changed."""
        return self.db.run(self._sql[name], *arguments)

    def run_view(self, name: str, *arguments: object) -> int:
        """Run a statement on a view and say how many rows its triggers changed."""
        return self.db.run_view(self._sql[name], *arguments)

    def run_all(self, name: str, rows: list[tuple[object, ...]]) -> bool:
        """Run a statement on many rows that is done whole or not at all, and say whether it was."""
        return self.db.run_all(*statement_of(self._sql[name], rows))

    def rows(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run a statement and give its rows."""
        return self.db.rows(self._sql[name], *arguments)
