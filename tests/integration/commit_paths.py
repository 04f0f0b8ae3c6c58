"""Helpers for tests of the two ways to write to PostgreSQL: one path for ordinary groups, one for all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.postgres_server import PostgresServer

from stepwell.model.commit import (
    Commit,
)
from stepwell.model.draft import Draft
from stepwell.model.ids import new_commit_id
from stepwell.model.mutation import Mutation
from stepwell.stores.postgres import writer
from stepwell.testing.conformance.samples import SampleExecution


def take_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "is_fast", lambda _: False)
    monkeypatch.setattr(writer, "is_one_lock", lambda _: False)


def table(server: PostgresServer, schema: str, name: str, *, without: str) -> list[object]:
    """The rows of a table without a column that differs from run to run."""
    with server.connect() as connection:
        rows = connection.execute(f"SELECT to_jsonb(t) - %s::text FROM {schema}.{name} AS t", (without,)).fetchall()
    return sorted((row[0] for row in rows), key=repr)


class Repeated(SampleExecution):
    """An execution whose commits have the same ids each time that its history is made."""

    def _build(self, mutations: Sequence[Mutation], fields: dict[str, Any]) -> tuple[Draft, Commit]:
        own = {"commit_id": new_commit_id(self.state.revision + 1, "0" * 32), "is_named": "commit_id" in fields}
        return super()._build(mutations, {**own, **fields})
