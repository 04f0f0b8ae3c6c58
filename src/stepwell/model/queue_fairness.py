"""Fairness of the queue: the items that a claim takes, from capacity, rates and weights. Pure functions, for the stores that
decide in Python.

A store finds the lanes with ready items, each with its first one, and says how many each workspace and each queue may still start
(``free_slots``, ``rate_allowance``). ``ClaimSelection`` then takes the items with the smallest start tags (see
``model.queue_item``), and reads more of a lane only when it has taken all known ones.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

__all__ = [
    "Candidate",
    "ClaimSelection",
    "Contender",
    "LaneKey",
    "More",
    "Queued",
    "changed_rate_ms",
    "earlier_rate_ms",
    "free_slots",
    "later_rate_ms",
    "rate_allowance",
]

_UNBOUNDED = 2**53

# Rounding leaves sums of fractions slightly below a whole number; a thousandth of an item is more than any such error.
_ROUNDING = 0.001


class LaneKey(NamedTuple):
    """A lane: the items of a workspace in one queue for one workflow, which start in order."""

    workspace_id: str
    queue: str
    workflow_id: str


class Candidate(NamedTuple):
    """An item that could be taken; the smallest one is the first of its workspace."""

    rank: int
    """The priority, negated: higher priorities come first."""
    number: int


class Queued(NamedTuple):
    """A lane and some of its items, in order."""

    key: LaneKey
    candidates: Sequence[Candidate]
    is_whole: bool
    """Whether the lane has no further items."""


class Contender(NamedTuple):
    """A workspace with ready items."""

    workspace_id: str
    weight: float
    passed: float
    """Its pass: the tag of the next item that it may start."""
    allowance: int
    """The number of items that it may start now."""


def free_slots(concurrency: int | None, used: int) -> int:
    """Return how many more may be active."""
    return _UNBOUNDED if concurrency is None else max(concurrency - used, 0)


def rate_allowance(rate_per_second: float | None, rate_ms: float, now_ms: int) -> int:
    """Return how many may start now, if ``rate_ms`` is what ``later_rate_ms`` said after those before.

    This is the generic cell rate algorithm: each start is due one interval after the one before, and may come before it is due by a
    second's worth. In any t seconds no more than rate * (t + 1) start. A rate below one still lets single items through.
    """
    if rate_per_second is None:
        return _UNBOUNDED
    if rate_per_second <= 0:
        return 0
    interval = 1000 / rate_per_second
    ahead = now_ms + max(1000 - interval, 0) - max(rate_ms, now_ms)
    return max(math.floor(ahead / interval + _ROUNDING) + 1, 0)


def later_rate_ms(rate_per_second: float | None, rate_ms: float, now_ms: int, started: int) -> float:
    """Return when the next start is due, after ``started`` of them now."""
    if not rate_per_second or not started:
        return rate_ms
    return max(rate_ms, now_ms) + started * 1000 / rate_per_second


def earlier_rate_ms(rate_per_second: float | None, rate_ms: float, claimed_ms: int, now_ms: int) -> float:
    """Return when the next start is due without one that was counted at ``claimed_ms`` and came to nothing.

    That is one interval earlier, less the time since: the next start may have been due at the moment of the claim, and time that
    has passed since then cannot be used any more. So the starts since then are counted as they would have been: the rate holds.
    """
    if not rate_per_second:
        return rate_ms
    return rate_ms - max(1000 / rate_per_second - max(now_ms - claimed_ms, 0), 0)


def changed_rate_ms(rate_per_second: float | None, rate_ms: float, now_ms: int) -> float:
    """Return when the next start is due under a new rate: no later than starts by this rate alone could have put it off.

    So a raised rate holds at once, and one that is put again changes nothing. It is for the moment in which a rate is put: at every
    look, it would put off the next start for good.
    """
    return min(rate_ms, now_ms + max(1000, 1000 / rate_per_second)) if rate_per_second else rate_ms


More = Callable[[LaneKey, Candidate], Queued]
"""Returns the items of a lane after a given one, any number of them."""


class _Line:
    """A lane while a claim takes from it."""

    __slots__ = ("at", "queued")

    def __init__(self, queued: Queued) -> None:
        self.queued, self.at = queued, 0

    def first(self, more: More) -> Candidate | None:
        """Return the lane's next item, if there is one left; ask for those behind the last one when that has been taken."""
        candidates = self.queued.candidates
        if self.at < len(candidates):
            return candidates[self.at]
        if self.queued.is_whole:
            return None
        self.queued, self.at = more(self.queued.key, candidates[-1]), 0
        return self.queued.candidates[0] if self.queued.candidates else None


