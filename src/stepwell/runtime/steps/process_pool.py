"""Processes for steps that keep a processor busy or may crash: a few, started when first needed, killed when a step overstays.

A process is a fresh interpreter that imports a step by module and name. Arguments, outputs and errors cross as JSON, never as code.
Each call has a thread here that waits for its process; killing the process ends that wait.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import msgspec

from stepwell.errors import InvalidInput, ProcessDied
from stepwell.flow.function import Step
from stepwell.runtime.steps.context import StepContext
from stepwell.runtime.steps.outcome import Told
from stepwell.runtime.steps.process_main import Reply, Task, read_frame, write_frame

__all__ = ["ProcessPool", "StepProcess"]

T = TypeVar("T")
_COMMAND = (sys.executable, "-P", "-m", "stepwell.runtime.steps.process_main")


class StepProcess:
    """One process, which is started once."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._child: subprocess.Popen[bytes] | None = None
        self.is_dead = False

    async def start(self) -> None:
        """Have it ready. Not part of a step's time: an interpreter takes its own to begin."""
        if self._child is None:
            await self._in_thread(self._start)

    async def call(self, step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bytes:
        """Make a step there: its output as canonical bytes. Whoever gives up waiting kills the process."""
        task = msgspec.json.encode(_task(step, context, arguments, keywords))
        reply = msgspec.json.decode(await self._in_thread(lambda: self._exchange(task)), type=Reply)
        context.buffer.spent += reply.spent
        if reply.error is not None:
            raise Told(reply.error["message"], reply.error, reply.names)
        context.buffer.landing = reply.mutations
        return bytes(reply.output)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            self.kill()
            raise

    def _start(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109 - sys.path is of texts
        self._child = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of ours
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}
        )
        if self.is_dead:  # it was given up while it started
            self._child.kill()
        self._hear(self._child)

    def _exchange(self, task: bytes) -> bytes:
        child = self._child
        if child is None or child.stdin is None:
            raise ProcessDied("the process of the step was not started")
        with suppress(OSError):  # if it is gone, there is nothing to hear either
            write_frame(child.stdin, task)
        return self._hear(child)

    def _hear(self, child: subprocess.Popen[bytes]) -> bytes:
        answer = None
        if child.stdout is not None:
            with suppress(OSError):
                answer = read_frame(child.stdout)
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

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self.is_dead = True
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """End it and wait for that."""
        self.kill()
        if self._child is not None:
            self._bury(self._child)


class ProcessPool:
    """The processes of a worker: so many at a time, kept for the next step."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or os.cpu_count() or 1
        self._slots = asyncio.Semaphore(self._most)
        self._threads = ThreadPoolExecutor(self._most, thread_name_prefix="stepwell-process")
        self._idle: list[StepProcess] = []

    @asynccontextmanager
    async def borrow(self) -> AsyncGenerator[StepProcess]:
        """A process that nobody else uses, as soon as there is one."""
        async with self._slots:
            process = self._idle.pop() if self._idle else StepProcess(self._threads)
            try:
                await process.start()
                yield process
            finally:
                if not process.is_dead:
                    self._idle.append(process)

    def close(self) -> None:
        """End all processes."""
        for process in self._idle:
            process.close()
        self._threads.shutdown(wait=False)


def _task(step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Task:
    main = sys.modules["__main__"]
    module, path = step.function.__module__, None
    if module == "__main__":
        spec = getattr(main, "__spec__", None)
        module, path = (spec.name, None) if spec is not None else ("", getattr(main, "__file__", None))
        if not module and path is None:
            raise InvalidInput(f"step {step.name!r} cannot run in a process: it is not in a file that another process can import")
    return Task(
        module,
        path,
        step.function.__qualname__,
        context.identity,
        context.step,
        context.attempt,
        msgspec.Raw(step.encode_call(arguments, keywords, context.buffer.limits)),
        context.buffer.limits,
    )


def _how(code: int) -> str:
    if code >= 0:
        return f"the process of the step ended with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"the process of the step was ended by signal {names.get(-code, str(-code))}"
