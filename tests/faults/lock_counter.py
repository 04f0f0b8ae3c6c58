"""A child that counts up, under a lock, what it reads, lets others run, and writes back."""

from __future__ import annotations

import os
import sys

from stepwell import Stepwell

__all__ = ["count"]


def count(well: Stepwell, times: int) -> None:
    """Read, let others run, write: without the lock, additions get lost."""
    counter = well.state.globals
    for _ in range(times):
        with well.lock("counter", timeout=60):
            before = counter.get("n", 0)
            os.sched_yield()
            counter.set("n", before + 1)


def main(url: str, times: str) -> None:
    with Stepwell(url) as well:
        print("ready", flush=True)
        sys.stdin.readline()
        count(well, int(times))
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
