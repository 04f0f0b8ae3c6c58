"""Joins: when branches or instances have come together, worked out from counts alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from math import inf

from stepwell.flow.definition.node import InstanceRule, JoinRule
from stepwell.kernel.trouble import Trouble, trouble

__all__ = ["JoinCount", "Verdict", "judge"]


class Verdict(Enum):
    """What a join has come to."""

    WAIT = auto()
    PASS = auto()
    FAIL = auto()


_NEVER = (inf, 0)


class JoinCount:
    """How many of the children of a join have ended, and how. Kept in memory; built again from the record after a load.

    Of those that ended in the same millisecond, the first in the order of the document is the first: the record tells no more.
    """

    __slots__ = ("_numbers", "_troubled", "_won", "error", "excused", "failed", "pending", "succeeded", "total", "winner")

    def __init__(self, slots: Iterable[str]) -> None:
        self.pending: deque[str] = deque(slots)
        """Those that have not begun."""
        self.total = len(self.pending)
        self.succeeded = self.failed = self.excused = 0
        self.winner: str | None = None
        """The first that succeeded."""
        self.error: Trouble | None = None
        """Why the first of those failed that count."""
        self._numbers = {slot: number for number, slot in enumerate(self.pending)}
        self._won: tuple[float, int] = _NEVER
        self._troubled: tuple[float, int] = _NEVER

    @property
    def left(self) -> int:
        """How many have not ended."""
        return self.total - self.succeeded - self.failed - self.excused

    def count(self, slot: str, error: Trouble | None, at_ms: int, *, is_optional: bool = False) -> None:
        """Another one has ended."""
        when = (at_ms, self._numbers[slot])
        if error is None:
            self.succeeded += 1
            if when < self._won:
                self.winner, self._won = slot, when
        elif is_optional:
            self.excused += 1
        else:
            self.failed += 1
            if when < self._troubled:
                self.error, self._troubled = error, when


def judge(rule: JoinRule | InstanceRule | int, tally: JoinCount, *, fail_fast: bool, has_failed: bool) -> Verdict:
    """What a join has come to after one more child has ended; ``has_failed``: how that one did, in a way that counts."""
    match rule:
        case "all":
            if tally.failed and (fail_fast or not tally.left):
                return Verdict.FAIL
            return Verdict.WAIT if tally.left else Verdict.PASS
        case "first":
            if has_failed:
                return Verdict.FAIL
            return Verdict.PASS if tally.succeeded or not tally.left else Verdict.WAIT
        case "none":
            return Verdict.PASS
        case _:
            needed = rule if isinstance(rule, int) else 1
            if tally.succeeded >= needed:
                return Verdict.PASS
            return Verdict.WAIT if tally.succeeded + tally.left >= needed else Verdict.FAIL


def shortfall(rule: JoinRule | InstanceRule | int, tally: JoinCount) -> Trouble:
    """Why a join failed: the error of a branch, or that too few have succeeded."""
    if tally.error is not None and not isinstance(rule, int):
        return tally.error
    cause = f"; the first failure: {tally.error['kind']}: {tally.error['message']}" if tally.error else ""
    needed = rule if isinstance(rule, int) else 1
    message = f"{needed} of {tally.total} had to succeed, and only {tally.succeeded} did{cause}"
    return {**trouble("JoinFailed", message), **({"step": tally.error["step"]} if tally.error and "step" in tally.error else {})}
