"""A worker as a process of its own, that the tests of workers kill, stop and tell to end. It says what its steps do.

Steps leave a line in the file ``effects`` before they go on; those that hold go on when the file ``release`` is there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import stepwell
from stepwell import Stepwell, step, workflow
from stepwell.runtime import worker_host

__all__ = ["held", "leave", "left", "many", "say", "spins", "stuck", "waits"]

has_said_ready = threading.Event()
has_said_ready.set()
"""Not set in a worker before it is ready: what its steps say comes after that, though they may be there first."""


def say(word: str) -> None:
    """Write a line in one piece: ``print`` writes its end by itself, so that words of two threads could share a line."""
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def enter() -> None:
    """Say that a step holds."""
    has_said_ready.wait()
    say("entered")


def leave(folder: str, what: str) -> None:
    """A line in the log of effects, on the disk before anything else happens."""
    with (Path(folder) / "effects").open("a") as file:
        file.write(f"{what}\n")
        file.flush()
        os.fsync(file.fileno())


def left(folder: Path, what: str = "") -> list[str]:
    """The lines in the log of effects that begin with something."""
    log = folder / "effects"
    return [line for line in log.read_text().splitlines() if line.startswith(what)] if log.exists() else []


def is_released(folder: str) -> bool:
    """Whether steps that hold may go on."""
    return (Path(folder) / "release").exists()


@step
def hold(folder: str) -> int:
    """Holds a thread, while the loop goes on and leases are renewed."""
    leave(folder, f"entered {os.getpid()} {stepwell.current().attempt} {stepwell.current().idempotency_key}")
    enter()
    while not is_released(folder):
        threading.Event().wait(0.01)
    return os.getpid()


@step
async def hold_loop(folder: str) -> int:
    """Holds the loop itself for longer than a lease: nothing is renewed meanwhile."""
    leave(folder, f"entered {os.getpid()}")
    enter()
    while not is_released(folder):
        time.sleep(0.01)  # noqa: ASYNC251 - to hold the loop is the point
    return os.getpid()


@step(process=True)
def spin(folder: str) -> None:
    """Keeps a processor of its own busy, for ever."""
    (Path(folder) / "spinning").write_text(str(os.getpid()))
    while True:
        time.monotonic()


@step
async def note(folder: str, what: str) -> str:
    """Leaves a line."""
    leave(folder, f"noted {what}")
    return what


@workflow
async def held(folder: str) -> int:
    """One step that holds, and one after it."""
    pid = await hold(folder)
    await note(folder, "after")
    return pid


@workflow
async def stuck(folder: str) -> int:
    """One step that holds the loop."""
    return await hold_loop(folder)


@workflow
async def spins(folder: str) -> None:
    """A step in a process of its own."""
    await spin(folder)


@workflow
async def waits(folder: str) -> str:
    """Waits for a signal."""
    await note(folder, "before")
    return await stepwell.wait_signal("go")


@workflow
async def many(arguments: list[str]) -> str:
    """One step; there are many of these."""
    return await note(*arguments)


def main(url: str, lease_seconds: str = "1", grace_seconds: str = "30") -> None:
    """Work until told to stop."""
    has_said_ready.clear()
    well = Stepwell(url, lease_seconds=float(lease_seconds))
    worker_host.HAND_BACK_SECONDS = 60.0  # a busy machine may need more than the second that there is in real life

    def say_ready() -> None:
        say("ready")
        has_said_ready.set()

    worker_host.serve(well, float(grace_seconds), on_ready=say_ready, on_stop=lambda: say("stopping"))
    say("ended")


if __name__ == "__main__":
    # By its real name, so that the workflows of this module are those that others import from it.
    from tests.faults import worker_program

    worker_program.main(*sys.argv[1:])
