"""Schedulers: who makes the choices of a run that has any, and a log of them, from which the same run can be had again.

A choice is a name and a number of ways; a scheduler says which way. ``InOrder`` always takes the first, ``Seeded`` takes one by a
seed, ``Replay`` takes those of a log, and says where a run parts from it.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec

__all__ = [
    "Diverged",
    "InOrder",
    "Lenient",
    "Replay",
    "SchedulingChoice",
    "Seeded",
    "TaskScheduler",
    "happens",
    "pick",
    "read_log",
    "seeded",
    "write_log",
]

T = TypeVar("T")


class SchedulingChoice(msgspec.Struct, frozen=True):
    """A choice that was made: the number of the way, from 0, out of how many."""

    what: str
    ways: int
    way: int


class Diverged(AssertionError):
    """A run that is replayed came to a choice that is not the next one of the log: something in it is not deterministic."""

    def __init__(self, number: int, expected: SchedulingChoice | None, what: str, ways: int) -> None:
        told = "the log has ended" if expected is None else f"the log has {expected.what!r} of {expected.ways} ways"
        came = f"choice {number} is {what!r} of {ways} ways" if what else f"the run has ended before choice {number}"
        super().__init__(f"{came}, but {told}")
        self.number, self.expected = number, expected


class TaskScheduler(Protocol):
    """Makes choices and remembers them."""

    log: list[SchedulingChoice]

    def choose(self, what: str, ways: int) -> int:
        """Which way to go, from 0 to ``ways`` - 1."""
        ...


class _Logged:
    def __init__(self) -> None:
        self.log: list[SchedulingChoice] = []

    def choose(self, what: str, ways: int) -> int:
        """Choose, and remember it."""
        way = self._way(what, ways)
        self.log.append(SchedulingChoice(what, ways, way))
        return way

    def _way(self, what: str, ways: int) -> int:
        raise NotImplementedError


class InOrder(_Logged):
    """Always the first way: the plainest run, and the same every time."""

    def _way(self, what: str, ways: int) -> int:
        return 0


class Seeded(_Logged):
    """Ways by chance, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def _way(self, what: str, ways: int) -> int:
        return self._random.randrange(ways)


class Replay(_Logged):
    """The ways of a log; ``Diverged`` if the run asks for anything else."""

    def __init__(self, log: Iterable[SchedulingChoice]) -> None:
        super().__init__()
        self._script = list(log)
        self.divergence: Diverged | None = None
        """Where the run first parted from the log: what is replayed may catch what is raised."""

    def _way(self, what: str, ways: int) -> int:
        number = len(self.log)
        expected = self._script[number] if number < len(self._script) else None
        if expected is None or (expected.what, expected.ways) != (what, ways):
            error = Diverged(number, expected, what, ways)
            self.divergence = self.divergence or error
            raise error
        return expected.way

    def finish(self) -> None:
        """The run is over: ``Diverged`` if the log goes on."""
        number = len(self.log)
        if number < len(self._script):
            raise Diverged(number, self._script[number], "", 0)


class Lenient:
    """Goes the first way where a log is at its end or parts from the run, so that a replay can be brought to an end and judged."""

    def __init__(self, within: TaskScheduler) -> None:
        self._within = within
        self.log = within.log

    def choose(self, what: str, ways: int) -> int:
        """As the other scheduler chooses, if it does."""
        try:
            return self._within.choose(what, ways)
        except Diverged:
            return 0


def pick(scheduler: TaskScheduler, what: str, among: Sequence[T]) -> T:
    """One of several things."""
    return among[scheduler.choose(what, len(among))]


def happens(scheduler: TaskScheduler, what: str, per_mille: int) -> bool:
    """Whether something with this probability happens; never for the plainest run."""
    return scheduler.choose(what, 1000) >= 1000 - per_mille


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """What is left to chance by others, such as the jitter of retries, is left to a seed."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def write_log(log: Iterable[SchedulingChoice]) -> bytes:
    """A log as bytes, a JSON line for each choice."""
    return b"".join(msgspec.json.encode(choice) + b"\n" for choice in log)


def read_log(data: bytes) -> list[SchedulingChoice]:
    """A log from its bytes."""
    return [msgspec.json.decode(line, type=SchedulingChoice) for line in data.splitlines()]
