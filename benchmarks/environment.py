"""The machine and versions of a run, without which figures mean nothing."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from statistics import median

import apsw

import stepwell
from benchmarks.measurement import significant

__all__ = ["environment_line", "fsync_ms"]


def fsync_ms(folder: Path, times: int = 50) -> float:
    """Return the median time of an fsync of 4 KiB in this folder, in milliseconds."""
    taken: list[float] = []
    with (folder / "fsync").open("wb") as file:
        for _ in range(times):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


def environment_line(folder: Path, *, is_quick: bool) -> str:
    """Return the environment as one JSON object."""
    return json.dumps(
        {
            "kind": "environment",
            "stepwell": stepwell.__version__,
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "sqlite": apsw.sqlite_lib_version(),
            "platform": f"{platform.system()} {platform.machine()}",
            "cpu_count": os.cpu_count(),
            "fsync_ms": significant(fsync_ms(folder)),
            "quick": is_quick,
        }
    )
