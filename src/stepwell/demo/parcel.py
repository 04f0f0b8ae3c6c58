"""The work that is killed: the steps of an order, which ``parcel.yaml`` puts together.

``python -m stepwell.demo.parcel URL NAME FATAL EFFECTS`` is a worker with a name. When it is about to send the parcel FATAL, it
says so and stands still inside that step, until it is killed; 0 is no parcel. What steps do outside of the store goes to the file
EFFECTS.
"""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.resources import files
from pathlib import Path

import stepwell
from stepwell import Stepwell, step
from stepwell.flow.definition.document import parse
from stepwell.flow.definition.node import Definition
from stepwell.runtime.steps.context import StepContext

__all__ = ["LEASE_SECONDS", "ORDER", "PARCELS", "read_order"]

ORDER = "order-7"
"""The execution."""
PARCELS = 4
LEASE_SECONDS = 1.0
"""Short, so that a dead worker is replaced soon."""
_STEP_SECONDS = 0.2


def read_order() -> Definition:
    """The workflow, as it is declared beside this file."""
    return parse(files("stepwell.demo").joinpath("parcel.yaml").read_bytes(), source="parcel.yaml")


_me = {"worker": "", "fatal": "0", "effects": ""}


async def _work(what: str, seconds: float = _STEP_SECONDS) -> dict[str, str]:
    """What a step does here: leave a line outside of the store, on the disk at once, and take its time."""
    here = stepwell.current()
    if isinstance(here, StepContext):
        _leave(f"{here.idempotency_key} {_me['worker']}")
    await asyncio.sleep(seconds)
    return {"worker": _me["worker"], "did": what}


def _leave(line: str) -> None:
    with Path(_me["effects"]).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())


@step
async def charge(cents: int) -> dict[str, str]:
    """Take the money."""
    return await _work(f"{cents / 100:.2f} are paid", 2 * _STEP_SECONDS)


@step
async def pack(parcels: int) -> dict[str, str]:
    """Put everything into boxes."""
    return await _work(f"{parcels} parcels are packed", 1.5 * _STEP_SECONDS)


@step
async def label(city: str) -> dict[str, str]:
    """Print the labels."""
    return await _work(f"labels for {city} are printed")


@step
async def send(parcel: int) -> dict[str, str]:
    """Send one parcel."""
    if _me["fatal"] == str(parcel):
        await _work(f"parcel {parcel}", 0)
        print("inside", parcel, flush=True)
        await asyncio.Event().wait()
    return await _work(f"parcel {parcel} is sent")


def main(url: str, name: str, fatal: str, effects: str) -> None:
    """Work until nobody listens any more."""
    _me.update(worker=name, fatal=fatal, effects=effects)
    with Stepwell(url, lease_seconds=LEASE_SECONDS):
        print("ready", name, flush=True)
        sys.stdin.read()  # until our parent says so, or is gone


if __name__ == "__main__":
    main(*sys.argv[1:])
