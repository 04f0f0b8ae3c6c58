"""``import stepwell`` in a new interpreter: its duration and the modules that it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measurement import Measurement, at_most
from benchmarks.plan import Plan
from benchmarks.rounds import in_turns
from benchmarks.workload import beside

__all__ = ["MEASURES"]

HEAVY = ("hiredis", "jinja2", "lupa", "psycopg", "pydantic", "redis", "rich", "starlette", "temporalio", "uvicorn")

_TIMED = """
import sys, time
began = time.perf_counter()
{imports}
print((time.perf_counter() - began) * 1000)
"""
_LISTED = (
    "import json, sys; before = set(sys.modules); from stepwell import *; print(json.dumps(sorted(set(sys.modules) - before)))"
)


def _fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def duration(plan: Plan) -> Iterator[Measurement]:
    """Measure how long the import takes."""
    ours, raws = in_turns(
        plan.rounds,
        lambda: float(_fresh(_TIMED.format(imports="import stepwell"))),
        lambda: float(_fresh(_TIMED.format(imports="import msgspec, asyncio"))),
    )
    yield beside(
        plan.name,
        ours,
        raws,
        raw_is="ms to import msgspec and asyncio, which it needs",
        judge=lambda value, _raw, _ratio: at_most("value", value, 80),
        unit="ms",
    )


def ready(plan: Plan) -> Iterator[Measurement]:
    """Measure the time until a well can be opened, including the names that are imported on first use."""
    ours, raws = in_turns(
        plan.rounds,
        lambda: float(_fresh(_TIMED.format(imports="from stepwell import Stepwell, step, workflow"))),
        lambda: float(_fresh(_TIMED.format(imports="import msgspec, asyncio"))),
    )
    yield beside(plan.name, ours, raws, raw_is="ms to import msgspec and asyncio, which it needs", unit="ms")


def modules(plan: Plan) -> Iterator[Measurement]:
    """Measure which modules all public names load."""
    loaded = json.loads(_fresh(_LISTED))
    heavy = sorted({name.partition(".")[0] for name in loaded} & set(HEAVY))
    note = f"heavy: {', '.join(heavy)}" if heavy else f"{sum(name.startswith('stepwell') for name in loaded)} are Stepwell's own"
    yield Measurement(plan.name, len(loaded), "modules", note=note)
    yield Measurement(f"{plan.name}.heavy", len(heavy), "modules", target=at_most("value", len(heavy), 0), note=", ".join(heavy))


MEASURES = {"duration": duration, "ready": ready, "modules": modules}
