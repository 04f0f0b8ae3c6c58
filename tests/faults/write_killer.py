"""Forks a child for each line it reads; the child commits to SQLite and kills itself at one of the writes to the file."""

from __future__ import annotations

import json
import os
import sys

from tests.faults.callers import Blocking
from tests.faults.crash_case import ORDER, change, pack
from tests.faults.hooks import kill_this_process
from tests.faults.system_calls import SystemCalls

CHANGES = {"transaction": change, "fast path": pack}


def commit(url: str, way: str, number: int, is_after: bool) -> None:
    """Commit, and die right before or after the nth write to the file; without a commit id, so that the fast path is open."""
    calls, caller = SystemCalls(), Blocking(url)
    for is_warm in (True, False):
        caller.begin(ORDER, None, lambda tx, is_warm=is_warm: tx.set_variable("is_warm", is_warm)).commit()
    pending = caller.begin(ORDER, None, CHANGES[way])
    calls.strike("pwrite64", number, kill_this_process, is_after=is_after)
    pending.commit()


def main() -> None:
    """For each line (the arguments of ``commit``, as JSON) say how the child ended: a negative number is the signal."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            commit(*json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
