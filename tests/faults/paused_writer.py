"""A child that claims an execution and stops itself in the middle of its commits, as a long pause would."""

from __future__ import annotations

import os
import signal
import sys

from tests.faults.hooks import at
from tests.faults.leases import claim

from stepwell import LeaseLost, Stepwell
from stepwell.fault_points import armed


def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def main(url: str, point: str) -> None:
    well = Stepwell(url)
    for line in sys.stdin:
        execution_id = line.strip()
        lease = claim(well, execution_id, "sleeper")
        tx = well.transaction(execution_id, fence=lease.fence).begin()
        tx.set_variable("written_by", "sleeper")
        tx.state(well.state.globals).set("written_by", "sleeper")
        try:
            with armed(at(point, 1, stop_this_process)):
                tx.commit()
            print("accepted", flush=True)
        except LeaseLost:
            print("refused", flush=True)
    well.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
