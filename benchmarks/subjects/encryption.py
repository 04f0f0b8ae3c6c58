"""Encryption: what it adds to a commit and to what is stored, and how fast keys are rotated and subjects erased."""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement, at_most
from benchmarks.plan import Plan
from stepwell import KeyRing, Stepwell

__all__ = ["MEASURES"]

_RING, _TURNED = KeyRing.of({"k1": b"1" * 32}), KeyRing.of({"k1": b"1" * 32, "k2": b"2" * 32})
_OUTPUT = {"number": 7, "text": "a short text", "parts": [1, 2, 3]}


def _steps(well: Stepwell, execution_id: str, count: int) -> list[float]:
    """Make commits of one step each; return how long each took."""
    well.create(execution_id)
    took: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        with well.transaction(execution_id) as tx:
            tx.set_variable(f"v{number}", _OUTPUT)
        took.append(time.perf_counter() - began)
    return took


def _stored(path: Path) -> int:
    """Return the bytes of receipts and mutations that a file has."""
    with sqlite3.connect(path) as database:
        return database.execute("select sum(length(header) + length(body)) from commits").fetchone()[0]


def cost(plan: Plan) -> Iterator[Measurement]:
    """Measure the commits of one step each, plain and encrypted, in turns on one machine, and the bytes that each stores."""
    count = plan.size(2_000, 20)
    kinds: dict[str, dict[str, Any]] = {"plain": {}, "encrypted": {"encryption": _RING}, "compressing": {"compress_over": 1_000}}
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(3):
        for name, options in kinds.items():
            with Stepwell(f"sqlite:///{plan.folder}/{name}.db?synchronous=NORMAL", worker=False, **options) as well:
                took[name] += _steps(well, f"run-{turn}", count)
    plain = statistics.median(took["plain"])
    for name in kinds:
        middle = statistics.median(took[name])
        note = f"p50 of {3 * count:,} commits on SQLite; {(middle - plain) * 1e6:+.0f} us beside plain"
        yield Measurement(f"{plan.name}.{name}", middle * 1e6, "us", note=note)
    for name in kinds:
        per_step = _stored(plan.folder / f"{name}.db") / (3 * count)
        wanted = 1.5 * len(str(_OUTPUT)) + 200
        note = f"receipt and mutations of a step of {len(str(_OUTPUT))} bytes; 1.5 times that and 200: {wanted:.0f}"
        yield Measurement(f"{plan.name}.stored_{name}", per_step, "bytes", note=note, target=at_most("bytes", per_step, wanted))


def keys(plan: Plan) -> Iterator[Measurement]:
    """Measure how fast data keys are wrapped anew, and how long the erasure of a subject with many runs takes."""
    subjects, runs = plan.size(1_000, 5), plan.size(500, 5)
    url = f"sqlite:///{plan.folder}/well.db?synchronous=NORMAL"
    with Stepwell(url, worker=False, encryption=_RING) as well:
        for number in range(subjects):
            well.create(f"one-{number}", subject=f"user:{number}")
        for number in range(runs):
            well.create(f"many-{number}", context={"n": number}, subject="user:many")
        began = time.perf_counter()
        well.erase("user:many", cancel=True)
        erased = time.perf_counter() - began
    with Stepwell(url, worker=False, encryption=_TURNED) as well:
        began = time.perf_counter()
        done = well.rotate_keys()
        rotated = time.perf_counter() - began
    yield Measurement(f"{plan.name}.erase", runs / erased, "runs/s", note=f"a subject with {runs:,} live runs, which end with it")
    yield Measurement(f"{plan.name}.rotate", done.rewrapped / rotated, "keys/s", note=f"{done.rewrapped:,} data keys")


MEASURES = {"cost": cost, "keys": keys}
