"""A program that asks for runs and works them off; it is killed once, at a point that it is told. Run by test_dispatch_kill."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import stepwell
from stepwell import ItemStatus, Limits, Stepwell, SystemClock, step, workflow
from stepwell.contract.store import Store
from stepwell.model.commit import Commit, Outcome, Unit
from stepwell.model.queue_item import Claimed, ClaimItems
from stepwell.stores.url import store_of

ITEMS, MAX_ATTEMPTS = 6, 3
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


def poisonings(folder: Path) -> int:
    """How often the poison was taken."""
    log = folder / "poisoned"
    return len(log.read_text()) if log.exists() else 0


def mortal(url: str, folder: Path) -> Store:
    """A store whose writes kill the process, before or after a claim that takes something or the first commit of an item's run."""
    store = store_of(url, SystemClock(), Limits())
    write_alive = store.write

    def write(units: Sequence[Unit]) -> list[Outcome]:
        has_claim = any(isinstance(unit, ClaimItems) for unit in units)
        has_start = any(isinstance(unit, Commit) and unit.creation is not None and unit.mark is not None for unit in units)
        if has_claim:
            die_once(folder, "before the claim")
        if has_start:
            die_once(folder, "before the start")
        outcomes = write_alive(units)
        if has_claim and any(isinstance(each, Claimed) for outcome in outcomes for each in getattr(outcome, "answers", ())):
            die_once(folder, "after the claim")
        if has_start:
            die_once(folder, "after the start")
        return outcomes

    store.write = write  # type: ignore[method-assign]
    return store


def main(url: str, name: str, wants_poison: str) -> None:
    """Ask, unless that was done before, and work until all has ended."""
    folder = Path(name)
    plan = folder / "die"
    is_to_die = plan.exists()
    with Stepwell(url, worker=False) as well:
        well.workspaces.put("acme", tier="startup")
        items = [
            well.enqueue(work, {"folder": name, "number": number}, workspace="acme", key=str(number)) for number in range(ITEMS)
        ]
        if wants_poison:
            items.append(well.enqueue(poison, name, key="poison"))
    # Who dies has a short lease, so that the next one need not wait; who goes on has a long one, which no busy machine outlasts.
    dies = is_to_die or (wants_poison and poisonings(folder) < MAX_ATTEMPTS)
    with Stepwell(mortal(url, folder), lease_seconds=1 if dies else 60) as well:
        while any(well.queue.item(item.item_id).refresh().status not in ENDED for item in items):
            well.queue.recover()
        print([well.queue.item(item.item_id).refresh().status for item in items])


if __name__ == "__main__":
    main(*sys.argv[1:])
