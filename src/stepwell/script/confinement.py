"""Take from this process what a script must not have: files, sockets, other processes, and more memory or CPU time than it may use.

Resource limits hold on every POSIX system. On Linux a seccomp filter is added: the kernel then refuses every system call but the
few that an interpreter needs to compute, allocate memory, and read and write the pipes that are open already. Both hold until the
process ends, no matter which code runs in it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from pathlib import Path

__all__ = ["confine"]

_CALLS: dict[str, tuple[int, str]] = {
    # read write close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn writev sched_yield mremap
    # madvise nanosleep getpid exit gettimeofday getrusage sigaltstack gettid time futex restart_syscall clock_gettime
    # clock_nanosleep exit_group getrandom membarrier rseq
    "x86_64": (
        0xC000003E,
        "0 1 3 5 8 9 10 11 12 13 14 15 20 24 25 28 35 39 60 96 98 131 186 201 202 219 228 230 231 318 324 334",
    ),
    "aarch64": (
        0xC00000B7,
        "63 64 57 80 62 222 226 215 214 134 135 139 66 124 216 233 101 172 93 169 165 132 178 98 128 113 115 94 278 283 293",
    ),
}
"""By processor: the number of its kind of system calls, and the calls that are allowed."""
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with EPERM
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


def confine(memory_bytes: int, cpu_seconds: int) -> None:
    """Confine this process for the rest of its life.

    Args:
        memory_bytes: how much address space it may use beyond what it uses now.
        cpu_seconds: how much CPU time it may use in its life; the kernel ends it then.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    used = _address_space()
    if used is not None:
        resource.setrlimit(resource.RLIMIT_AS, (used + memory_bytes, used + memory_bytes))
    # Descriptors that are open stay; none can be added, so that nothing can be opened or connected.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    if sys.platform == "linux":
        _filter_system_calls()


def _address_space() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _filter_system_calls() -> None:
    known = _CALLS.get(platform.machine())
    if known is None:
        return  # another processor: resource limits and the interpreter's own walls remain
    libc = ctypes.CDLL(None, use_errno=True)
    audit, calls = known
    code = _instructions(audit, [int(each) for each in calls.split()])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp was refused: {os.strerror(error)}")


def _instructions(audit: int, calls: list[int]) -> bytes:
    """Return the filter: the right architecture, and one of these calls; anything else fails with EPERM."""

    def one(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    count = len(calls)
    found = [one(_LOAD, 4), one(_JUMP_EQUAL, audit, 0, count + 1), one(_LOAD, 0)]
    found += [one(_JUMP_EQUAL, call, count - at, 0) for at, call in enumerate(calls)]
    return b"".join([*found, one(_RETURN, _REFUSE), one(_RETURN, _ALLOW)])
