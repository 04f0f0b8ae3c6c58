"""Files of compressed lines, of which backups and archives consist; a manipulated file cannot fill the memory."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from stepwell.errors import InvalidBackup

__all__ = ["pack_lines", "read_regular_file", "unpacked_lines", "write_new_file"]

_LARGEST_FILE = 1024 * 1024 * 1024
"""The maximum unpacked size of a file: more than any writer makes, even with a record of the largest size."""
_PIECE_BYTES = 1024 * 1024


def pack_lines(lines: list[bytes], level: int) -> bytes:
    """Return lines as the bytes of a file."""
    return zlib.compress(b"\n".join([*lines, b""]), level)


def unpacked_lines(data: bytes, name: str) -> Iterator[bytes]:
    """Return the lines of a file that are not empty, one at a time. Raise ``InvalidBackup`` for one that is cut or too large.

    A few bytes may unpack to a thousand times as many, so no more is unpacked than the lines that were asked for.
    """
    unpacker, rest, size = zlib.decompressobj(), b"", 0
    pieces: list[bytes] = []
    try:
        while not unpacker.eof:
            piece = unpacker.decompress(data or rest, _PIECE_BYTES)
            data, rest = b"", unpacker.unconsumed_tail
            size += len(piece)
            if size > _LARGEST_FILE or not (piece or rest or unpacker.eof):
                raise InvalidBackup(f"{name} is too large, or cut")
            *ended, last = piece.split(b"\n")
            for line in ended:
                whole = b"".join((*pieces, line))
                pieces = []
                if whole:
                    yield whole
            pieces.append(last)
    except zlib.error as error:
        raise InvalidBackup(f"{name} cannot be read: {error}") from None
    if whole := b"".join(pieces):
        yield whole


def read_regular_file(path: Path, size: int | None = None) -> bytes:
    """Return the bytes of a file. Raise ``OSError`` for a device or a pipe, which may never end, and for a name that is none.

    - ``size``: how many bytes it has; one of another size is not read, and empty bytes are returned.
    """
    try:
        found = path.stat()
    except ValueError as error:  # a NUL in its name
        raise OSError(0, str(error)) from None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is no regular file")
    return path.read_bytes() if size in (None, found.st_size) else b""


def write_new_file(path: Path, data: bytes) -> None:
    """Write a file and sync it. What has its name is removed first: a link that leads elsewhere is not written through."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
