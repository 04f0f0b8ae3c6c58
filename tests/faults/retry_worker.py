"""A program whose runs fail, are retried and worked off; it is killed once, where it is told. Run by test_dispatch_retry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults.dispatch_worker import die_once, leave

from stepwell import ItemStatus, Limits, Stepwell, SystemClock, step, workflow
from stepwell.contract.store import Store
from stepwell.model.commit import Commit, Outcome, Unit
from stepwell.model.queue_item import Claimed
from stepwell.stores.url import store_of

ITEMS = 4


@step
async def charge(folder: str, number: int) -> None:
    leave(Path(folder), f"charge {number}")


@step
async def ship(folder: str, number: int) -> None:
    if (Path(folder) / "broken").exists():
        raise RuntimeError("no lorry")
    leave(Path(folder), f"ship {number}")
    die_once(Path(folder), "in the step")


@workflow(name="retry.order")
async def order(folder: str, number: int) -> None:
    await charge(folder, number)
    await ship(folder, number)


def is_turn(unit: Unit) -> bool:
    """Whether a unit gives a run its turn."""
    return isinstance(unit, Commit) and unit.creation is None and unit.mark is not None and unit.mark.status == "DISPATCHED"


def mortal(url: str, folder: Path) -> Store:
    """A store whose writes kill the process, on the way from the claim of an item to the turn of its run."""
    store = store_of(url, SystemClock(), Limits())
    write_alive = store.write

    def write(units: Sequence[Unit]) -> list[Outcome]:
        if any(map(is_turn, units)):
            die_once(folder, "before the turn")
        outcomes = write_alive(units)
        if any(isinstance(each, Claimed) for outcome in outcomes for each in getattr(outcome, "answers", ())):
            die_once(folder, "after the claim")
        if any(map(is_turn, units)):
            die_once(folder, "after the turn")
        return outcomes

    store.write = write  # type: ignore[method-assign]
    return store


def fail(url: str, folder: Path) -> None:
    """Have all runs fail, and retry them; nobody works then."""
    with Stepwell(url) as well:
        well.workspaces.put("acme", tier="startup")
        values = [{"folder": str(folder), "number": number} for number in range(ITEMS)]
        items = [well.enqueue(order, value, workspace="acme") for value in values]
        while any(item.refresh().status != ItemStatus.FAILED for item in items):
            pass
    (folder / "broken").unlink()
    with Stepwell(url, worker=False) as well:
        for item in well.queue.list():
            well.run(item.execution_id).retry()


def main(url: str, name: str) -> None:
    """Fail, unless that was done before, and work until all has ended."""
    folder = Path(name)
    if (folder / "broken").exists():
        fail(url, folder)
    # Who dies has a short lease, so that the next one need not wait; who goes on has a long one, which no busy machine outlasts.
    with Stepwell(mortal(url, folder), lease_seconds=1 if (folder / "die").exists() else 60) as well:
        while any(item.status not in (ItemStatus.COMPLETED, ItemStatus.FAILED) for item in well.queue.list()):
            well.queue.recover()
        print([str(item.status) for item in well.queue.list()])


if __name__ == "__main__":
    main(*sys.argv[1:])
