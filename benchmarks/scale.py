"""``make scale``: a noisy workspace with a million items beside a hundred quiet ones on PostgreSQL, as JSON lines.

- ``claim``: how long a claim of 100 items takes, while the noisy workspace is full and while it competes.
- ``scans``: the server's count of sequential scans of the items table during the run; there should be none.
- ``quiet``: how long an item of a quiet workspace waits for its start: alone in the store, beside a noisy workspace whose items
  take a
moment each (``beside``), and beside one whose items do nothing, so that its ten slots change as fast as the machine can
(``churn``).

The three alternate in turns, so that other load affects all of them. The result is the median of the turns' own figures, so that
a stall of the machine spoils only one turn.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import psycopg
from tests.support.postgres_server import PostgresServer

from benchmarks.environment import environment_line
from benchmarks.measurement import Measurement, at_most
from stepwell import AsyncStepwell, QueueRequest, workflow
from stepwell.clock import SystemClock
from stepwell.model.commit import Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Claimed, ClaimItems, ReturnItem
from stepwell.runtime.host_tuning import host_tuning
from stepwell.stores.postgres.store import PostgresStore

_CHUNK = 20_000
_TURNS = 11
_FIRST_ITEMS = 20
_ITEM_SECONDS = 0.01
_started: dict[int, float] = {}
_noisy_seconds = 0.0


@workflow(name="scale-quiet")
async def quiet(number: int) -> None:
    _started[number] = time.perf_counter()


@workflow(name="scale-noisy")
async def noisy(number: int) -> None:
    if _noisy_seconds:
        await asyncio.sleep(_noisy_seconds)


def _share(figures: Sequence[float], share: float) -> float:
    ordered = sorted(figures)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _of_turns(turns: Sequence[Sequence[float]], share: float) -> float:
    return median(_share(figures, share) for figures in turns)


async def _load(url: str, items: int, workspaces: int) -> None:
    async with AsyncStepwell(url, worker=False) as well:
        await well.workspaces.put_tier("noisy", concurrency=10, weight=1)
        await well.workspaces.put("noisy", tier="noisy")
        for number in range(workspaces):
            await well.workspaces.put(f"quiet-{number}", tier="startup")
        for first in range(0, items, _CHUNK):
            numbers = range(first, min(first + _CHUNK, items))
            await well.enqueue_many([QueueRequest(workflow=noisy, value=number, workspace="noisy") for number in numbers])


async def _fill_quiet(url: str, workspaces: int, each: int) -> None:
    async with AsyncStepwell(url, worker=False) as well:
        requests = [
            QueueRequest(workflow=quiet, value=number, workspace=f"quiet-{number % workspaces}")
            for number in range(workspaces * each)
        ]
        await well.enqueue_many(requests)


def _claim_seconds(url: str, claims: int) -> list[float]:
    """Return the durations of claims. Claimed items are released, so that each claim finds the same items."""
    store = PostgresStore(url, SystemClock(), Limits())
    store.open()
    took: list[float] = []
    try:
        for _ in range(claims):
            began = time.perf_counter()
            (outcome,) = store.write((ClaimItems("scale", 60, 100),))
            took.append(time.perf_counter() - began)
            if isinstance(outcome, Written):
                taken = [item for item in outcome.answers if isinstance(item, Claimed)]
                store.write([ReturnItem(item.item_id, item.fence) for item in taken])
    finally:
        store.close()
    return took


async def _quiet_waits(url: str, workspaces: int, count: int) -> list[float]:
    """Return how long items of quiet workspaces wait, enqueued one after another while this process works."""
    _started.clear()
    took: list[float] = []
    async with AsyncStepwell(url) as well:
        for number in range(-_FIRST_ITEMS, count):
            began = time.perf_counter()
            item = await well.enqueue(quiet, number, workspace=f"quiet-{number % workspaces}")
            await item.result(60)
            took.append(_started[number] - began)
    return took[_FIRST_ITEMS:]


def _quiet_turns(places: Sequence[tuple[str, float]], workspaces: int, count: int) -> list[list[list[float]]]:
    """Return the waits of each turn at each place. First, each workspace's backlog is worked off."""
    global _noisy_seconds  # noqa: PLW0603 - the workflow runs in this process
    waits: list[list[list[float]]] = [[] for _ in places]
    for url, _ in places:
        asyncio.run(_quiet_waits(url, workspaces, workspaces))
    for _ in range(_TURNS):
        for place, (url, seconds) in enumerate(places):
            _noisy_seconds = seconds
            waits[place].append(asyncio.run(_quiet_waits(url, workspaces, count // _TURNS)))
    return waits


def _settle(server: PostgresServer) -> None:
    """Run VACUUM and CHECKPOINT now, which the server would otherwise run in the middle of the measurement."""
    with server.connect() as connection:
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _scans(server: PostgresServer, schema: str) -> int:
    with server.connect() as connection:
        return _count(connection, schema)


def _count(connection: psycopg.Connection[tuple[object, ...]], schema: str) -> int:
    query = "SELECT coalesce(sum(seq_scan), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'items'"
    row = connection.execute(query, [schema]).fetchone()
    return 0 if row is None else int(str(row[0]))


def _print(name: str, value: float, unit: str, limit: float | None = None, note: str = "") -> None:
    target = None if limit is None else at_most(unit, value, limit)
    print(Measurement(f"scale.{name}", value, unit, target=target, note=note).line(), flush=True)


def measure(server: PostgresServer, items: int, workspaces: int, waits: int, claims: int) -> None:
    """Measure and print all figures."""
    alone_url, url = server.url("alone"), server.url("scale")
    asyncio.run(_load(alone_url, 0, workspaces))
    began = time.perf_counter()
    asyncio.run(_load(url, items, workspaces))
    _print("load", items / (time.perf_counter() - began), "items/s", note=f"{items:,} items of one workspace")
    _settle(server)
    before = _scans(server, "scale")
    took = _claim_seconds(url, claims)
    _print("claim.noisy.p50", 1000 * _share(took, 0.5), "ms", note="the noisy workspace alone has items")
    _print("claim.noisy.p99", 1000 * _share(took, 0.99), "ms", 50)
    asyncio.run(_fill_quiet(url, workspaces, 10))
    took = _claim_seconds(url, claims)
    _print("claim.mixed.p50", 1000 * _share(took, 0.5), "ms", note=f"{workspaces} quiet workspaces have 10 items each")
    _print("claim.mixed.p99", 1000 * _share(took, 0.99), "ms", 50)
    _print("scans", _scans(server, "scale") - before, "sequential scans", 0, note="of the items, during the claims")
    alone, beside, churn = _quiet_turns([(alone_url, 0), (url, _ITEM_SECONDS), (url, 0)], workspaces, waits)
    _print("quiet.alone.p50", 1000 * _of_turns(alone, 0.5), "ms")
    _print("quiet.alone.p99", 1000 * _of_turns(alone, 0.99), "ms")
    for name, turns in (("beside", beside), ("churn", churn)):
        _print(f"quiet.{name}.p50", 1000 * _of_turns(turns, 0.5), "ms")
        limit = 2000 * _of_turns(alone, 0.99)
        _print(f"quiet.{name}.p99", 1000 * _of_turns(turns, 0.99), "ms", limit, note="target: twice what it has alone")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="The queue at scale, on PostgreSQL.")
    parser.add_argument("--items", type=int, default=1_000_000, help="items of the noisy workspace")
    parser.add_argument("--workspaces", type=int, default=100, help="quiet workspaces")
    parser.add_argument("--waits", type=int, default=3_300, help="items of quiet workspaces whose wait is measured")
    parser.add_argument("--claims", type=int, default=500, help="claims that are timed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepwell-scale-") as folder:
        print(environment_line(Path(folder), is_quick=False), flush=True)
    with host_tuning(), PostgresServer(shared_buffers="128MB") as server:
        measure(server, arguments.items, arguments.workspaces, arguments.waits, arguments.claims)


if __name__ == "__main__":
    main()
