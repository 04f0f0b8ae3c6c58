"""Backups: how fast a store is copied into files, checked, and restored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measurement import Measurement, Target, at_least
from benchmarks.plan import Plan
from stepwell import AsyncStepwell, Stepwell, verify_backup

__all__ = ["MEASURES"]

_COMMITS = 10
_AT_ONCE = 500


def backup(plan: Plan) -> Iterator[Measurement]:
    """Measure a backup of executions with ten commits each, its check, an empty increment, and its restore."""
    executions = plan.size(2_000, 20)
    commits = executions * _COMMITS
    with Stepwell(f"sqlite:///{plan.folder}/source.db?synchronous=NORMAL", worker=False) as well:
        for number in range(executions):
            well.create(f"run-{number}")
            for each in range(_COMMITS - 1):
                with well.transaction(f"run-{number}") as tx:
                    tx.set_variable(f"v{each}", {"number": each, "text": "a short text"})
        folder = plan.folder / "backup"
        began = time.perf_counter()
        well.backup(folder)
        made = time.perf_counter() - began
        began = time.perf_counter()
        well.backup(folder)
        again = time.perf_counter() - began
    checked, used = _verified(folder, commits)
    with Stepwell(f"sqlite:///{plan.folder}/target.db?synchronous=NORMAL", worker=False) as well:
        began = time.perf_counter()
        well.restore_backup(folder)
        restored = time.perf_counter() - began
    rates = {"create": made, "verify": checked, "restore": restored}
    wanted = {"create": 20_000, "verify": 50_000}
    for name, seconds in rates.items():
        rate = commits / seconds
        target = at_least("commits/s", rate, wanted[name]) if name in wanted else None
        note = f"{commits:,} commits on SQLite" + (f"; {used:.2f} s of processor time" if name == "verify" else "")
        yield Measurement(f"{plan.name}.{name}", rate, "commits/s", target=target, note=note)
    yield Measurement(f"{plan.name}.nothing_new", again * 1000, "ms", note=f"an increment of {executions:,} unchanged executions")


def large(plan: Plan) -> Iterator[Measurement]:
    """Measure a backup of a large well, and its check."""
    executions, url = plan.size(100_000, 20), f"sqlite:///{plan.folder}/large.db?synchronous=NORMAL"
    commits = executions * _COMMITS
    asyncio.run(_fill(url, executions))
    with Stepwell(url, worker=False) as well:
        began = time.perf_counter()
        well.backup(plan.folder / "backup")
        made = time.perf_counter() - began
    checked, used = _verified(plan.folder / "backup", commits)
    note = f"{executions:,} executions of {_COMMITS} commits on SQLite"
    yield Measurement(f"{plan.name}.create", commits / made, "commits/s", target=_goal(commits / made, 20_000), note=note)
    note = f"{note}; {used:.2f} s of processor time"
    yield Measurement(f"{plan.name}.verify", commits / checked, "receipts/s", target=_goal(commits / checked, 50_000), note=note)


def _verified(folder: Path, commits: int) -> tuple[float, float]:
    """Check a backup; return the seconds that it took, and those of processor time."""
    began, used = time.perf_counter(), time.process_time()
    assert verify_backup(folder).receipts == commits
    return time.perf_counter() - began, time.process_time() - used


def _goal(rate: float, wanted: int) -> Target:
    return at_least("commits/s", rate, wanted)


async def _fill(url: str, executions: int) -> None:
    async with AsyncStepwell(url, worker=False) as well:

        async def fill(number: int) -> None:
            await well.create(f"run-{number}")
            for each in range(_COMMITS - 1):
                async with well.transaction(f"run-{number}") as tx:
                    tx.set_variable(f"v{each}", {"number": each, "text": "a short text"})

        for start in range(0, executions, _AT_ONCE):
            await asyncio.gather(*(fill(number) for number in range(start, min(start + _AT_ONCE, executions))))


MEASURES = {"backup": backup, "large": large}
