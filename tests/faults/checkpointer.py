"""A child that commits and, from a second connection, keeps copying the log back into the file in every way SQLite knows."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path

import apsw
from tests.faults.acks import AckLog

from stepwell import Conflict, Stepwell

COMMITS = 120


def main(path: str, name: str, acks: str) -> None:
    well, log, is_over = Stepwell(f"sqlite:///{path}"), AckLog(Path(acks)), threading.Event()

    def checkpoint() -> None:
        connection = apsw.Connection(path)
        connection.set_busy_timeout(1_000)
        for mode in itertools.cycle(["PASSIVE", "FULL", "RESTART", "TRUNCATE"]):
            if is_over.is_set():
                break
            try:
                connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            except apsw.BusyError:
                continue
        connection.close()

    thread = threading.Thread(target=checkpoint)
    thread.start()
    for number in range(COMMITS):
        for execution_id in (name, "shared"):
            try:
                with well.transaction(execution_id) as tx:
                    tx.set_variable("by", [name, number])
            except Conflict:
                continue
            assert tx.receipt is not None
            log.note(tx.receipt)
    is_over.set()
    thread.join()
    well.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
