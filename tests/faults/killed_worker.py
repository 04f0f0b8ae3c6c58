"""A program whose worker is killed at a point of its workflow, the first time it gets there. Run by test_worker_kill."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import stepwell
from stepwell import Stepwell, fault_points, step, workflow


def leave(folder: str, what: str) -> None:
    """A line in the log of effects, on the disk before anything else happens."""
    with (Path(folder) / "effects").open("a") as file:
        file.write(f"{what}\n")
        file.flush()
        os.fsync(file.fileno())


def die_once(folder: str, where: str) -> None:
    """Kill this process, if it is to die here and has not done so before."""
    plan = Path(folder) / "die"
    if plan.exists() and plan.read_text() == where:
        plan.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@step
def first(folder: str) -> str:
    die_once(folder, "before the effect")
    leave(folder, f"first {stepwell.current().idempotency_key}")
    die_once(folder, "after the effect")
    return "one"


@step
async def second(folder: str) -> str:
    leave(folder, f"second {stepwell.current().idempotency_key}")
    die_once(folder, "in the second step")
    return "two"


@workflow
async def story(folder: str) -> list[str]:
    one = await first(folder)
    die_once(folder, "between the steps")
    await stepwell.sleep(0.5)  # long enough to rest
    stepwell.current().variables["seen"] = await echo(one)
    return [one, await second(folder)]


@workflow
async def echo(text: str) -> str:
    """A child, which nudges its parent."""
    return text


def main(url: str, folder: str) -> None:
    """Start the run, or go on with it, and print what it gives."""
    plan = Path(folder) / "die"
    point = plan.read_text() if plan.exists() else ""

    def die_at(reached: str) -> None:
        if reached == point and len((Path(folder) / "effects").read_text()) > 0:
            die_once(folder, point)

    (Path(folder) / "effects").touch()
    # Who dies has a short lease, so that the next one need not wait; who goes on has a long one, which no busy machine outlasts.
    with fault_points.armed(die_at), Stepwell(url, lease_seconds=1 if point else 60) as well:
        print(well.start(story, folder, execution_id="story").result(60))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
