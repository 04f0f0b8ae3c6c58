"""Frames on a pipe between a worker and its child processes: bytes after their length, bounded."""

from __future__ import annotations

import struct
from typing import IO

__all__ = ["read_frame", "write_frame"]

_LENGTH = struct.Struct(">I")
_LONGEST = 256 * 1024 * 1024
"""More than any value of a step; a length beyond it is no length of ours."""


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Send one frame."""
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes], longest: int = _LONGEST) -> bytes | None:
    """Receive one frame. Return None if the other side is gone, or announces more than ``longest`` bytes."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > longest:
        return None
    data = stream.read(length)
    return data if len(data) == length else None
