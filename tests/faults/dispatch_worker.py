"""A program that asks for runs and works them off; it is killed once, at a point that it is told. Run by test_dispatch_kill."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import stepwell
from stepwell import ItemStatus, Stepwell, faults, step, workflow

ITEMS = 6
ENDED = (ItemStatus.COMPLETED, ItemStatus.FAILED, ItemStatus.CANCELLED)


def leave(folder: Path, what: str) -> None:
    """A line in the log of effects, on the disk before anything else happens."""
    with (folder / "effects").open("a") as file:
        file.write(f"{what}\n")
        file.flush()
        os.fsync(file.fileno())


def die_once(folder: Path, where: str) -> None:
    """Kill this process, if it is to die here and has not done so before."""
    plan = folder / "die"
    if plan.exists() and plan.read_text() == where:
        plan.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@step
async def effect(folder: str, number: int) -> int:
    leave(Path(folder), f"{number} {stepwell.current().execution_id}")
    die_once(Path(folder), "in the step")
    return number


@workflow(name="dispatch.work")
async def work(folder: str, number: int) -> int:
    die_once(Path(folder), "in the code")
    done = await effect(folder, number)
    die_once(Path(folder), "after the step")
    return done


@workflow(name="dispatch.poison")
async def poison(folder: str) -> None:
    with (Path(folder) / "poisoned").open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, name: str, wants_poison: str) -> None:
    """Ask, unless that was done before, and work until all has ended."""
    folder = Path(name)
    plan = folder / "die"
    point = plan.read_text() if plan.exists() else ""
    is_working = False

    def die_at(reached: str) -> None:
        if reached == point and is_working:
            die_once(folder, point)

    with Stepwell(url, worker=False) as well:
        well.workspaces.put("acme", tier="startup")
        items = [
            well.enqueue(work, {"folder": name, "number": number}, workspace="acme", key=str(number)) for number in range(ITEMS)
        ]
        if wants_poison:
            items.append(well.enqueue(poison, name, key="poison"))
        if not url.startswith("memory:"):
            is_working = True
    with faults.armed(die_at), Stepwell(url, lease_seconds=1) as well:
        while any(well.queue.item(item.item_id).refresh().status not in ENDED for item in items):
            pass
        print([well.queue.item(item.item_id).refresh().status for item in items])


if __name__ == "__main__":
    main(*sys.argv[1:])
