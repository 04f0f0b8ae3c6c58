"""A disk whose syncs can fail or lie, and whose power can be cut, as a SQLite VFS."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import apsw

__all__ = ["FaultyDisk", "Image"]

_SECTOR = 512

Image = dict[str, bytes]
"""The files of a folder by their names, as they are found after a power cut."""


@dataclass
class _File:
    """The synced bytes of a file, and its writes since the last sync, which may be lost."""

    durable: bytes
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        self.durable, self.pending = self.after(self.pending), []

    def after(self, operations: list[tuple[int, bytes | None]]) -> bytes:
        """The content once these writes (without data: cuts to a length) have reached the platter."""
        content = bytearray(self.durable)
        for offset, data in operations:
            end = offset if data is None else offset + len(data)
            content.extend(bytes(max(0, end - len(content))))
            if data is None:
                del content[end:]
            else:
                content[offset:end] = data
        return bytes(content)

    def survivors(self, choice: random.Random) -> list[tuple[int, bytes | None]]:
        """Some of the pending writes: each may be there, be lost, or have only some of its sectors written."""
        kept: list[tuple[int, bytes | None]] = []
        for offset, data in self.pending:
            fate = choice.choice(["there", "lost", "torn"])
            if fate == "torn" and data is not None:
                starts = [start for start in range(0, len(data), _SECTOR) if choice.random() < 0.5]
                kept += [(offset + start, data[start : start + _SECTOR]) for start in starts]
            elif fate == "there":
                kept.append((offset, data))
        return kept


class FaultyDisk(apsw.VFS):
    """Works as the default disk until told otherwise; ``watch`` is called after each operation that changes a file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_lying = False
        """Whether a sync is answered at once and done by nobody."""
        self.watch: Callable[[], None] = lambda: None
        self._files: dict[str, _File] = {}
        self.fail_sync(0)
        super().__init__(name, "")

    def fail_sync(self, number: int, *, is_persistent: bool = False) -> None:
        """Let the nth sync from now on fail, and with ``is_persistent`` all after it."""
        self._number, self._is_persistent = number, is_persistent
        self._syncs, self.was_hit = 0, False

    def heal(self) -> None:
        """Be a good disk again; ``was_hit`` still tells whether anything failed."""
        self._number, self._is_persistent = 0, False

    def cut_power(self, choice: random.Random) -> Image:
        """Return the content after a power cut at this moment."""
        return {Path(path).name: file.after(file.survivors(choice)) for path, file in self._files.items()}

    def sync(self, file: _File) -> None:
        """Note that a file was synced, or fail."""
        self._syncs += 1
        if self._syncs == self._number or (self._is_persistent and self._syncs > self._number):
            self.was_hit = True
            raise apsw.IOError("this sync fails on demand")
        if not self.is_lying:
            file.sync()

    def file(self, path: str) -> _File:
        """Return the state of a file; at first, its content."""
        if path not in self._files:
            self._files[path] = _File(Path(path).read_bytes() if Path(path).exists() else b"")
        return self._files[path]

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _Handle(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self._files.pop(filename, None)


class _Handle(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary"
        self._disk, self._file = disk, disk.file(path)
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._file.pending.append((offset, bytes(data)))
        self._disk.watch()

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.sync(self._file)
        super().xSync(flags)
        self._disk.watch()

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._file.pending.append((newsize, None))
        self._disk.watch()
