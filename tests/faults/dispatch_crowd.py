"""Many processes that work off one queue, each with a dispatcher of its own, until their parent's input ends.

Every run leaves a line when it begins and one when it ends, in one log that they share, so that how many there were at any instant
can be read off afterwards; its folder is named after how many there may be. Forked from one process that has everything loaded, and
nothing open.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from itertools import accumulate
from pathlib import Path

from stepwell import Stepwell, workflow

__all__ = ["most_at_once", "passes", "runs_of"]


def tell(folder: str, what: str) -> None:
    """A line in the log; lines that are added by one write never mix."""
    log = os.open(Path(folder) / "events", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(log, f"{what}\n".encode())
    os.close(log)


def events(folder: Path) -> list[list[str]]:
    """Return the reports in order: a sign and the number of a run."""
    return [line.split() for line in (folder / "events").read_text().splitlines()]


def most_at_once(folder: Path) -> int:
    """How many runs there were at once at most."""
    return max(accumulate(1 if sign == "+" else -1 for sign, _ in events(folder)))


def runs_of(folder: Path) -> list[int]:
    """The number of every run that began."""
    return [int(number) for sign, number in events(folder) if sign == "+"]


@workflow(name="crowd.passes")
async def passes(folder: str, number: int) -> int:
    """Stays until as many as may have come in, once; and a little longer, so that one too many can."""
    tell(folder, f"+ {number}")
    while most_at_once(Path(folder)) < int(Path(folder).name):  # noqa: ASYNC110 - the others are in processes of their own
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    tell(folder, f"- {number}")
    return number


def work(url: str) -> None:
    """Work until killed."""
    with Stepwell(url, concurrency=10):
        signal.pause()


def main(url: str, number: str) -> None:
    """Start the processes, say so, and end them when the input ends."""
    children: list[int] = []
    for _ in range(int(number)):
        child = os.fork()
        if child == 0:
            work(url)
            os._exit(0)
        children.append(child)
    print("ready", flush=True)
    sys.stdin.read()
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    # By its real name, so that the workflow of this module is the one that others import from it.
    from tests.faults import dispatch_crowd

    dispatch_crowd.main(*sys.argv[1:])
