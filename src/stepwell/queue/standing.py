"""The standing claim of an idle dispatcher: the next write of this process that asks for runs takes it along.

An idle dispatcher would be woken by that write, and then make a claim: two transactions and three changes of thread before anything
starts. So it leaves its claim with the writer instead. The claim is an ordinary one, as fair as any; only the moment is another. It
stands behind the requests of its group, in the same transaction, and finds them. Whatever it misses is found by the claim that the
dispatcher makes when it is woken, as always.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from stepwell.errors import StepwellError
from stepwell.model.commit import Outcome, Unit, Written
from stepwell.model.queue import Claimed, ClaimItems, Enqueue

__all__ = ["Ride", "StandingClaim"]

MakeClaim = Callable[[], ClaimItems | None]


class Ride:
    """A claim that is on its way with a group of somebody else's."""

    def __init__(self, make: MakeClaim) -> None:
        self._make = make
        self._loop = asyncio.get_running_loop()
        self.claimed: asyncio.Future[list[Claimed]] = self._loop.create_future()
        """What it came to; only of interest if it was taken along."""
        self.units: tuple[ClaimItems, ...] = ()
        """The claim, once it is on its way."""

    def board(self) -> None:
        """Make the claim by what there is room for at this moment; none if there is none."""
        unit = self._make()
        self.units = () if unit is None else (unit,)

    def tell(self, outcome: Outcome | BaseException) -> None:
        """Say what it came to. From any thread."""
        with suppress(RuntimeError):  # the loop was closed: what was claimed comes back when the claim ends
            self._loop.call_soon_threadsafe(self._told, outcome)

    def _told(self, outcome: Outcome | BaseException) -> None:
        if self.claimed.done():
            return
        if isinstance(outcome, Written):
            self.claimed.set_result([item for item in outcome.answers if isinstance(item, Claimed)])
        else:
            self.claimed.set_exception(outcome if isinstance(outcome, StepwellError) else StepwellError(repr(outcome)))


class StandingClaim:
    """Where a dispatcher leaves its claim, and writers look for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ride: Ride | None = None

    def offer(self, make: MakeClaim) -> Ride:
        """Leave a claim for the next write that asks for runs. On the dispatcher's loop."""
        ride = Ride(make)
        with self._lock:
            self._ride = ride
        return ride

    def withdraw(self, ride: Ride) -> bool:
        """Take a claim back; False if it is on its way already."""
        with self._lock:
            self._ride = None
        return not ride.units

    def take(self, units: Sequence[Unit]) -> Ride | None:
        """The claim that goes along with a group, if there is one and the group asks for runs. From any thread."""
        if not (self._is_offered() and any(_asks_now(unit) for unit in units)):
            return None
        with self._lock:
            ride, self._ride = self._ride, None
            if ride is not None:
                ride.board()  # with the lock, so that it is either withdrawn or on its way
        return ride if ride is not None and ride.units else None

    def _is_offered(self) -> bool:
        return self._ride is not None


def _asks_now(unit: Unit) -> bool:
    """Whether a unit brings an item that may start at once."""
    return isinstance(unit, Enqueue) and any(new.run_at_ms is None and not new.delay_ms for new in unit.items)
