"""The dispatcher: claims items that have capacity, and hands them to an engine, for as long as its worker works.

Any number of dispatchers may run at once; the store decides in the claim which items each gets. A claim is a transaction of its
own. The dispatcher claims again at once while its last claim was full. Otherwise it sleeps until a write may have made an item
ready or a slot free, until a delayed item comes due, or until its next poll, since notifications can get lost. An item that cannot
be started is given back, and holds up no other. See docs/design/0016-dispatch.md.
"""

from __future__ import annotations

import asyncio
import logging
import random

from stepwell.clock import Clock
from stepwell.contract.engine import Engine, NotNow
from stepwell.contract.store import Store
from stepwell.errors import EncryptionKeyMissing, EngineUnavailable, LeaseLost, NotFound, StepwellError
from stepwell.model.commit import Written
from stepwell.model.queue_item import STARTED_QUEUE, Claimed, ClaimItems, ReturnItem
from stepwell.pipeline.notifications import QUEUE, Notifications
from stepwell.pipeline.operations import AsyncDriver, read, write_or_raise
from stepwell.runtime.periodic import PeriodicTask
from stepwell.runtime.shutdown import HandBackRetry, is_away

__all__ = ["BATCH", "POLL_SECONDS", "Dispatcher"]

log = logging.getLogger(__name__)

BATCH = 200
"""The most items that one claim takes: a claim holds the locks of the workspaces that it takes from."""

POLL_SECONDS = 5.0
_NO_ROOM_SECONDS = 0.25
_QUIET_SECONDS = 0.02
"""How long to wait for a notification before asking the store what comes due: in busy times that question is not needed."""

_RATE_SECONDS = 0.1
"""How often to look where starts are limited by a rate."""

_AGAIN_SECONDS = (0.02, 0.05, 0.2, 0.5)
"""How soon to claim again where items are ready and none was given, by how often that was tried since the last notification.
Another claimer may have locked their workspace just then, or may be about to show delayed ones, and neither sends a
notification."""

_UNKNOWN_DELAY_MS = 5_000
_NOT_NOW_DELAY_MS = 250
_ERROR_DELAY_MS = 1_000


