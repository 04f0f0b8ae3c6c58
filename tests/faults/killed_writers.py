"""A child in which 8 threads commit to 50 executions until it is killed; every ack goes to the log, then to the parent."""

from __future__ import annotations

import random
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.acks import AckLog

from stepwell import Conflict, Receipt, Scope, StepOutput, Stepwell

__all__ = ["EXECUTIONS", "LEDGER", "commit_once"]

WRITERS, EXECUTIONS = 8, [f"run-{number}" for number in range(50)]
LEDGER = Scope.custom("ledger")
_DONE_AT = datetime(2026, 1, 1, tzinfo=UTC)


def commit_once(well: Stepwell, execution_id: str) -> Receipt | None:
    """One commit whose parts can be counted against each other: a step, a variable, a step count and a scoped counter."""
    try:
        with well.transaction(execution_id) as tx:
            tx.record_step(StepOutput("n", f"{tx.commit_id}", "COMPLETED", tx.commit_id, _DONE_AT, 1))
            tx.set_variable("last", tx.commit_id)
            tx.increment_step_count()
            tx.state(LEDGER).increment(execution_id)
    except Conflict:
        return None
    return tx.receipt


def main(url: str, acks: str, seed: str) -> None:
    well, log, mouth = Stepwell(url), AckLog(Path(acks)), threading.Lock()

    def write(writer: int) -> None:
        choice = random.Random(f"{seed}/{writer}")
        while True:
            receipt = commit_once(well, choice.choice(EXECUTIONS))
            if receipt is not None:
                log.note(receipt)
                with mouth:
                    print("ack", flush=True)

    for writer in range(WRITERS):
        threading.Thread(target=write, args=(writer,)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
