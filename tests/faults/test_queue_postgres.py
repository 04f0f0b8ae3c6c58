"""T01: a write to the queue on PostgreSQL that fails before its commit leaves every row as it was, and then lands."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.faults.hooks import Boom, at
from tests.faults.queue_case import ACTS, prepare
from tests.support.postgres_server import PostgresServer

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import CommitUnknown
from stepwell.fault_points import armed
from stepwell.model.commit import Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import ItemQuery
from stepwell.stores.memory import MemoryStore
from stepwell.stores.postgres import writer
from stepwell.stores.postgres.store import PostgresStore

TABLES = ("executions", "commits", "items", "workspaces", "queues", "tiers")


class Site:
    """A store with a queue in it, seen from outside."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self._server, self._schema = server, schema
        self.store: Store = PostgresStore(server.url(schema), FakeClock(), Limits())
        self.store.open()
        prepare(self.store)

    def dump(self) -> dict[str, list[tuple[object, ...]]]:
        """Every row of the queue and of the executions."""
        with self._server.connect() as connection:
            return {
                table: connection.execute(f"SELECT * FROM {self._schema}.{table} AS t ORDER BY t::text").fetchall()
                for table in TABLES
            }


@pytest.fixture
def site(postgres_server: PostgresServer, postgres_schema: str, postgres_url: str) -> Iterator[Site]:
    site = Site(postgres_server, postgres_schema)
    yield site
    site.store.close()


def fail() -> None:
    raise Boom


@pytest.mark.parametrize("act", ACTS)
def test_a_write_that_fails_before_its_commit_changes_nothing_and_then_lands(
    act: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = site.dump()
    with armed(at("store.before_begin", 1, fail)), pytest.raises(Boom):
        site.store.write([ACTS[act](site.store)])
    assert site.dump() == before
    with monkeypatch.context() as patch:
        patch.setattr(writer, "is_fast", lambda _: False)
        with armed(at("store.before_commit", 1, fail)), pytest.raises(Boom):
            site.store.write([ACTS[act](site.store)])
    assert site.dump() == before
    with armed(at("store.committed", 1, fail)), pytest.raises(CommitUnknown):
        site.store.write([ACTS[act](site.store)])
    assert site.dump() != before


def shape(store: Store) -> list[object]:
    """Every item but for the times, of which only those that are there count."""
    times = ("enqueued_ms", "run_at_ms", "lease_until_ms", "claimed_ms", "dispatched_ms", "finished_ms")
    items = [msgspec.structs.asdict(item) for item in reversed(store.items(ItemQuery()))]
    return [{name: bool(value) if name in times else value for name, value in item.items() if name != "number"} for item in items]


@pytest.mark.parametrize("path", ["fast", "general"])
@pytest.mark.parametrize("act", ACTS)
def test_both_paths_come_to_what_memory_comes_to(act: str, path: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "general":
        monkeypatch.setattr(writer, "is_fast", lambda _: False)
    memory = MemoryStore(FakeClock(), Limits())
    prepare(memory)
    [wanted] = memory.write([ACTS[act](memory)])
    [outcome] = site.store.write([ACTS[act](site.store)])
    assert type(outcome) is type(wanted) is Written
    assert len(outcome.answers) == len(wanted.answers)
    assert shape(site.store) == shape(memory)
