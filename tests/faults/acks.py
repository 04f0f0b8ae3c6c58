"""The ack log: what clients were told, kept outside the system and synced before anything else is done."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stepwell import Receipt

__all__ = ["Ack", "AckLog"]


class Ack(msgspec.Struct, frozen=True):
    """One commit that its caller was told has landed."""

    execution_id: str
    revision: int
    commit_id: str
    digest: str


class AckLog:
    """Appends acks to a file; each is on the disk before ``note`` returns. Threads and processes may share the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(self, receipt: Receipt) -> None:
        """Keep a receipt's ack."""
        ack = Ack(receipt.execution_id, receipt.revision, receipt.commit_id, receipt.digest)
        # On a line of its own, also if the one before was cut short by a kill.
        os.write(self._file, b"\n" + msgspec.json.encode(ack) + b"\n")
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @staticmethod
    def read(path: Path) -> list[Ack]:
        """All acks; a line that was cut short by a kill was never relied on by anybody."""
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line, type=Ack) for line in lines if line.endswith(b"}")]
