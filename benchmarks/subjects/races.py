"""T05: races for one revision. Four writers commit to one execution at the same moment, repeatedly; exactly one may win each
time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from benchmarks import servers
from benchmarks.measurement import Measurement, Target
from benchmarks.plan import Plan
from stepwell import Conflict, Stepwell

__all__ = ["MEASURES"]

WRITERS = 4
_ID = "contested"


class Racing:
    """Writers that race for the next revision, and the winners."""

    def __init__(self, wells: Sequence[Stepwell], races: int) -> None:
        self._wells, self._races = wells, races
        self._gate = threading.Barrier(len(wells), timeout=60)
        self.winners: list[list[int]] = [[] for _ in range(races)]
        """For each race, the writers whose commit was accepted."""

    def run(self) -> float:
        """Hold all races. Return races per second."""
        began = time.perf_counter()
        with ThreadPoolExecutor(len(self._wells)) as threads:
            list(threads.map(self._write, range(len(self._wells))))
        return self._races / (time.perf_counter() - began)

    def _write(self, me: int) -> None:
        try:
            for winners in self.winners:
                transaction = self._wells[me].transaction(_ID).begin()
                transaction.set_variable("winner", me)
                self._gate.wait()
                try:
                    transaction.commit()
                    winners.append(me)
                except Conflict:
                    pass
                self._gate.wait()
        except BaseException:
            self._gate.abort()
            raise


def _measure(store: str) -> Callable[[Plan], Iterator[Measurement]]:
    def measure(plan: Plan) -> Iterator[Measurement]:
        """Each writer has a well of its own, but for those in memory, which nobody can share."""
        races, url = plan.size(1_000, 20), servers.URLS[store](plan)
        with ExitStack() as opened:
            first = opened.enter_context(Stepwell(url))
            first.create(_ID)
            others = [first if store == "memory" else opened.enter_context(Stepwell(url)) for _ in range(WRITERS - 1)]
            racing = Racing([first, *others], races)
            rate = racing.run()
            is_whole = first.verify(_ID).ok and first.load(_ID).revision == races
        yield result(plan.name, racing.winners, is_whole=is_whole, note=f"{rate:.0f} races/s of {WRITERS} writers")

    return measure


def result(name: str, winners: Sequence[Sequence[int]], *, is_whole: bool, note: str) -> Measurement:
    """Return how many races had exactly one winner, which is the target for all, and whether the chain has a commit for each."""
    decided = sum(len(each) == 1 for each in winners)
    target = Target(f"value == {len(winners)}, in a chain that verifies", decided == len(winners) and is_whole)
    return Measurement(name, decided, "races with one winner", target=target, note=note)


MEASURES = {store: _measure(store) for store in servers.URLS}
