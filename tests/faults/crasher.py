"""A child that makes a write under test and kills itself at one hit of one fault point."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.acks import AckLog
from tests.faults.callers import CALLERS, go_by_the_given_clock
from tests.faults.crash_case import ACTS, ORDER
from tests.faults.hooks import at, kill_this_process

from stepwell.fault_points import armed


def main(url: str, colour: str, what: str, point: str, hit: str, acks: str) -> None:
    """Open the well, warm up, then write (or only load) with the point armed. Whoever comes back was told of it: an ack."""
    go_by_the_given_clock()
    log, caller = AckLog(Path(acks)), CALLERS[colour](url)
    hook = at(point, int(hit), kill_this_process)
    if what == "load":
        with armed(hook):
            caller.load(ORDER)
    else:
        commit = ACTS[what].begin(caller)
        with armed(hook):
            log.note(commit())
    caller.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
