"""The parcel demonstration: a worker is killed inside a step of an order (``parcel.yaml``), and another one continues.

``python -m stepwell.demo.parcel URL NAME FATAL EFFECTS [ADDRESS]`` is a worker with a name; with an address, one of the
Temporal server there. Before it sends the parcel FATAL (0 is none),
it reports that and blocks inside the step until it is killed. Steps append their effects outside the store to the file EFFECTS.
The parent process then checks that the run is complete.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import apsw

import stepwell
from stepwell import Stepwell, TemporalWorker, step
from stepwell.cli.run_view import RunEvent, bars, events_of, follow
from stepwell.demo.screen import DemoScreen
from stepwell.errors import Corrupted
from stepwell.flow.definition.document import parse
from stepwell.flow.definition.node import Definition
from stepwell.model.status import Status
from stepwell.runtime.steps.context import StepContext
from stepwell.stores.sql_files import read_queries

__all__ = [
    "LEASE_SECONDS",
    "ORDER",
    "PARCELS",
    "read_order",
    "run_demo",
]


ORDER = "order-7"
"""The id of the execution."""
PARCELS = 4
LEASE_SECONDS = 1.0
"""Short, so that a dead worker is replaced soon."""
_STEP_SECONDS = 0.2


def read_order() -> Definition:
    """Return the workflow that is declared beside this file."""
    return parse(files("stepwell.demo").joinpath("parcel.yaml").read_bytes(), source="parcel.yaml")


_me = {"worker": "", "fatal": "0", "effects": ""}


async def _work(what: str, seconds: float = _STEP_SECONDS) -> dict[str, str]:
    """Write a line outside the store, durably, and take some time."""
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


def main(url: str, name: str, fatal: str, effects: str, address: str = "") -> None:
    """Work until the parent closes the pipe."""
    _me.update(worker=name, fatal=fatal, effects=effects)
    with (
        TemporalWorker(url, address=address, lease_seconds=LEASE_SECONDS, grace_seconds=1)
        if address
        else Stepwell(url, lease_seconds=LEASE_SECONDS)
    ):
        print("ready", name, flush=True)
        sys.stdin.read()  # blocks until the parent writes a line or is gone


_FATAL = 2
_STEPS = ["charge", "pack", "label", *(f"send[{index}]" for index in range(PARCELS))]
_BEFORE = _STEPS.index("send[0]") + _FATAL - 1
"""Steps that are recorded before the worker is killed: three branches, and the parcels before the fatal one."""
_PATIENCE_SECONDS = 60
_KILLED = "KILLED"


def run_demo(screen: DemoScreen, folder: Path, address: str = "") -> int:
    """Run the demonstration in a folder, with an address on that Temporal server. Return 0 if every check passed."""
    began, url, effects = time.perf_counter(), f"sqlite:///{folder}/well.db", folder / "effects"
    effects.touch()
    screen.say(screen.paint("bold", "Stepwell: a worker is killed inside a step, and another worker continues"))
    screen.note(
        f"one SQLite file; a workflow declared in YAML: three branches at the same time, then a loop over {PARCELS} parcels"
    )
    place = _Place(url, effects, address)
    with Stepwell(url, worker=False) as well:
        killed = _killed_inside(screen, well, place)
        _resumed(screen, well, place)
        _show_timeline(screen, well, killed)
        _check_receipts(screen, well)
    _vandalise(screen, folder / "well.db", folder / "copy.db")
    return screen.finish(time.perf_counter() - began)


class _Place(NamedTuple):
    """The surroundings of workers: their store, the file of their effects, and the Temporal server if they have one."""

    url: str
    effects: Path
    address: str


@contextmanager
def _worker(place: _Place, name: str, fatal: int) -> Generator[subprocess.Popen[str]]:
    """Run a worker in a process of its own; kill it at the end of the block if it still runs."""
    command = [sys.executable, "-m", "stepwell.demo.parcel", place.url, name, str(fatal), str(place.effects), place.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603 - our own module
        watchdog = threading.Timer(_PATIENCE_SECONDS, child.kill)
        watchdog.start()
        try:
            yield child
        finally:
            watchdog.cancel()
            child.kill()


def _heard(child: subprocess.Popen[str], word: str) -> bool:
    """Wait until a worker prints a word. Return False if it ends before."""
    return child.stdout is not None and any(line.split()[0] == word for line in child.stdout)


def _killed_inside(screen: DemoScreen, well: Stepwell, place: _Place) -> RunEvent:
    screen.heading(1, f"Worker A runs the order, and gets SIGKILL while it sends parcel {_FATAL}")
    order = {"city": "Basel", "cents": 4200, "parcels": PARCELS}
    well.start(read_order(), order, execution_id=ORDER, engine="temporal" if place.address else "local")
    with _worker(place, "A", _FATAL) as child:
        is_inside = _heard(child, "inside")
        began = datetime.now(UTC)
        time.sleep(0.2)  # so that the bar chart shows how long it was blocked
        child.kill()
        child.wait()
        died = datetime.now(UTC)
    screen.check(is_inside and child.returncode == -9, f"worker A, process {child.pid}, got SIGKILL in parcel {_FATAL}")
    state = well.load(ORDER)
    done = [name for name in state.steps if name in _STEPS]
    screen.check(len(done) == _BEFORE, f"{len(done)} steps are recorded, and nothing of the interrupted one")
    took = round((died - began).total_seconds() * 1000)
    name = _STEPS[_BEFORE]
    return RunEvent(event="step", execution_id=ORDER, revision=state.revision, at=died, name=name, status=_KILLED, duration_ms=took)


def _resumed(screen: DemoScreen, well: Stepwell, place: _Place) -> None:
    last = "heartbeat on Temporal" if place.address else "renewal"
    screen.heading(2, f"Worker B starts; the lease of A expires {LEASE_SECONDS:g} s after its last {last}, and B continues")
    with _worker(place, "B", 0):
        total, done = len(_STEPS), 0
        for event in follow(well, ORDER, timeout=_PATIENCE_SECONDS):
            if event.event == "step" and event.name in _STEPS:
                done += 1
                screen.progress("steps recorded", done, total)
        output = well.run(ORDER).result(timeout=1)
    screen.check(well.run(ORDER).status() == Status.COMPLETED, f"the run completed: {output}")
    made = Counter(line.split()[0] for line in place.effects.read_text(encoding="utf-8").splitlines())
    again = {key: times for key, times in made.items() if times > 1}
    fatal = f"{ORDER}:{_STEPS[_BEFORE]}"
    screen.check(
        again == {fatal: 2} and len(made) == total, f"only the step that was killed was made again, with the same key: {fatal}"
    )


def _show_timeline(screen: DemoScreen, well: Stepwell, killed: RunEvent) -> None:
    screen.heading(3, "The steps of each worker")
    events = [event for receipt in well.receipts(ORDER) for event in events_of(receipt)]
    steps = sorted(
        [killed, *(event for event in events if event.event == "step" and event.name in _STEPS)], key=lambda event: event.began_at
    )
    colours = {"A": "cyan", "B": "magenta"}

    def who(event: RunEvent) -> str:
        return "A" if event.status == _KILLED else event.detail["worker"]

    def paint(event: RunEvent, bar: str) -> str:
        if event.status == _KILLED:
            return screen.paint("red", bar.replace(screen.block, screen.half_block))
        return screen.paint(colours[who(event)], bar)

    def label(event: RunEvent) -> str:
        return f"{who(event)} {'killed' if event.status == _KILLED else '      '}"

    for row in bars(steps, width=92, paint=paint, block=screen.block, label=label):
        screen.say(f"   {row}")
    workers = [who(event) for event in steps]
    screen.check(workers == sorted(workers), "first A, then B, never both at once")


def _check_receipts(screen: DemoScreen, well: Stepwell) -> None:
    screen.heading(4, "The receipts: a chain of SHA-256, each naming the one before and the state before and after")
    receipts, result = well.receipts(ORDER), well.verify(ORDER)
    for receipt in receipts[-3:]:
        links = f"previous {receipt.previous[:8]}  state {receipt.before[:8]} -> {receipt.after[:8]}"
        screen.say(f"   {screen.paint('yellow', f'revision {receipt.revision:>3}')}  receipt {receipt.digest[:8]}  {links}")
    is_whole = result.ok and result.receipts == len(receipts)
    screen.check(is_whole, f"{result.receipts} receipts verified: every link and state matches, across both workers")


def _vandalise(screen: DemoScreen, file: Path, copy: Path) -> None:
    screen.heading(5, "Someone edits one byte of the history, in a copy of the file")
    shutil.copy(file, copy)
    with Stepwell(f"sqlite:///{copy}", worker=False) as well:
        receipt = next(each for each in well.receipts(ORDER) if b'"record_step"' in each.body)
    database: Any = apsw.Connection(str(copy))
    edit = read_queries("stepwell.demo", "vandal.sql")["edit_mutations"]
    database.execute(edit, (receipt.body, receipt.body.replace(b"COMPLETED", b"COMPLETEX", 1)))
    database.close()
    with Stepwell(f"sqlite:///{copy}", worker=False) as well:
        result = well.verify(ORDER)
        screen.note(f"verify: {'; '.join(result.problems)}")
        is_found = any(f"revision {receipt.revision} " in problem for problem in result.problems)
        screen.check(not result.ok and is_found, f"verify finds it at revision {receipt.revision}")
        screen.check(_is_refused(well), "loading refuses it: this execution is quarantined, others would not be")


def _is_refused(well: Stepwell) -> bool:
    try:
        well.load(ORDER)
    except Corrupted:
        return True
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
