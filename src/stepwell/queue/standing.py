"""The standing claim of an idle dispatcher: the next write of this process that asks for runs takes it along.

An idle dispatcher would be woken by that write, and then make a claim: two transactions and three changes of thread before anything
starts. So it leaves its claim with the writer instead. The claim is an ordinary one, as fair as any; only the moment is another. It
stands behind the requests of its group, in the same transaction, and finds them. Whatever it misses is found by the claim that the
dispatcher makes when it is woken, as always; if it missed nothing, the dispatcher is not woken at all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context

from stepwell.errors import StepwellError
from stepwell.model.commit import Outcome, Unit, Written
from stepwell.model.queue_item import Claimed, ClaimItems, Enqueue

__all__ = ["ClaimOffer", "PiggybackedClaim"]

MakeClaim = Callable[[], ClaimItems | None]
Start = Callable[[Claimed], bool]
"""Starts an item, if there is nothing to wait for; whether it did."""


class PiggybackedClaim:
    """A claim that goes along with a group of somebody else's. What it claims is started in the very turn of the loop that brings
    it, and if nothing is left to do, it stands there for the next group, without waking its dispatcher."""

    def __init__(self, make: MakeClaim, start: Start, standing: ClaimOffer) -> None:
        self._make, self._start, self._standing = make, start, standing
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self.claimed: asyncio.Future[list[Claimed]] = self._loop.create_future()
        """What it came to; only of interest if it was taken along."""
        self.started: set[str] = set()
        """Those of them that are started."""
        self.units: tuple[ClaimItems, ...] = ()
        """The claim, once it is on its way."""
        self.is_awaited = False
        """Whether the dispatcher waits for what it comes to."""

    def board(self) -> None:
        """Make the claim by what there is room for at this moment; none if there is none."""
        unit = self._make()
        self.units = () if unit is None else (unit,)

    def tell(self, outcome: Outcome | BaseException) -> None:
        """Say what it came to. From any thread."""
        with suppress(RuntimeError):  # the loop was closed: what was claimed comes back when the claim ends
            # What is started belongs to the dispatcher, and must not think that it is inside of what the writer is called from.
            self._loop.call_soon_threadsafe(self._told, outcome, context=self._context)

    def _told(self, outcome: Outcome | BaseException) -> None:
        try:
            self._take_in(outcome)
        finally:
            self._standing.arrived(self)

    def _take_in(self, outcome: Outcome | BaseException) -> None:
        if self.claimed.done():
            return
        if not isinstance(outcome, Written):
            self.claimed.set_exception(outcome if isinstance(outcome, StepwellError) else StepwellError(repr(outcome)))
            return
        items = [item for item in outcome.answers if isinstance(item, Claimed)]
        self.started = {item.item_id for item in items if self._start(item)}
        if self.is_awaited or not items or len(self.started) < len(items) or len(items) == self.units[0].limit:
            self.claimed.set_result(items)
        else:
            self.units = ()
            self._standing.put(self)


class ClaimOffer:
    """Where a dispatcher leaves its claim, and writers look for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ride: PiggybackedClaim | None = None
        self._under_way: set[PiggybackedClaim] = set()
        self.when_told: Callable[[], None] = lambda: None
        """Called on the dispatcher's loop when a claim is back, and what it brought has started."""

    def offer(self, make: MakeClaim, start: Start) -> PiggybackedClaim:
        """Leave a claim for the next write that asks for runs. On the dispatcher's loop."""
        ride = PiggybackedClaim(make, start, self)
        self.put(ride)
        return ride

    def put(self, ride: PiggybackedClaim) -> None:
        """Have a claim stand for the next write."""
        with self._lock:
            self._ride = ride

    def withdraw(self, ride: PiggybackedClaim) -> bool:
        """Take a claim back; False if it is on its way already, and has to be waited for."""
        with self._lock:
            self._ride = None
        ride.is_awaited = bool(ride.units)
        return not ride.is_awaited

    def take(self, units: Sequence[Unit]) -> PiggybackedClaim | None:
        """The claim that goes along with a group, if there is one and the group asks for runs. From any thread."""
        if not (self._is_offered() and any(_asks_now(unit) for unit in units)):
            return None
        with self._lock:
            ride, self._ride = self._ride, None
            if ride is not None:
                ride.board()  # with the lock, so that it is either withdrawn or on its way
            if ride is None or not ride.units:
                return None
            self._under_way.add(ride)
        return ride

    def is_under_way(self) -> bool:
        """Whether a request is on its way to the store with a claim that was left here. From any thread."""
        return bool(self._under_way)

    def arrived(self, ride: PiggybackedClaim) -> None:
        """A claim is back. On the dispatcher's loop."""
        self._under_way.discard(ride)
        self.when_told()

    def _is_offered(self) -> bool:
        return self._ride is not None


def _asks_now(unit: Unit) -> bool:
    """Whether a unit brings an item that may start at once."""
    return isinstance(unit, Enqueue) and any(new.run_at_ms is None and not new.delay_ms for new in unit.items)
