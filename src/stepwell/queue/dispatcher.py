"""The dispatcher: claims items that have capacity and hands them to an engine, for as long as its worker works.

Any number of dispatchers may run at once; which items one gets is decided by the store in the claim itself. It is woken by the
pulse (an item became ready, a slot free) and by its engine (a place is free), and looks by itself from time to time, since word
can get lost. A claim is a short transaction of its own; after it, each item is on its own, and one that cannot be started is given
back without holding up the others. In busy times two claims are under way, so that the store looks for the next items while those
of the last claim are run.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from stepwell.clock import Clock
from stepwell.contract.engine import Engine, NotNow
from stepwell.contract.store import Store
from stepwell.errors import LeaseLost, NotFound, StepwellError
from stepwell.model.commit import Written
from stepwell.model.queue_item import Claimed, ClaimItems, Enqueue, ReturnItem
from stepwell.pipeline.notifications import Notifications
from stepwell.pipeline.operations import AsyncDriver, read, write_or_raise
from stepwell.queue.dispatcher_wakeup import ClaimOffer, DispatcherWakeup, PiggybackedClaim, WriteNotices
from stepwell.runtime.shutdown import HandBackRetry, is_away

__all__ = ["BATCH", "POLL_SECONDS", "Dispatcher"]

log = logging.getLogger(__name__)

BATCH = 200
"""As many items as one claim takes at most: a claim holds the locks of the workspaces that it takes from."""

_HALF = 16
"""As many items as are worth a claim of their own, while another one is under way: each costs the store about the same."""

POLL_SECONDS = 5.0
_NO_ROOM_SECONDS = 0.25
_QUIET_SECONDS = 0.02
"""After so long without news it is asked what time alone will bring; in busy times that is not needed."""

_LOOK_SECONDS = 0.02
"""How long after the end of an item that was alone it is looked whether that was so."""

_RATE_SECONDS = 0.1
"""How often to look where starts are limited by a rate."""

_AGAIN_SECONDS = (0.02, 0.05, 0.2, 0.5)
"""How soon to look again where items are ready and none was given, by how often that was done since the last news. Another claimer
may have held their workspace just then, or have shown delayed ones a moment later, and there is no news of either."""

_AWAY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""How long to wait after a failed claim, by how many have failed in a row: a store that is back is used soon."""

_UNKNOWN_DELAY_MS = 5_000
_NOT_NOW_DELAY_MS = 250
_ERROR_DELAY_MS = 1_000


class _Asked(NamedTuple):
    """A claim under way, and how much of the engine's room is kept for it."""

    limit: int
    claim: asyncio.Future[list[Claimed]]
    ride: PiggybackedClaim | None = None

    def left(self, claimed: list[Claimed]) -> list[Claimed]:
        """What is to be started yet of what it came to."""
        return claimed if self.ride is None else [item for item in claimed if item.item_id not in self.ride.started]


