"""``python -m benchmarks.rivals [--quick] [--only NAME ...]``: JSON lines on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from benchmarks.environment import environment_line
from benchmarks.rivals.contest import chosen
from benchmarks.rivals.release import release_line
from benchmarks.rivals.tournament import Tournament

__all__ = ["arguments_of", "main"]


def arguments_of(words: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description="Stepwell beside its rivals.")
    parser.add_argument("--quick", action="store_true", help="small and rough: only to see that everything runs")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="steps, queue.drain, steps.alone.sqlite, redis ...")
    parser.add_argument("--contenders", nargs="+", default=[], metavar="NAME", help="only these products: stepwell, dbos ...")
    parser.add_argument("--folder", type=Path, help="where to put the files; choose the disk that you want to know about")
    arguments = parser.parse_args(words)
    try:
        arguments.contests = chosen(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main() -> int:
    """Parse the command line and hold the contests. Return 1 if a contender failed."""
    arguments = arguments_of(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit by an exception, so that servers and contenders are stopped, too
    if arguments.folder is not None:
        tempfile.tempdir = str(arguments.folder)  # the server fixtures take their folder from tempfile
    with tempfile.TemporaryDirectory(prefix="stepwell-rivals-") as folder:
        print(environment_line(Path(folder), is_quick=arguments.quick), flush=True)
        print(release_line(), flush=True)
        tournament = Tournament(Path(folder), is_quick=arguments.quick, products=arguments.contenders)
        try:
            in_order = sorted(arguments.contests, key=lambda contest: (contest.subject != "steps", contest.store))
            for _, contests in groupby(in_order, key=lambda contest: (contest.subject, contest.store)):
                tournament.hold(list(contests))
        finally:
            tournament.close()
    return 1 if tournament.problems else 0


if __name__ == "__main__":
    sys.exit(main())
