"""Schedulers: who makes the choices of a run that has any, and a log of them, from which the same run can be had again.

A choice is a name and a number of ways; a scheduler says which way. ``InOrder`` always takes the first, ``Seeded`` takes one by a seed,
``Replay`` takes those of a log, and says where a run parts from it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

__all__ = ["Choice", "Diverged", "InOrder", "Replay", "Scheduler", "Seeded", "happens", "pick", "read_log", "write_log"]

T = TypeVar("T")


class Choice(msgspec.Struct, frozen=True):
    """A choice that was made: the number of the way, from 0, out of how many."""

    what: str
    ways: int
    way: int


class Diverged(AssertionError):
    """A run that is replayed came to a choice that is not the next one of the log: something in it is not deterministic."""

    def __init__(self, number: int, expected: Choice | None, what: str, ways: int) -> None:
        told = "the log has ended" if expected is None else f"the log has {expected.what!r} of {expected.ways} ways"
        super().__init__(f"choice {number} is {what!r} of {ways} ways, but {told}")
        self.number, self.expected = number, expected


class Scheduler(Protocol):
    """Makes choices and remembers them."""

    log: list[Choice]

    def choose(self, what: str, ways: int) -> int:
        """Which way to go, from 0 to ``ways`` - 1."""
        ...


class _Logged:
    def __init__(self) -> None:
        self.log: list[Choice] = []

    def choose(self, what: str, ways: int) -> int:
        """Choose, and remember it."""
        way = self._way(what, ways)
        self.log.append(Choice(what, ways, way))
        return way

    def _way(self, what: str, ways: int) -> int:
        raise NotImplementedError


class InOrder(_Logged):
    """Always the first way: the plainest run, and the same every time."""

    def _way(self, what: str, ways: int) -> int:  # noqa: ARG002 - whatever it is
        return 0


class Seeded(_Logged):
    """Ways by chance, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def _way(self, what: str, ways: int) -> int:  # noqa: ARG002
        return self._random.randrange(ways)


class Replay(_Logged):
    """The ways of a log; ``Diverged`` if the run asks for anything else."""

    def __init__(self, log: Iterable[Choice]) -> None:
        super().__init__()
        self._script = list(log)

    def _way(self, what: str, ways: int) -> int:
        number = len(self.log)
        expected = self._script[number] if number < len(self._script) else None
        if expected is None or (expected.what, expected.ways) != (what, ways):
            raise Diverged(number, expected, what, ways)
        return expected.way


def pick(scheduler: Scheduler, what: str, among: Sequence[T]) -> T:
    """One of several things."""
    return among[scheduler.choose(what, len(among))]


def happens(scheduler: Scheduler, what: str, per_mille: int) -> bool:
    """Whether something with this probability happens; never for the plainest run."""
    return scheduler.choose(what, 1000) >= 1000 - per_mille


def write_log(log: Iterable[Choice]) -> bytes:
    """A log as bytes, a JSON line for each choice."""
    return b"".join(msgspec.json.encode(choice) + b"\n" for choice in log)


def read_log(data: bytes) -> list[Choice]:
    """A log from its bytes."""
    return [msgspec.json.decode(line, type=Choice) for line in data.splitlines()]
