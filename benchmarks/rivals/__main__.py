"""``python -m benchmarks.rivals [--quick] [--only NAME ...]``: JSON lines on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

from benchmarks.environment import environment_line
from benchmarks.rivals.contest import Contest, chosen, contenders_of
from benchmarks.rivals.release import release_line
from benchmarks.rivals.seat import ContenderFailed, Seat
from benchmarks.rivals.verdict import lines

__all__ = ["arguments_of", "main"]


def arguments_of(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
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


class Tournament:
    """Holds contests. A contender that fails is named and left out; the others go on."""

    def __init__(self, folder: Path, *, is_quick: bool, products: list[str]) -> None:
        from benchmarks.rivals.arena import Arena

        self._arena, self._is_quick, self._products = Arena(folder), is_quick, products
        self.problems = 0

    def hold(self, contests: list[Contest]) -> None:
        """Hold contests of one subject on one store, with the same contenders."""
        subject, store = contests[0].subject, contests[0].store
        with ExitStack() as leaving:
            seats = self._seats(subject, store, leaving)
            for contest in contests:
                began, playing = time.perf_counter(), [seat.name for seat in seats if contest.work in seat.works]
                if not playing:
                    continue
                print(f"{contest.name}: {', '.join(playing)}", file=sys.stderr, flush=True)
                for line in lines(contest, self._rounds(contest, seats)):
                    print(line, flush=True)
                print(f"  {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)

    def _seats(self, subject: str, store: str, leaving: ExitStack) -> list[Seat]:
        seats: list[Seat] = []
        for contender in contenders_of(subject, store):
            if self._products and contender.product not in self._products:
                continue
            try:
                seat = Seat(contender.name, contender.module, contender.kind, self._arena.place_for(contender, store))
            except ContenderFailed as failed:
                self._problem(f"{subject}.{store}", failed)
            else:
                leaving.callback(seat.leave)
                seats.append(seat)
        return seats

    def _rounds(self, contest: Contest, seats: list[Seat]) -> dict[str, list[list[float]]]:
        """The figures of all who can do it, one after the other in every round; a first round only warms up."""
        playing = {seat.name: seat for seat in seats if contest.work in seat.works}
        figures: dict[str, list[list[float]]] = {name: [] for name in playing}
        size, rounds = (contest.quick_size, 1) if self._is_quick else (contest.size, contest.rounds)
        for number in range(rounds + 1):
            for name, seat in list(playing.items()):
                try:
                    turn = seat.take_turn(contest.work, size)
                except ContenderFailed as failed:
                    self._problem(contest.name, failed)
                    seats.remove(playing.pop(name))
                    del figures[name]
                    continue
                if number:
                    figures[name].append(turn)
        return figures

    def _problem(self, name: str, failed: ContenderFailed) -> None:
        self.problems += 1
        print(json.dumps({"kind": "problem", "name": name, "contender": str(failed)}), flush=True)

    def close(self) -> None:
        """End the servers."""
        self._arena.close()


def main() -> int:
    """Read the command line and hold the contests; 1 if a contender failed."""
    arguments = arguments_of(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="stepwell-rivals-", dir=arguments.folder) as folder:
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
