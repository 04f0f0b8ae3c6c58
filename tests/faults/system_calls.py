"""Fails the system calls that SQLite makes, by number: the nth one from now, once or from then on, whole or half-way through.

SQLite lets a test put its own functions in the place of ``open``, ``pwrite`` and the like, so that errors come from where they
come from in life, and are handled by the code that handles them in life.
"""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Callable
from typing import Any

import apsw

__all__ = ["DISK_FULL", "IO_ERROR", "SystemCalls"]

IO_ERROR, DISK_FULL = errno.EIO, errno.ENOSPC

_INT, _POINTER, _SIZE, _OFFSET = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "open": (_INT, ctypes.c_char_p, _INT, _INT),
    "ftruncate": (_INT, _INT, _OFFSET),
    "pread64": (ctypes.c_ssize_t, _INT, _POINTER, _SIZE, _OFFSET),
    "pwrite64": (ctypes.c_ssize_t, _INT, _POINTER, _SIZE, _OFFSET),
}


class SystemCalls:
    """Stands between SQLite and the kernel until ``restore``; lets everything through until ``fail``."""

    def __init__(self) -> None:
        self._unix = apsw.VFS("system calls", "unix")
        self._originals = {name: self._unix.xGetSystemCall(name) for name in _SIGNATURES}
        self._name = ""
        # SQLite keeps the bare address of a callback, so this object must keep the callback itself.
        self._callbacks = [self._put(name, signature) for name, signature in _SIGNATURES.items()]
        self.was_hit, self.hit = False, threading.Event()
        self._act: Callable[[], None] | None = None

    def fail(self, name: str, number: int, error: int, *, is_persistent: bool = False, is_torn: bool = False) -> None:
        """Let the nth call fail, and with ``is_persistent`` all after it; torn: half is written, and then comes the error."""
        self._name, self._number, self._error = name, number, error
        self._is_persistent, self._is_torn, self._act = is_persistent, is_torn, None
        self._count, self.was_hit = 0, False
        self.hit.clear()

    def strike(self, name: str, number: int, act: Callable[[], None], *, is_after: bool) -> None:
        """Act right before the nth call, or right after it."""
        self.fail(name, number, 0)
        self._act, self._is_after = act, is_after

    def heal(self) -> None:
        """Let everything through again; ``was_hit`` still tells whether anything failed."""
        self._name = ""

    def restore(self) -> None:
        """Give SQLite its own functions back."""
        for name, address in self._originals.items():
            self._unix.xSetSystemCall(name, address)
        self._unix.unregister()

    def _put(self, name: str, signature: tuple[Any, ...]) -> Callable[..., int]:
        function = ctypes.CFUNCTYPE(*signature, use_errno=True)
        original = function(self._originals[name])

        def call(*arguments: Any) -> int:
            if name != self._name:
                return original(*arguments)
            return self._call(original, arguments)

        callback = function(call)
        self._unix.xSetSystemCall(name, ctypes.cast(callback, ctypes.c_void_p).value)
        return callback

    def _struck(self, act: Callable[[], None], original: Callable[..., int], arguments: tuple[Any, ...]) -> int:
        is_due = self._count == self._number
        if is_due and not self._is_after:
            act()
        result = original(*arguments)
        if is_due and self._is_after:
            act()
        return result

    def _call(self, original: Callable[..., int], arguments: tuple[Any, ...]) -> int:
        self._count += 1
        if self._act is not None:
            return self._struck(self._act, original, arguments)
        if self._is_torn and self._count == self._number and arguments[2] > 1:
            file, data, size, offset = arguments
            return original(file, data, size // 2, offset)  # a short write is no error; SQLite comes again with the rest
        first = self._number + (1 if self._is_torn else 0)
        if not (self._count >= first if self._is_persistent else self._count == first):
            return original(*arguments)
        self.was_hit = True
        self.hit.set()
        ctypes.set_errno(self._error)
        return -1
