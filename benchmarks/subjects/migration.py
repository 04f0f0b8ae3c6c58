"""State migrations: how fast values and live executions are brought to another version, alone and while a queue drains.

``migration.values`` is scoped state, ``migration.executions`` live executions, each migrated by a commit with a receipt.
``migration.beside_queue`` migrates live executions in one process while another drains a queue of the same workflow; its figure is
the number of errors, which must be 0.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.measurement import Measurement, at_least, at_most
from benchmarks.plan import Plan
from stepwell import AsyncStepwell, MigrationReport, Scope, Stepwell, migration
from stepwell.model.state_versions import registered_alone

__all__ = ["MEASURES"]

_PER_SCOPE = 10_000
_AT_ONCE = 1_000
_FLOW = "benchmark-migrated"

_DRAINING = textwrap.dedent("""
    import sys
    from stepwell import ItemStatus, Status, Stepwell, current, migration, step, workflow

    @migration(workflow="benchmark-migrated", from_version=1, to_version=2)
    def in_cents(value):
        value["variables"]["cents"] = value["variables"].pop("euros", 0) * 100
        return value

    @step
    def add(number: int) -> int:
        return number + 1

    @workflow(name="benchmark-migrated")
    async def flow(number: int) -> int:
        current().variables["cents"] = await add(number)
        return current().variables["cents"]

    url, count = sys.argv[1], int(sys.argv[2])
    with Stepwell(url) as well:
        items = [well.enqueue(flow, number) for number in range(count)]
        print("begun", flush=True)
        wrong = sum(item.result("10m") != number + 1 for number, item in enumerate(items))
    print(wrong, flush=True)
""")


def _in_cents(value: Any) -> Any:
    return {"cents": round(value["euros"] * 100), "name": value["name"]}


def _total_in_cents(value: Any) -> Any:
    value["variables"]["cents"] = value["variables"].pop("euros", 0) * 100
    return value


def values(plan: Plan) -> Iterator[Measurement]:
    """Measure the migration of scoped state."""
    count = plan.size(100_000, 200)
    with registered_alone(), Stepwell(f"sqlite:///{plan.folder}/values.db", worker=False) as well:
        for start in range(0, count, _AT_ONCE):
            scope = well.state.at(Scope.custom("prices", f"w{start // _PER_SCOPE}"))
            numbers = range(start, min(start + _AT_ONCE, count))
            scope.set_many({f"article-{n}": {"euros": n / 4, "name": f"article number {n}"} for n in numbers})
        migration(scope="custom/prices", from_version=1, to_version=2)(_in_cents)
        cpu = time.process_time()
        seconds, report = _timed(well)
        cpu = time.process_time() - cpu
    assert (report.migrated, report.failed, report.is_verified) == (count, 0, True)
    rate = count / seconds
    note = f"{count:,} values of 50 bytes on SQLite, counted, migrated and looked at again, in {cpu:.2f} s of processor time"
    yield Measurement(f"{plan.name}", rate, "values/s", target=at_least("values/s", rate, 20_000), note=note)


def executions(plan: Plan) -> Iterator[Measurement]:
    """Measure the migration of live executions."""
    count, url = plan.size(20_000, 20), f"sqlite:///{plan.folder}/executions.db"
    with registered_alone():
        asyncio.run(_make_live(url, count))
        migration(workflow=_FLOW, from_version=1, to_version=2)(_total_in_cents)
        with Stepwell(url, worker=False) as well:
            seconds, report = _timed(well)
            assert well.verify("live-0").ok
    assert (report.migrated, report.failed, report.is_verified) == (count, 0, True)
    note = f"{count:,} live executions on SQLite, each by a commit with a receipt, then looked at again"
    yield Measurement(f"{plan.name}", count / seconds, "executions/s", note=note)


def beside_queue(plan: Plan) -> Iterator[Measurement]:
    """Measure the errors while live executions are migrated and another process drains the queue of their workflow."""
    count, items, url = plan.size(100_000, 20), plan.size(5_000, 10), f"sqlite:///{plan.folder}/beside.db"
    with registered_alone():
        asyncio.run(_make_live(url, count))
        began = time.perf_counter()
        command = [sys.executable, "-c", _DRAINING, url, str(items)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as draining:
            assert draining.stdout is not None
            assert draining.stdout.readline() == "begun\n"
            migration(workflow=_FLOW, from_version=1, to_version=2)(_total_in_cents)
            with Stepwell(url, worker=False) as well:
                seconds, report = _timed(well)
                wrong = int(draining.stdout.readline() or items)
                drained = time.perf_counter() - began
                is_whole = all(
                    well.load(f"live-{n}").variables == {"cents": n * 100} for n in range(0, count, max(count // 100, 1))
                )
    assert is_whole
    errors = wrong + report.failed + (not report.is_verified)
    note = f"{report.migrated:,} live executions in {seconds:.1f} s, while {items:,} items drained in {drained:.1f} s, on SQLite"
    yield Measurement(f"{plan.name}", float(errors), "errors", target=at_most("errors", errors, 0), note=note)


async def _make_live(url: str, count: int) -> None:
    async with AsyncStepwell(url, worker=False) as well:

        async def make(number: int) -> None:
            await well.create(f"live-{number}", workflow=_FLOW)
            async with well.transaction(f"live-{number}") as tx:
                tx.set_variable("euros", number)

        for start in range(0, count, _AT_ONCE):
            await asyncio.gather(*(make(number) for number in range(start, min(start + _AT_ONCE, count))))


def _timed(well: Stepwell) -> tuple[float, MigrationReport]:
    began = time.perf_counter()
    report = well.migrate_state()
    return time.perf_counter() - began, report


MEASURES = {"values": values, "executions": executions, "beside_queue": beside_queue}
