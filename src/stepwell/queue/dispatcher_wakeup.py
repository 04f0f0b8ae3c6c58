"""The bell of a dispatcher: what it sleeps by, and whether there is news that it has not looked into.

News for the dispatcher: which writes of this process may let it start something.

A request whose item was claimed by the claim behind it is none. Nor is the end of an item that was alone: nothing else of its
workspace waited when it was claimed, and nothing has been asked for since, so nobody waits for its slot. To look all the same would
cost the store a claim that finds nothing: in a quiet system, as many of them as there are runs. What this cannot know is what time
alone brings, and requests of other processes at the very same moment; so the dispatcher looks a little later, once for many ends,
unless it has looked for another reason by then.

Nor is anything news that landed before a claim set out: the claim finds it, and another one after it would find nothing.

The standing claim of an idle dispatcher: the next write of this process that asks for runs takes it along.

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
from itertools import compress

from stepwell.errors import StepwellError
from stepwell.model.commit import Commit, Outcome, Unit, Written
from stepwell.model.queue_item import Claimed, ClaimItems, Enqueue, ItemStatus
from stepwell.pipeline.notifications import QUEUE, Notifications, Subscription, topics_of

__all__ = [
    "ClaimOffer",
    "DispatcherWakeup",
    "PiggybackedClaim",
    "WriteNotices",
]


class DispatcherWakeup(Subscription):
    """Rings for news of the queue, from any thread; many rings before it is heard are one."""

    def __init__(self, pulse: Notifications) -> None:
        super().__init__(pulse, QUEUE)
        self._here = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._is_ringing = self._is_rung = False
        self._timer: asyncio.TimerHandle | None = None
        self.has_news = False
        """Whether it rang for news that no claim has set out for since."""

    def wake(self) -> None:
        """Ring for news. From any thread."""
        self.has_news = True
        if not self._is_ringing:
            self._is_ringing = True
            with suppress(RuntimeError):  # the loop was closed: nobody is there to hear it
                self._here.call_soon_threadsafe(self._rung.set)

    def wake_later(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        """Ring so long after the latest call of this, if it is wanted then. From any thread."""
        with suppress(RuntimeError):
            self._here.call_soon_threadsafe(self._set_timer, seconds, is_wanted)

    def _set_timer(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._here.call_later(seconds, lambda: is_wanted() and self.wake())

    def cover(self) -> None:
        """A claim sets out, which finds whatever there was news of until now. From any thread."""
        self.has_news = False

    def ring(self) -> None:
        """Ring for something else than news. On its own loop."""
        self._is_rung = True
        self._rung.set()

    def hush(self) -> None:
        """From now on, new rings count."""
        self._is_rung = False
        self._silence()

    def _silence(self) -> None:
        self._rung.clear()
        self._is_ringing = False

    async def heard(self, seconds: float) -> bool:
        """Wait for a ring, but no longer than this; whether there was one. One for news that was covered since is none."""
        if self._rung.is_set() and not (self._is_rung or self.has_news):
            self._silence()
            if self.has_news:  # it came before it was silent, and did not ring
                self._rung.set()
        if not self._rung.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._rung.wait()
        return self._rung.is_set()


_MOST_ALONE = 10_000


class WriteNotices:
    """What is known of items that were alone. Writers ask from any thread, each about its own group as soon as that is written."""

    def __init__(self) -> None:
        self._alone: set[str] = set()
        self._is_look_due = False
        self.when_due: Callable[[], None] = lambda: None
        """Called when an item has ended without the dispatcher being told, for the first time since it looked. From any thread."""
        self.bell: DispatcherWakeup | None = None
        """The dispatcher's."""

    def sets_out(self, units: Sequence[Unit]) -> None:
        """A group is about to be written."""
        if self.bell is not None and any(isinstance(unit, ClaimItems) for unit in units):
            self.bell.cover()

    def covered(self, units: Sequence[Unit]) -> DispatcherWakeup | None:
        """The bell that need not ring for a group, since the claim at its end finds what the others have brought about."""
        return self.bell if isinstance(units[-1], ClaimItems) else None

    def of(
        self, units: Sequence[Unit], outcomes: Sequence[Outcome], claim: Outcome | None
    ) -> tuple[Sequence[Unit], Sequence[Outcome]]:
        """What is left of a group as news, after the claim that went along with it."""
        if claim is None and not self._alone:
            return units, outcomes
        taken = [item for item in claim.answers if isinstance(item, Claimed)] if isinstance(claim, Written) else []
        ids = {item.item_id for item in taken}
        is_news = [self._is_news(unit, ids) for unit in units]
        if len(self._alone) < _MOST_ALONE:  # some end where nobody sees it, and are never asked for
            self._alone.update(item.item_id for item in taken if item.is_alone)
        return [*compress(units, is_news)], [*compress(outcomes, is_news)]

    def _is_news(self, unit: Unit, taken: set[str]) -> bool:
        if isinstance(unit, Enqueue) and taken.issuperset(new.item_id for new in unit.items):
            return False
        if QUEUE not in (topics := topics_of(unit)):
            return True
        if not isinstance(unit, Commit) or unit.items or unit.mark is None or unit.mark.status == ItemStatus.PENDING:
            self._alone.clear()
            return True
        if unit.mark.item_id not in self._alone:
            return True
        self._alone.discard(unit.mark.item_id)
        if not self._is_look_due:
            self._is_look_due = True
            self.when_due()
        return topics != {QUEUE}

    def forget(self) -> None:
        """Others may have asked for something, or nobody knows what was written: every end is news again."""
        self._alone.clear()

    def looks(self) -> None:
        """The dispatcher makes a claim, and finds what there is."""
        self._is_look_due = False

    @property
    def is_look_due(self) -> bool:
        """Whether an item has ended without the dispatcher having looked since."""
        return self._is_look_due


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