class Dispatcher(PeriodicTask):
    """Moves items from the queue to an engine."""

    name = "the dispatcher"

    def __init__(
        self,
        *,
        engine: Engine,
        store: Store,
        driver: AsyncDriver,
        notifications: Notifications,
        clock: Clock,
        holder: str,
        lease_seconds: float,
        queues: tuple[str, ...] = (),
        poll_seconds: float = POLL_SECONDS,
        hand_back_retry: HandBackRetry | None = None,
    ) -> None:
        super().__init__()
        self._engine, self._store, self._driver, self._notifications = engine, store, driver, notifications
        self._holder, self._lease_seconds, self.queues = holder, lease_seconds, queues
        self._clock, self._poll_seconds = clock, poll_seconds
        self._hand_back_retry = hand_back_retry or HandBackRetry()
        self._returns: set[asyncio.Task[None]] = set()
        """Items being given back: while the store does not answer, the others need not wait for that."""
        self.workflows: tuple[str, ...] = ()
        """The names that it claimed items of when it last had something to do."""
        self.idle_since_ms = clock.now_ms()
        """When it last claimed something, or had no room for more; see ``idleness``."""
        self._lacks_room = False
        self._looks = 0
        """How many claims in a row were made without a notification, and found nothing."""
        engine.on_room(self._on_room)

    async def run(self) -> None:
        """Dispatch until stopped; then finish giving items back."""
        with self._notifications.subscribed(QUEUE, self.wake):
            await super().run()
            await asyncio.gather(*self._returns)

    def _on_room(self) -> None:
        if self._lacks_room:
            self.wake()

    async def work(self) -> float | None:
        """Claim what there is room for and start it."""
        names = await self._engine.workflows()
        limit = min(self._engine.room, BATCH) if names else 0
        if limit <= 0:
            self._lacks_room = True
            self._note_busy(names)
            return _NO_ROOM_SECONDS
        claimed = await self._claim(limit, names)
        if claimed:
            self._looks = 0
            self._note_busy(names)
        await self._start_all([item for item in claimed if item.attempts <= 1])
        await self._start_one_of([item for item in claimed if item.attempts > 1])
        self._lacks_room = len(claimed) == limit
        return None if self._lacks_room else await self._pause()

    async def _claim(self, limit: int, names: tuple[str, ...]) -> list[Claimed]:
        queues = (*self.queues, STARTED_QUEUE) if self.queues else ()
        unit = ClaimItems(self._holder, self._lease_seconds, limit, queues, names)
        outcome = await self._driver.run(write_or_raise(unit))
        return [item for item in outcome.answers if isinstance(item, Claimed)] if isinstance(outcome, Written) else []

    async def sleep(self, seconds: float) -> bool:
        """Sleep until woken, and count the sleeps that no notification ended."""
        is_woken = await super().sleep(seconds)
        self._looks = 0 if is_woken else self._looks + 1
        return is_woken

    async def _pause(self) -> float | None:
        """Return how long to sleep when there is no notification: until an item comes due, or a rate may allow another start."""
        if await super().sleep(_QUIET_SECONDS):
            self._looks = 0
            return None
        return await self._driver.run(read(self._soonest))

    def _soonest(self) -> float:
        store = self._store
        if any(each.rate_per_second for each in (*store.tiers(), *store.queues())):
            return _RATE_SECONDS
        ready = store.next_ready_ms()
        soonest = self._poll_seconds if ready is None else min(max(ready - store.now_ms(), 0) / 1000, self._poll_seconds)
        if self._looks < len(_AGAIN_SECONDS) and store.has_ready():
            # Jitter: claimers that passed each other over would do so again if they came at the same time.
            return min(_AGAIN_SECONDS[self._looks] * random.uniform(0.5, 1.5), soonest)  # noqa: S311 - no secret
        return soonest

    def _note_busy(self, names: tuple[str, ...]) -> None:
        self.workflows, self.idle_since_ms = names, self._clock.now_ms()

    async def _start(self, item: Claimed) -> None:
        if self.is_stopping:
            self._give_back(ReturnItem(item.item_id, item.fence))
            return
        try:
            await self._engine.start(item)
        except NotNow:
            self._give_back(ReturnItem(item.item_id, item.fence, delay_ms=_NOT_NOW_DELAY_MS))
        except EngineUnavailable as error:
            log.warning("queue item %r waits for its engine: %s", item.item_id, error)
            self._give_back(ReturnItem(item.item_id, item.fence, delay_ms=_ERROR_DELAY_MS))
        except (NotFound, EncryptionKeyMissing) as error:
            # Not the item's fault: another process may know the workflow or have the key, or this one after its next release.
            log.warning("queue item %r is left to other workers: %s", item.item_id, error)
            self._give_back(ReturnItem(item.item_id, item.fence, delay_ms=_UNKNOWN_DELAY_MS))
        except Exception as error:  # noqa: BLE001 - one bad item never holds up the others
            log.warning("queue item %r could not be started: %r", item.item_id, error)
            # That the store was away for a moment uses up no attempt.
            reason = None if is_away(error) else f"{type(error).__name__}: {error}"[:2_000]
            self._give_back(ReturnItem(item.item_id, item.fence, reason, delay_ms=_ERROR_DELAY_MS * item.attempts))

    async def _start_all(self, items: list[Claimed]) -> None:
        """Start items in their order; where each start is a call of another server, so many at a time."""
        at_once = self._engine.concurrent_starts
        for first in range(0, len(items), at_once):
            if at_once == 1:
                await self._start(items[first])
            else:
                await asyncio.gather(*map(self._start, items[first : first + at_once]))

    async def _start_one_of(self, suspects: list[Claimed]) -> None:
        """Start one item whose earlier attempt was cut short, after the others are given back: it may end this process, and must
        not use up their attempts, too."""
        for item in suspects[1:]:
            self._give_back(ReturnItem(item.item_id, item.fence, delay_ms=_NOT_NOW_DELAY_MS))
        if suspects:
            await asyncio.gather(*self._returns)
            await self._start(suspects[0])

    def _give_back(self, unit: ReturnItem) -> None:
        """Give an item back, and retry for as long as it is claimed."""
        task = asyncio.ensure_future(self._return(unit, asyncio.get_running_loop().time() + self._lease_seconds))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _return(self, unit: ReturnItem, until: float) -> None:
        try:
            await self._hand_back_retry.keep_trying(lambda: self._driver.run(write_or_raise(unit)), lambda: until)
        except LeaseLost as error:  # perhaps given back by an earlier try whose reply was lost
            log.info("queue item %r is not claimed here any more: %s", unit.item_id, error)
        except StepwellError as error:
            log.warning("queue item %r could not be given back; its claim has to expire: %s", unit.item_id, error)
