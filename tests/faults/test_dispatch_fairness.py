"""T36, T37: a quiet workspace does not wait behind a noisy one, and an old transaction does not slow claims down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support.postgres_server import PostgresServer
from tests.support.queue_urls import SHARED_STORES, shared_url
from tests.support.store_urls import url_of

from stepwell import QueueRequest, Stepwell, workflow
from stepwell.model.queue_item import ClaimItems, Enqueue, ItemMark
from stepwell.stores.redis.url import parse_url
from stepwell.testing.conformance.samples import new_item
from stepwell.testing.store_access import store_under

__all__ = ["shared_url"]

WAIT = 60
NOISE, QUIET = 3_000, [f"quiet-{number}" for number in range(20)]
order: list[str] = []


@workflow(name="fairness.note")
async def note(name: str) -> None:
    order.append(name)


def test_items_of_quiet_workspaces_are_not_behind_a_noisy_one(shared_url: str) -> None:
    """T36: thousands of one tenant came first; the others' few run before more than a few dozen of them have."""
    order.clear()
    with Stepwell(shared_url, worker=False) as well:
        for name in ("noisy", *QUIET):
            well.workspaces.put_tier("own", concurrency=3)
            well.workspaces.put(name, tier="own")
        well.enqueue_many([QueueRequest(workflow=note, value="noisy", workspace="noisy")] * NOISE)
        quiet = [QueueRequest(workflow=note, value=name, workspace=name) for name in QUIET for _ in range(3)]
        items = [item for item in well.enqueue_many(quiet) if not isinstance(item, Exception)]
    with Stepwell(shared_url, concurrency=10) as well:
        for item in items:
            well.queue.item(item.item_id).result(WAIT)
        last = max(position for position, name in enumerate(order) if name != "noisy")
        assert order[: last + 1].count("noisy") <= 60  # one of 21 workspaces, and what was under way


@contextmanager
def old_transaction(store: str, url: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """A transaction of somebody else that has seen the queue as it is now, and stays open."""
    if store == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        schema = url.rpartition("schema=")[2]
        with server.connect() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            connection.execute(f"SELECT count(*) FROM {schema}.items")
            yield
            connection.execute("ROLLBACK")
    elif store == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        reader = apsw.Connection(str(folder / "well.db"))
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM items").fetchall()
        yield
        reader.close()
    else:
        import redis

        port = int(url.partition("127.0.0.1:")[2].partition("/")[0])
        with redis.Redis(port=port) as client, client.pipeline() as pipeline:
            pipeline.watch(f"{parse_url(url).prefix}:queue:all")
            pipeline.multi()
            yield


def churn(well: Any, number: int) -> None:
    """Items that come, are claimed and end."""
    store = store_under(well)
    store.write([Enqueue(tuple(new_item(f"{number}-{each}", "acme") for each in range(100)))])
    for _ in range(10):
        [outcome] = store.write([ClaimItems("churn", 60, 10)])
        assert len(outcome.answers) == 10
        store.write([ItemMark(claimed.item_id, "COMPLETED", claimed.fence) for claimed in outcome.answers])


def work_of_a_claim(well: Any, url: str, request: pytest.FixtureRequest) -> int:
    """How many pages PostgreSQL looks at to claim ten items, of which nothing remains: the same on every machine."""
    server: PostgresServer = request.getfixturevalue("postgres_server")
    query = f"SELECT * FROM {url.rpartition('schema=')[2]}.claim_items('me', 60000, 10, '{{}}', '{{}}', 0)"
    store_under(well).write([Enqueue(tuple(new_item(workspace="acme") for _ in range(10)))])
    with server.connect() as connection:
        for _ in range(2):  # the first one looks at the catalogue, too
            connection.execute("BEGIN")
            [[[explained]]] = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}").fetchall()
            connection.execute("ROLLBACK")
    plan = explained["Plan"]
    assert plan["Actual Rows"] == 10
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@pytest.mark.parametrize("store", SHARED_STORES)
def test_claims_go_on_beside_a_transaction_that_stays_open(request: pytest.FixtureRequest, store: str) -> None:
    """T37: what has ended cannot be cleaned away meanwhile, and claims must not wade through it."""
    url = url_of(store, request)
    with Stepwell(url, worker=False) as well:
        well.workspaces.put_tier("own", concurrency=10)
        well.workspaces.put("acme", tier="own")
        for number in range(3):
            churn(well, number)
        before = work_of_a_claim(well, url, request) if store == "postgres" else 0
        with old_transaction(store, url, request):
            for number in range(3, 25):
                churn(well, number)
            if store == "postgres":
                assert work_of_a_claim(well, url, request) <= 5 * before