class _Share:
    """A workspace while a claim takes from it."""

    __slots__ = ("base", "contender", "lines", "next", "taken")

    def __init__(self, contender: Contender, base: float) -> None:
        self.contender, self.base, self.taken = contender, base, 0
        self.lines: list[_Line] = []
        self.next: _Line | None = None
        """The lane that its next item stands in."""

    @property
    def tag(self) -> float:
        """Return the tag of the next item."""
        return self.base + self.taken / self.contender.weight


class ClaimSelection:
    """The selection of one claim. ``numbers`` are the items in the order in which to start them."""

    def __init__(
        self,
        virtual_time: float,
        contenders: Iterable[Contender],
        lanes: Iterable[Queued],
        queue_allowance: dict[str, int],
        more: More,
    ) -> None:
        self.numbers: list[int] = []
        self.virtual_time = virtual_time
        self._more = more
        self._queues = queue_allowance
        self._shares = {each.workspace_id: _Share(each, max(each.passed, virtual_time)) for each in contenders}
        for queued in lanes:
            share = self._shares.get(queued.key.workspace_id)
            if share is not None and queued.candidates:
                share.lines.append(_Line(queued))

    def take(self, limit: int) -> None:
        """Take the items with the smallest tags; of equal tags, the item that came first."""
        heap = self._entries()
        while heap and len(self.numbers) < limit:
            tag, number, name = heap[0]
            share = self._shares[name]
            self.numbers.append(number)
            # It never goes back, or a workspace that was idle could claim turns of the past.
            self.virtual_time = max(self.virtual_time, tag)
            if self._take_next(share):
                # Other workspaces may have had their next item in this queue; now they have another one, or none.
                heap = self._entries()
            elif (following := self._entry(share)) is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, following)

    def _take_next(self, share: _Share) -> bool:
        """Take the next item of a workspace; return whether its queue may start no more."""
        line = share.next
        assert line is not None, "a workspace that may start no more has no entry"  # noqa: S101
        share.taken += 1
        line.at += 1
        queue = line.queued.key.queue
        if queue not in self._queues:
            return False
        self._queues[queue] -= 1
        return self._queues[queue] == 0

    def _entries(self) -> list[tuple[float, int, str]]:
        heap = [entry for share in self._shares.values() if (entry := self._entry(share)) is not None]
        heapq.heapify(heap)
        return heap

    def passes(self) -> dict[str, tuple[float, int]]:
        """Return the new pass of each workspace that items were taken from, and their number."""
        return {name: (share.tag, share.taken) for name, share in self._shares.items() if share.taken}

    def _entry(self, share: _Share) -> tuple[float, int, str] | None:
        """Return the tag, the number and the workspace of the next item that it may start; None if there is none."""
        if share.taken >= share.contender.allowance:
            return None
        best: Candidate | None = None
        for line in share.lines:
            if self._queues and self._queues.get(line.queued.key.queue, _UNBOUNDED) <= 0:
                continue
            first = line.first(self._more)
            if first is not None and (best is None or first < best):
                best, share.next = first, line
        return None if best is None else (share.tag, best.number, share.contender.workspace_id)
