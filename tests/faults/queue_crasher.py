"""A process that forks a child for each case it is told of; the child writes to the queue and dies at one hit of one point."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.faults.hooks import at, kill_this_process
from tests.faults.queue_case import open_store, write

from stepwell.fault_points import armed


def crash(path: str, act: str, point: str, hit: int) -> None:
    """Make an act with a point armed."""
    store = open_store(Path(path))
    with armed(at(point, hit, kill_this_process)):
        write(store, act)


def main() -> None:
    """For each line (path, act, point and hit, as JSON) say how its child ended: a negative number is the signal."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            crash(*json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
