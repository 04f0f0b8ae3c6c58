"""A child that takes SQLite's locks on a file, or looks at who has them, and says so."""

from __future__ import annotations

import fcntl
import os
import struct
import sys

import apsw

# Where SQLite keeps the lock that says "somebody has this shared memory open" (sqlite.org/walformat.html).
_IN_USE_AT = 128
_LOCK = "hhqqi4x"


def hold_write_lock(path: str) -> None:
    """Begin a write transaction, and end it when told."""
    connection = apsw.Connection(path)
    connection.execute("BEGIN IMMEDIATE").fetchall()
    print("held", flush=True)
    sys.stdin.readline()
    connection.execute("ROLLBACK").fetchall()
    connection.close()
    print("free", flush=True)


def look_at_shared_memory(path: str) -> None:
    """Say which process has the shared memory in use; 0: nobody."""
    file = os.open(f"{path}-shm", os.O_RDWR)
    wanted = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, _IN_USE_AT, 1, 0)
    kind, _, _, _, process = struct.unpack(_LOCK, fcntl.fcntl(file, fcntl.F_GETLK, wanted))
    print(0 if kind == fcntl.F_UNLCK else process, flush=True)


if __name__ == "__main__":
    {"hold": hold_write_lock, "look": look_at_shared_memory}[sys.argv[1]](sys.argv[2])
