"""Hosts of a worker: a thread with an event loop of its own, or a process that serves until a signal.

The blocking face uses the thread. ``stepwell worker`` uses ``serve``: the first signal drains, the second hands back at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Protocol

from stepwell.runtime.worker import Worker

__all__ = [
    "HAND_BACK_SECONDS",
    "Drains",
    "LoopFactory",
    "WorkerThread",
    "serve",
]


log = logging.getLogger(__name__)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class WorkerThread:
    """Runs a worker until it is stopped."""

    def __init__(self, make: Callable[[], Worker], loop_factory: LoopFactory | None = None) -> None:
        self._ready = threading.Event()
        self._make, self._loop_factory = make, loop_factory
        self.worker: Worker | None = None
        self._thread = threading.Thread(target=self._run, name="stepwell-worker", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                loop = runner.get_loop()
                work = loop.create_task(self._work())
                while not work.done():
                    _run_until_done(loop, work)
        except RuntimeError:
            # At the end of a program that did not close its well, the loop loses its threads; the leases expire by themselves.
            if threading.main_thread().is_alive():
                raise

    async def _work(self) -> None:
        self.worker = self._make()
        asyncio.get_running_loop().call_soon(self._ready.set)
        await self.worker.run()

    def stop(self) -> None:
        """Hand everything back and wait for the end of the thread."""
        if self.worker is not None and not self.worker.is_stopping:
            self.worker.stop()
        self._thread.join()


def _run_until_done(loop: asyncio.AbstractEventLoop, work: asyncio.Task[None]) -> None:
    """Run a loop until a task is done, or until asyncio stops the loop because another task raised ``SystemExit`` or the like.

    The code of a workflow or step may start such a task. Its error reaches whoever awaits it, so the loop can just continue.
    """
    try:
        loop.run_until_complete(work)
    except (SystemExit, KeyboardInterrupt) as error:
        if work.done():
            raise
        log.warning("a task of user code raised %s, which ends that task and not the worker", type(error).__name__)


HAND_BACK_SECONDS = 1.0
"""How long handing back may take after the second signal; the rest resumes when its leases expire."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Drains(Protocol):
    """A well with a worker."""

    def drain(self, grace_seconds: float | None = None) -> None:
        """Claim no more, and hand back; steps under way get ``grace_seconds`` to end."""
        ...

    def close(self) -> None:
        """Wait for the end, and close the store."""
        ...


def serve(
    well: Drains,
    grace_seconds: float = 30,
    *,
    on_ready: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT, then close the well; return the number of the signal. In the main thread.

    After the first signal nothing more is claimed, waiting executions are handed back at once, and steps under way have
    ``grace_seconds`` to end; then they are abandoned, and their executions handed back, too. A second signal ends the grace. If
    threads are left inside a step, the process ends here, since nothing can stop them.

    Args:
        well: a well with a worker.
        grace_seconds: how long steps under way may take after the first signal.
        on_ready: called when signals are handled.
        on_stop: called after the first signal.
    """
    told: list[int] = []
    with _Wakeup() as wakeup:
        before = {each: signal.signal(each, lambda number, _: told.append(number)) for each in _SIGNALS}
        try:
            on_ready()
            while not told:
                wakeup.wait()
            well.drain(grace_seconds)
            on_stop()
            _close(well, told, wakeup)
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
    if any(thread.name.startswith(("stepwell-step", "stepwell-code")) and _is_inside(thread) for thread in threading.enumerate()):
        _end(0)
    return told[0]


class _Wakeup:
    """A pipe that each signal writes to, so that a wait for it ends even if the signal came before the wait began.

    Waiting for a lock or a thread would not do: a signal that comes a moment before the wait begins does not end it.
    """

    def __enter__(self) -> _Wakeup:
        self._sender, self._receiver = socket.socketpair()
        self._sender.setblocking(False)
        self._before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._before)
        self._sender.close()
        self._receiver.close()

    def wake(self) -> None:
        """End the next wait. From any thread."""
        with suppress(OSError):  # the pipe is full, so that the wait ends anyway, or it is closed
            self._sender.send(b"\0")

    def wait(self) -> None:
        """Wait for a signal or a ``wake``."""
        self._receiver.recv(1)


def _close(well: Drains, told: list[int], wakeup: _Wakeup) -> None:
    """Close a well; at a second signal, hand back at once."""
    closing: Future[None] = Future()

    def close() -> None:
        try:
            closing.set_result(well.close())
        except BaseException as error:  # noqa: BLE001 - raised by the waiting caller
            closing.set_exception(error)
        wakeup.wake()

    threading.Thread(target=close, name="stepwell-closing", daemon=True).start()
    is_hurried = False
    while not closing.done():
        if len(told) > 1 and not is_hurried:
            is_hurried = True
            well.drain(0)
            _end_after(HAND_BACK_SECONDS, 128 + told[1])
        wakeup.wait()
    closing.result()


def _end_after(seconds: float, code: int) -> None:
    timer = threading.Timer(seconds, _end, [code])
    timer.daemon = True
    timer.start()


def _is_inside(thread: threading.Thread) -> bool:
    """Return whether a pool's thread is inside a user's function. An idle thread ends as soon as its pool is shut down."""
    thread.join(0.1)
    return thread.is_alive()


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
