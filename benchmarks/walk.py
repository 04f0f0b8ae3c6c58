"""``python -m benchmarks.walk [--json]``: trace three walks through the library and count their calls and modules.

- ``step``: a step of a workflow function, from its return until the next step begins. The commit of its output lies between.
- ``item``: a queue item whose workflow has one step, from ``enqueue`` until it is COMPLETED and the dispatcher is idle again.
- ``declared step``: the same as ``step`` for a declared workflow.

A call is the start of a Python function of Stepwell, in any thread. Resuming a coroutine is no new call, and a comprehension
belongs to its function. Clock, fault points and the process id are left out, since every path calls them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import stepwell
from stepwell import Stepwell, step, workflow
from stepwell.flow import call, define

__all__ = ["WALKS", "Trace", "Walk", "walks"]

LAPS = 9
"""How often each walk is traced. The lap with the median number of calls is shown, so that a lease renewal does not count."""
_IDLE_AFTER_SECONDS = 0.05
"""The dispatcher's work after an item's end takes about a millisecond."""
_ROOT = Path(stepwell.__file__).parent
_LEFT_OUT = {"clock.py", "pipeline/store_clock.py", "fault_points.py", "faults.py", "process.py"}
_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"}


@dataclass
class Trace:
    """Collects the files of the calls between ``begin`` and ``end``; one list for each lap."""

    laps: list[list[str]] = field(default_factory=list[list[str]])
    _lap: list[str] | None = None
    _files: dict[CodeType, str | None] = field(default_factory=dict[CodeType, "str | None"])

    def begin(self) -> None:
        """Start a lap."""
        self._lap = []

    def end(self) -> None:
        """End the lap; do nothing if none was started."""
        if self._lap is not None:
            self.laps.append(self._lap)
            self._lap = None

    @contextmanager
    def installed(self) -> Generator[None]:
        """Trace this thread and all threads that start inside the block, so open the well inside it."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        lap = self._lap
        if lap is None or event != "call":
            return
        code = frame.f_code
        if code not in self._files:
            self._files[code] = _file_of(code)
        file = self._files[code]
        if file is not None and not _is_resumed(frame):
            lap.append(file)


def _file_of(code: CodeType) -> str | None:
    """The file of a function inside the package; None for what is not counted."""
    path = Path(code.co_filename)
    if not path.is_relative_to(_ROOT) or code.co_name in _COMPREHENSIONS:
        return None
    file = path.relative_to(_ROOT).as_posix()
    return None if file in _LEFT_OUT else file


def _is_resumed(frame: FrameType) -> bool:
    """Return whether a coroutine or generator resumes here."""
    # The profiler reports a resumption as a call. The low bits of RESUME's argument are 0 only at a function's start.
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 != 0


@dataclass(frozen=True)
class Walk:
    """The calls of one walk on one store."""

    name: str
    store: str
    calls: int
    """Of the lap with the median number of calls."""
    fewest: int
    """Of the lap with the fewest calls."""
    files: dict[str, int]
    """Calls by file, in the order of each file's first call."""

    @property
    def modules(self) -> int:
        """The number of modules that the walk passes."""
        return len(self.files)

    def line(self) -> str:
        """Return the walk as one JSON object."""
        return json.dumps(
            {
                "kind": "walk",
                "name": self.name,
                "store": self.store,
                "calls": self.calls,
                "fewest": self.fewest,
                "modules": self.modules,
                "files": self.files,
            }
        )

    def table(self) -> str:
        """Return the walk as lines for people."""
        head = f"{self.name} on {self.store}: {self.calls} calls in {self.modules} modules (fewest calls {self.fewest})"
        return "\n".join([head, *(f"  {count:5}  {file}" for file, count in self.files.items()), ""])


def _walk_of(name: str, store: str, laps: list[list[str]]) -> Walk:
    ordered = sorted(laps, key=len)
    files: dict[str, int] = {}
    for file in (lap := ordered[len(ordered) // 2]):
        files[file] = files.get(file, 0) + 1
    return Walk(name, store, len(lap), len(ordered[0]), files)


@dataclass
class _Flows:
    """The workflows that are traced. They are made on demand, since every well of a process with workflows has a worker."""

    trace: Trace = field(default_factory=Trace)

    def __post_init__(self) -> None:
        @step(name="walk-step")
        async def between(number: int) -> int:
            self.trace.end()
            self.trace.begin()
            return number

        @step(name="walk-inside")
        async def inside(number: int) -> int:
            return number

        @workflow(name="walk-steps")
        async def steps(laps: int) -> None:
            for number in range(laps + 1):
                await between(number)

        @workflow(name="walk-item")
        async def item(number: int) -> int:
            return await inside(number)

        self.steps, self.item = steps, item
        calls = [call("walk-step", number, name=f"step_{number}") for number in range(LAPS + 1)]
        self.declared = define("walk-declared", *calls)

    def step(self, well: Stepwell) -> None:
        """Run a workflow function whose steps begin and end the laps."""
        well.start(self.steps, LAPS).result(timeout=60)

    def declared_step(self, well: Stepwell) -> None:
        """Run a declared workflow of the same steps."""
        well.start(self.declared).result(timeout=60)

    def queue_item(self, well: Stepwell) -> None:
        """Enqueue one item after another, each when the dispatcher is idle again."""
        for number in range(LAPS):
            self.trace.begin()
            well.enqueue(self.item, number).result(timeout=60)
            time.sleep(_IDLE_AFTER_SECONDS)
            self.trace.end()


WALKS: dict[str, Callable[[_Flows, Stepwell], None]] = {
    "step": _Flows.step,
    "item": _Flows.queue_item,
    "declared step": _Flows.declared_step,
}


def walks(stores: list[str]) -> Iterator[Walk]:
    """Trace every walk on each of the stores ``memory`` and ``sqlite``."""
    flows = _Flows()
    with tempfile.TemporaryDirectory(prefix="stepwell-walk-") as folder:
        urls: dict[str, Any] = {"memory": "memory://", "sqlite": f"sqlite:///{folder}/well.db"}
        for store in stores:
            with flows.trace.installed(), Stepwell(urls[store]) as well:
                for name, run in WALKS.items():
                    run(flows, well)  # the first time also imports modules and compiles what is cached
                    flows.trace.end()
                    flows.trace.laps.clear()
                    run(flows, well)
                    yield _walk_of(name, store, flows.trace.laps[:LAPS])


def main() -> None:
    """Read the command line, trace, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description="Trace three walks through the library.")
    parser.add_argument("--json", action="store_true", help="print one JSON object per walk")
    parser.add_argument("--store", action="append", choices=["memory", "sqlite"], help="trace on this store only")
    arguments = parser.parse_args()
    for walk in walks(arguments.store or ["memory", "sqlite"]):
        print(walk.line() if arguments.json else walk.table(), flush=True)


if __name__ == "__main__":
    main()
