"""Schedulers make the choices of a run and log them, so that the same run can be repeated.

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
    """A choice: the number of the option, from 0, and how many there were."""

    what: str
    ways: int
    way: int


class Diverged(AssertionError):
    """A replayed run met a choice other than the next one of the log: something in it is not deterministic."""

    def __init__(self, number: int, expected: SchedulingChoice | None, what: str, ways: int) -> None:
        told = "the log has ended" if expected is None else f"the log has {expected.what!r} of {expected.ways} ways"
        came = f"choice {number} is {what!r} of {ways} ways" if what else f"the run has ended before choice {number}"
        super().__init__(f"{came}, but {told}")
        self.number, self.expected = number, expected


class TaskScheduler(Protocol):
    """Makes choices and logs them."""

    log: list[SchedulingChoice]

    def choose(self, what: str, ways: int) -> int:
        """Return the number of an option, from 0 to ``ways`` - 1."""
        ...


class _Logged:
    def __init__(self) -> None:
        self.log: list[SchedulingChoice] = []

    def choose(self, what: str, ways: int) -> int:
        """Choose an option, and log it."""
        way = self._way(what, ways)
        self.log.append(SchedulingChoice(what, ways, way))
        return way

    def _way(self, what: str, ways: int) -> int:
        raise NotImplementedError


class InOrder(_Logged):
    """Always chooses the first option: the simplest run, and the same every time."""

    def _way(self, what: str, ways: int) -> int:
        return 0


class Seeded(_Logged):
    """Chooses by chance, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def _way(self, what: str, ways: int) -> int:
        return self._random.randrange(ways)


class Replay(_Logged):
    """Chooses as a log says. Raises ``Diverged`` if the run asks for another choice."""

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
        """Check the end of a run. Raise ``Diverged`` if the log has more choices."""
        number = len(self.log)
        if number < len(self._script):
            raise Diverged(number, self._script[number], "", 0)


class Lenient:
    """Chooses as a log says, and the first option where the log ends or differs from the run, so that a replay reaches its end."""

    def __init__(self, within: TaskScheduler) -> None:
        self._within = within
        self.log = within.log

    def choose(self, what: str, ways: int) -> int:
        """Choose as the log says, or the first option."""
        try:
            return self._within.choose(what, ways)
        except Diverged:
            return 0


def pick(scheduler: TaskScheduler, what: str, among: Sequence[T]) -> T:
    """Return one of several values."""
    return among[scheduler.choose(what, len(among))]


def happens(scheduler: TaskScheduler, what: str, per_mille: int) -> bool:
    """Return True with this probability; never for the simplest run."""
    return scheduler.choose(what, 1000) >= 1000 - per_mille


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Seed the random numbers of others, such as the jitter of retries."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def write_log(log: Iterable[SchedulingChoice]) -> bytes:
    """Return a log as bytes, a JSON line for each choice."""
    return b"".join(msgspec.json.encode(choice) + b"\n" for choice in log)


def read_log(data: bytes) -> list[SchedulingChoice]:
    """Return the log of these bytes."""
    return [msgspec.json.decode(line, type=SchedulingChoice) for line in data.splitlines()]
