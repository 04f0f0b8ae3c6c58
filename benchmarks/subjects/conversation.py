"""A long conversation: how much 500 turns take in the store, beside a full copy of the messages with every turn."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement
from benchmarks.plan import Plan
from stepwell import Answer, AsyncStepwell, Stepwell, step, workflow

__all__ = ["MEASURES"]

_ASKED, _ANSWERED = "q" * 350, "a" * 1_400
_MB = 1_000_000
_RAW_IS = "all messages so far, written with every turn, as a full checkpoint has them (computed)"


def _copies(turns: int) -> float:
    return (len(_ASKED) + len(_ANSWERED)) * turns * (turns + 1) / 2 / _MB


def _size(path: Path) -> float:
    """Return the size of a database without free pages, in MB."""
    with sqlite3.connect(path) as database:
        database.execute("pragma wal_checkpoint(truncate)")
        database.execute("vacuum")
    return path.stat().st_size / _MB


def _figure(plan: Plan, turns: int, path: Path, what: str) -> Measurement:
    size, raw = _size(path), _copies(turns)
    note = f"{turns} turns of {len(_ASKED) + len(_ANSWERED):,} bytes on SQLite, {what}"
    return Measurement(plan.name, size, "MB", raw=raw, raw_is=_RAW_IS, ratio=size / raw, note=note)


def _reply(state: Any, message: str) -> Answer:
    return Answer(_ANSWERED, collected={"asked": len(message)})


def turns(plan: Plan) -> Iterator[Measurement]:
    """Measure the bytes of a conversation with its history."""
    count, path = plan.size(500, 5), plan.folder / "turns.db"
    with Stepwell(f"sqlite:///{path}?synchronous=NORMAL", worker=False) as well:
        for _ in range(count):
            well.conversations.turn("long", _reply, _ASKED)
    yield _figure(plan, count, path, "each with its message, its reply and the state after it")


@step
async def _answer(message: str) -> str:
    return message + _ANSWERED


@workflow(name="benchmark-conversation")
async def _talk(count: int) -> None:
    for _ in range(count):
        await _answer(_ASKED)


def steps(plan: Plan) -> Iterator[Measurement]:
    """Measure the bytes of a run with a step for each turn, and a receipt for each step."""
    count, path = plan.size(500, 5), plan.folder / "steps.db"

    async def run() -> None:
        async with AsyncStepwell(f"sqlite:///{path}?synchronous=NORMAL") as well:
            await (await well.start(_talk, count)).result("5m")

    asyncio.run(run())
    yield _figure(plan, count, path, "each a step with its receipt, with all snapshots of the run")


MEASURES = {"turns": turns, "steps": steps}
