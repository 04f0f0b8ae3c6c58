"""Child processes for steps and scripts: a few, started when first needed, killed when one overstays.

What crosses is JSON in frames, never code. Each exchange has a thread here that waits for its process; killing the process ends
that wait. A process serves one owner only: what a script of one workspace may have left in its memory is never there for another's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import ClassVar, Generic, TypeVar

from stepwell.errors import ProcessDied
from stepwell.runtime.steps.frames import read_frame, write_frame

__all__ = ["ChildProcess", "ProcessPool", "Slot"]

T = TypeVar("T")


class Slot:
    """The right to keep one processor busy. Use it as a context manager."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots, self._is_held = slots, False

    async def _take(self) -> None:
        await self._slots.acquire()
        self._is_held = True

    def _give(self) -> None:
        if self._is_held:
            self._is_held = False
            self._slots.release()

    async def __aenter__(self) -> Slot:
        await self._take()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._give()

    @asynccontextmanager
    async def lent(self) -> AsyncGenerator[None]:
        """Let another process have the slot while this one waits for something here: it may be that other one."""
        self._give()
        try:
            yield
        finally:
            await self._take()


class ChildProcess:
    """One process, which is started once."""

    module: ClassVar[str]
    """The module whose program it runs."""
    longest_frame: int | None = None
    """The longest frame that is accepted from it, in bytes."""

    def __init__(self, threads: ThreadPoolExecutor, owner: str = "") -> None:
        self._threads, self.owner = threads, owner
        self._child: subprocess.Popen[bytes] | None = None
        self.is_dead = False

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that it gets, beside the paths to import from."""
        return {}

    async def start(self) -> None:
        """Start the process. Not part of a step's timeout, since starting an interpreter takes time."""
        if self._child is None:
            await self._in_thread(self._start)

    async def exchange(self, data: bytes) -> bytes:
        """Send a frame, and return the answer. Raise ``ProcessDied`` if it is gone; a caller that gives up kills it."""
        return await self._in_thread(lambda: self._exchange(data))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            self.kill()
            raise

    def _start(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109 - sys.path is of texts
        command = (sys.executable, "-P", "-m", self.module)
        self._child = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of ours
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**self.environment(), "PYTHONPATH": paths}
        )
        if self.is_dead:  # the caller gave up while it started
            self._child.kill()
        self._hear(self._child)

    def _exchange(self, data: bytes) -> bytes:
        child = self._child
        if child is None or child.stdin is None:
            raise ProcessDied("the process of the step was not started")
        with suppress(OSError):  # if it is gone, there is nothing to hear either
            write_frame(child.stdin, data)
        return self._hear(child)

    def _hear(self, child: subprocess.Popen[bytes]) -> bytes:
        answer = None
        if child.stdout is not None:
            with suppress(OSError):
                answer = read_frame(child.stdout) if self.longest_frame is None else read_frame(child.stdout, self.longest_frame)
        if answer is None or self.is_dead:
            raise ProcessDied(_how(self._bury(child)))
        return answer

    def _bury(self, child: subprocess.Popen[bytes]) -> int:
        self.is_dead = True
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            return child.wait(1)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    @property
    def has_ended(self) -> bool:
        """True if the process was started and is gone."""
        return self._child is not None and self._child.poll() is not None

    def kill(self) -> None:
        """Kill the process at once."""
        self.is_dead = True
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """Kill the process, and wait for its end."""
        self.kill()
        if self._child is not None:
            self._bury(self._child)


P = TypeVar("P", bound=ChildProcess)


class ProcessPool(Generic[P]):
    """Processes of one kind: so many compute at a time, and so many are kept for the next step of their owner."""

    def __init__(self, make: Callable[[ThreadPoolExecutor, str], P], most: int | None = None) -> None:
        self._make, self._most = make, most or os.cpu_count() or 1
        self._slots = asyncio.Semaphore(self._most)
        self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="stepwell-process")
        self._idle: list[P] = []
        self._is_closed = False

    @asynccontextmanager
    async def borrow(self, owner: str = "") -> AsyncGenerator[tuple[P, Slot]]:
        """Return a process for exclusive use, as soon as one is free, and its slot."""
        async with Slot(self._slots) as slot:
            process = self._take(owner)
            try:
                await process.start()
                yield process, slot
            finally:
                if process.is_dead:
                    self._end(process)
                else:
                    self._keep(process)

    def _take(self, owner: str) -> P:
        for process in [each for each in reversed(self._idle) if each.owner == owner]:
            self._idle.remove(process)
            if not process.has_ended:
                return process
            self._end(process)  # the system killed it while it waited, for its memory perhaps
        return self._make(self._threads, owner)

    def _keep(self, process: P) -> None:
        self._idle.append(process)
        while len(self._idle) > (0 if self._is_closed else self._most):
            self._end(self._idle.pop(0))

    def _end(self, process: P) -> None:
        try:
            self._threads.submit(process.close)
        except RuntimeError:  # the pool is closed
            process.close()

    def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        for process in self._idle:
            process.close()
        self._idle.clear()
        self._threads.shutdown(wait=False)


def _how(code: int) -> str:
    if code >= 0:
        return f"the process of the step ended with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"the process of the step was ended by signal {names.get(-code, str(-code))}"
