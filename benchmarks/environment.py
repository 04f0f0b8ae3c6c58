"""What the figures were taken on: without it they mean nothing."""

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
    """How long this folder's disk takes to make 4 KiB durable, in milliseconds."""
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
    """The environment as one JSON object."""
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