class Dispatcher:
    """Moves items from the queue to an engine."""

    def __init__(
        self,
        *,
        engine: Engine,
        store: Store,
        driver: AsyncDriver,
        pulse: Notifications,
        clock: Clock,
        holder: str,
        lease_seconds: float,
        queues: tuple[str, ...] = (),
        poll_seconds: float = POLL_SECONDS,
        standing: ClaimOffer | None = None,
        news: WriteNotices | None = None,
        patience: HandBackRetry | None = None,
    ) -> None:
        self._engine, self._store, self._driver, self._pulse = engine, store, driver, pulse
        self._holder, self._lease_seconds, self.queues = holder, lease_seconds, queues
        self._clock, self._poll_seconds, self._standing = clock, poll_seconds, standing or ClaimOffer()
        self._patience, self._news = patience or HandBackRetry(), news or WriteNotices()
        self._beside: set[asyncio.Task[None]] = set()
        """What is done beside, such as giving items back: while the store does not answer, the others need not wait for that."""
        self._names: tuple[str, ...] = ()
        """Those that it can have run."""
        self.workflows: tuple[str, ...] = ()
        """Those that it claimed items of when it last looked."""
        self.idle_since_ms = clock.now_ms()
        """When it last claimed something, or had no room for more; see ``idleness``."""
        self.is_stopping = self._is_resting = self._lacks_room = False
        self._failures = self._looks = 0
        self._asked: deque[_Asked] = deque()
        self._is_busy = False
        """Whether the last claim gave all that was asked for: then there is likely more."""
        self._bell: DispatcherWakeup | None = None

    async def run(self) -> None:
        """Dispatch until stopped. A store that is away for a while is waited for."""
        bell = self._bell = self._news.bell = DispatcherWakeup(self._pulse)
        self._news.when_due = partial(bell.wake_later, _LOOK_SECONDS, lambda: self._news.is_look_due)
        if self._store.capabilities().takes_requests_beside:
            self._see_to(self._make_ready())
        with bell:
            while not self.is_stopping:
                bell.hush()
                try:
                    pause = await self._dispatch(bell)
                    if pause is not None:
                        await self._rest(bell, pause)
                except Exception:
                    # A worker that is alive and takes nothing would be the worst of ends.
                    log.exception("the dispatcher met something that it did not expect, and goes on")
                    await asyncio.sleep(_AWAY_SECONDS[-1])
            await self._return_asked()
            await asyncio.gather(*self._beside)

    async def _make_ready(self) -> None:
        """Ask for nothing, as it were: the first request finds a connection that stands."""
        with suppress(StepwellError):
            await self._driver.run(write_or_raise(Enqueue(())))

    def stop(self) -> None:
        """Claim no more. What was claimed is started or given back."""
        self.is_stopping = True
        self._ring()

    def freed(self) -> None:
        """The engine has more room; of interest if it had too little. On the dispatcher's loop."""
        if self._lacks_room:
            self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    async def _dispatch(self, bell: DispatcherWakeup) -> float | None:
        """Claim what there is room for and start it; how long to wait before looking again, or None to go on at once."""
        try:
            names = self._names = await self._engine.workflows()
        except StepwellError as error:  # some of the names are in the store
            return self._put_off(error)
        if bell.has_news or not self._is_answered():
            self._ask(names, bell)
        self._lacks_room = not self._asked
        if not self._asked:
            self._note_busy(names)
            return _NO_ROOM_SECONDS
        asked = await self._answered()
        try:
            claimed = await asked.claim
        except StepwellError as error:  # a lost reply, too: what was claimed unheard is returned when the claim ends
            return self._put_off(error)
        else:
            self._failures, self._is_busy = 0, len(claimed) == asked.limit
            if self._is_busy:
                self._ask(names, bell)
        finally:
            self._asked.remove(asked)
        if claimed:
            self._looks = 0
            self._note_busy(names)
        left = asked.left(claimed)
        for item in left:
            if item.attempts <= 1:
                await self._start(item)
        await self._start_one_of([item for item in left if item.attempts > 1])
        self._lacks_room = self._is_busy
        # A claim that a request took along has all the room until here, so news that came with it may have to be looked into yet.
        return None if self._is_busy or self._claims() or bell.has_news or self._is_answered() else self._poll_seconds

    def _put_off(self, error: StepwellError) -> float:
        """The store is away: how long to wait before it is asked again."""
        log.warning("the dispatcher could not claim from its store: %s", error)
        self._is_busy, self._failures = False, self._failures + 1
        return _AWAY_SECONDS[min(self._failures, len(_AWAY_SECONDS)) - 1]

    def _ask(self, names: tuple[str, ...], bell: DispatcherWakeup) -> None:
        """Have a claim under way; in busy times another one, if the engine has room for the items of both."""
        while names and self._claims() < 1 + self._is_busy:
            limit = min(self._part_of(self._room()), BATCH)
            if limit <= 0 or (self._asked and limit < _HALF):
                break
            bell.has_news = False
            self._asked.append(_Asked(limit, asyncio.ensure_future(self._claim(limit, names))))

    def _claims(self) -> int:
        """How many claims of its own are under way. One that went along with a request may be too early for what came since."""
        return sum(asked.ride is None for asked in self._asked)

    def _is_answered(self) -> bool:
        """Whether there is an answer to be looked at."""
        return any(asked.claim.done() for asked in self._asked)

    def _part_of(self, room: int) -> int:
        """How much room the next claim asks for: a half in busy times, when two are under way; in quiet times some is left for the
        claim that a request may take along."""
        if self._asked or (self._is_busy and room < 2 * _HALF):
            return room
        return (room + 1) // 2 if self._is_busy else room - room // 4

    def _room(self) -> int:
        """For how many items there is room, with what was asked for. From any thread."""
        return self._engine.room - sum(asked.limit for asked in tuple(self._asked))

    async def _answered(self) -> _Asked:
        """A claim that was answered, or the one to wait for. In quiet times a request may take another claim along meanwhile."""
        is_riding = any(asked.ride is not None for asked in self._asked)
        if not self._is_answered() and (is_riding or not self._is_busy):
            ride = None if is_riding else self._offer()
            claims = [asked.claim for asked in self._asked]
            try:
                await asyncio.wait(claims if ride is None else (*claims, ride.claimed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._keep(ride)
        return next((asked for asked in self._asked if asked.claim.done()), self._asked[0])

    def _offer(self) -> PiggybackedClaim:
        """Leave a claim with the writer. When it is back and a dispatcher that rests has to look, the bell rings."""
        ride = self._standing.offer(self._standing_unit, self._start_now)
        ride.claimed.add_done_callback(lambda _: self._is_resting and self._ring())
        return ride

    def _keep(self, ride: PiggybackedClaim | None) -> None:
        """Take a standing claim back, or wait for it like any other if it is on its way."""
        if ride is not None and not self._standing.withdraw(ride):
            self._asked.append(_Asked(ride.units[0].limit, ride.claimed, ride))

    async def _return_asked(self) -> None:
        """Give back what was claimed after the end."""
        while self._asked:
            asked = self._asked.popleft()
            with suppress(StepwellError):
                for item in asked.left(await asked.claim):
                    await self._start(item)

    async def _rest(self, bell: DispatcherWakeup, pause: float) -> None:
        """Wait for news, but no longer than this. Who has nothing else to do leaves a claim with the writer meanwhile."""
        ride = self._offer() if pause == self._poll_seconds and self._names else None
        self._is_resting = True
        try:
            is_news = await bell.heard(min(pause, _QUIET_SECONDS)) or await bell.heard(await self._quiet(pause))
            self._looks = 0 if is_news else self._looks + 1
        finally:
            self._is_resting = False
            self._keep(ride)

    def _standing_unit(self) -> ClaimItems | None:
        """The claim for what there is room for now. From any thread."""
        limit = 0 if self.is_stopping else min(self._room(), BATCH)
        return self._unit(limit, self._names, is_riding=True) if limit > 0 else None

    def _unit(self, limit: int, names: tuple[str, ...], *, is_riding: bool = False) -> ClaimItems:
        return ClaimItems(self._holder, self._lease_seconds, limit, self.queues, names, is_riding)

    def _note_busy(self, names: tuple[str, ...]) -> None:
        self.workflows, self.idle_since_ms = names, self._clock.now_ms()

    async def _quiet(self, pause: float) -> float:
        """How long to sleep when there is no news: until an item's time comes, or a rate may allow another start."""
        if pause < self._poll_seconds:
            return pause
        try:
            return await self._driver.run(read(self._soonest))
        except StepwellError as error:
            log.warning("the dispatcher could not look ahead: %s", error)
            return 1.0

    def _soonest(self) -> float:
        store = self._store
        if any(each.rate_per_second for each in (*store.tiers(), *store.queues())):
            return _RATE_SECONDS
        ready = store.next_ready_ms()
        soonest = self._poll_seconds if ready is None else min(max(ready - store.now_ms(), 0) / 1000, self._poll_seconds)
        if self._looks < len(_AGAIN_SECONDS) and store.has_ready():
            # Not all at once: those who were passed over for each other would be so again.
            return min(_AGAIN_SECONDS[self._looks] * random.uniform(0.5, 1.5), soonest)  # noqa: S311 - no secret
        return soonest

    async def _claim(self, limit: int, names: tuple[str, ...]) -> list[Claimed]:
        self._news.looks()
        outcome = await self._driver.run(write_or_raise(self._unit(limit, names)))
        return [item for item in outcome.answers if isinstance(item, Claimed)] if isinstance(outcome, Written) else []

    def _start_now(self, item: Claimed) -> bool:
        """Start an item that a request took along, if there is nothing to wait for; whether it did."""
        if self.is_stopping or item.attempts > 1:
            return False
        try:
            has_started = self._engine.start_now(item)
        except Exception:  # noqa: BLE001 - met again, and told, where it is started with time to wait
            return False
        if has_started:
            self._note_busy(self._names)
        return has_started

    async def _start(self, item: Claimed) -> None:
        if self.is_stopping:
            self._give_back(ReturnItem(item.item_id, item.fence))
            return
        try:
            await self._engine.start(item)
        except NotNow:
            self._give_back(ReturnItem(item.item_id, item.fence, delay_ms=_NOT_NOW_DELAY_MS))
        except NotFound as error:
            # Not its fault: another process may know the workflow, or this one after its next release.
            log.warning("queue item %r is left to others: %s", item.item_id, error)
            self._give_back(ReturnItem(item.item_id, item.fence, delay_ms=_UNKNOWN_DELAY_MS))
        except Exception as error:  # noqa: BLE001 - one bad item never holds the others
            log.warning("queue item %r could not be started: %r", item.item_id, error)
            # That the store was away for a moment uses up no attempt.
            told = None if is_away(error) else f"{type(error).__name__}: {error}"[:2_000]
            self._give_back(ReturnItem(item.item_id, item.fence, told, delay_ms=_ERROR_DELAY_MS * item.attempts))

    async def _start_one_of(self, suspects: list[Claimed]) -> None:
        """Start items whose attempt was cut short: one at a time, and when the others are back, since it may end this process and
        must not use up their attempts, too."""
        for item in suspects[1:]:
            self._give_back(ReturnItem(item.item_id, item.fence, delay_ms=_NOT_NOW_DELAY_MS))
        if suspects:
            await asyncio.gather(*self._beside)
            await self._start(suspects[0])

    def _give_back(self, unit: ReturnItem) -> None:
        """Have an item given back, with as many tries as it takes while it is claimed."""
        self._see_to(self._return(unit, asyncio.get_running_loop().time() + self._lease_seconds))

    def _see_to(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _return(self, unit: ReturnItem, until: float) -> None:
        try:
            await self._patience.keep_trying(lambda: self._driver.run(write_or_raise(unit)), lambda: until)
        except LeaseLost as error:  # by another try, perhaps, whose reply was lost
            log.info("queue item %r is not claimed here any more: %s", unit.item_id, error)
        except StepwellError as error:
            log.warning("queue item %r could not be given back, and is when its claim ends: %s", unit.item_id, error)
