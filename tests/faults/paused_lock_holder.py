"""A child that takes a lock, stops itself while it holds it, as a long pause would, and then tries all that a holder may."""

from __future__ import annotations

import logging
import os
import signal
import sys

from stepwell import HeldLock, LeaseLost, Scope, Stepwell
from stepwell.model.commit import Renew
from stepwell.testing.store_access import write_unit

__all__ = ["write_under"]


def write_under(well: Stepwell, held: HeldLock, by: str) -> bool:
    """Write to state and to an execution under a lock; whether it was accepted."""
    try:
        with well.state.transaction(lock=held) as state:
            state.state(Scope.globals()).set("by", by)
        with well.transaction("run", lock=held) as tx:
            tx.set_variable("by", by)
    except LeaseLost:
        return False
    return True


class Warned(logging.Handler):
    """Counts the warnings about locks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def main(url: str, seconds: str) -> None:
    warned = Warned()
    logging.getLogger("stepwell.state.locks").addHandler(warned)
    with Stepwell(url) as well:
        for _ in sys.stdin:
            lock, before = well.lock("door", seconds=float(seconds)), warned.count
            held = lock.acquire()
            os.kill(os.getpid(), signal.SIGSTOP)
            written = write_under(well, held, "sleeper")
            renewed = not isinstance(write_unit(well, Renew(held.name, held.holder, held.fence, 60)), LeaseLost)
            released = lock.release()
            print(f"written={written} renewed={renewed} released={released} warned={warned.count > before}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
