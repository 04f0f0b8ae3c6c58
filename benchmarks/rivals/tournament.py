"""Contests held one after another, each contender in its own process, alternately."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.rivals.arena import Arena
from benchmarks.rivals.contest import Contest, contenders_of
from benchmarks.rivals.seat import ContenderFailed, Seat
from benchmarks.rivals.verdict import lines

__all__ = ["Tournament"]


class Tournament:
    """Holds contests. A contender that fails is reported and left out; the others continue."""

    def __init__(self, folder: Path, *, is_quick: bool, products: list[str]) -> None:
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
        """Return the figures of all contenders that support the work, alternately per round, after a warm-up round."""
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
        """Stop the servers."""
        self._arena.close()
