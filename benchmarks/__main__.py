"""``python -m benchmarks [names] [--quick]``: JSON lines on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import gc
import importlib
import pkgutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from benchmarks import subjects
from benchmarks.environment import environment_line
from benchmarks.measurement import Measurement
from benchmarks.plan import Plan
from stepwell.runtime.host_tuning import host_tuning

Measure = Callable[[Plan], Iterator[Measurement]]


def all_measures() -> dict[str, Measure]:
    """Return every measure by name; each module of ``benchmarks.subjects`` lists its own in ``MEASURES``."""
    found: dict[str, Measure] = {}
    for module in pkgutil.iter_modules(subjects.__path__):
        for name, measure in importlib.import_module(f"benchmarks.subjects.{module.name}").MEASURES.items():
            found[f"{module.name}.{name}"] = measure
    return found


def chosen(names: list[str], measures: dict[str, Measure]) -> dict[str, Measure]:
    """Return the measures of these names: ``sqlite`` for all of SQLite's, ``sqlite.load`` for one."""
    unknown = [name for name in names if not any(_stands_for(name, full) for full in measures)]
    if unknown:
        sys.exit(f"no measure is called {', '.join(unknown)}; there are {', '.join(measures)}")
    return {full: measure for full, measure in measures.items() if not names or any(_stands_for(name, full) for name in names)}


def _stands_for(name: str, full: str) -> bool:
    return full == name or full.startswith(f"{name}.")


def parts_of(measures: dict[str, Measure]) -> list[list[str]]:
    """Return the names of the measures, grouped by subject."""
    return [list(names) for _, names in groupby(measures, key=lambda name: name.partition(".")[0])]


def run_apart(parts: list[list[str]], folder: Path | None) -> None:
    """Run each subject in its own process, so that memory left by one does not affect the figures of the next."""
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-", dir=folder) as parent:
        print(environment_line(Path(parent), is_quick=False), flush=True)
    where = [] if folder is None else ["--folder", str(folder)]
    for names in parts:
        subprocess.run([sys.executable, "-m", "benchmarks", *names, *where, "--is-part"], check=True)


def run(measures: dict[str, Measure], folder: Path | None, *, is_quick: bool, is_part: bool = False) -> None:
    """Run all measures in turn, each in a new folder, and print their results."""
    gc.freeze()  # exclude imported modules from collection: scanning them before each round would take longer than many rounds
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-", dir=folder) as parent:
        if not is_part:
            print(environment_line(Path(parent), is_quick=is_quick), flush=True)
        for number, (name, measure) in enumerate(measures.items(), 1):
            print(f"[{number}/{len(measures)}] {name}", file=sys.stderr, flush=True)
            place, began = Path(parent, str(number)), time.perf_counter()
            place.mkdir()
            with host_tuning():
                for measurement in measure(Plan(name, place, is_quick)):
                    print(measurement.line(), flush=True)
            print(f"  {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Read the command line and run."""
    measures = all_measures()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What Stepwell costs, beside the raw limits.")
    parser.add_argument("names", nargs="*", help=f"what to measure: {', '.join(measures)} (default: everything)")
    parser.add_argument("--quick", action="store_true", help="small and rough: only to see that everything runs")
    parser.add_argument("--folder", type=Path, help="where to put the files; choose the disk that you want to know about")
    parser.add_argument("--is-part", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    measures = chosen(arguments.names, measures)
    parts = parts_of(measures)
    if len(parts) > 1 and not arguments.quick:
        run_apart(parts, arguments.folder)
    else:
        run(measures, arguments.folder, is_quick=arguments.quick, is_part=arguments.is_part)


if __name__ == "__main__":
    main()
