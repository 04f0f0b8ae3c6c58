"""The extra places for children that one execution holds in its tree; see ``model.child_places`` for the rule.

All executions of a tree change one record, by compare-and-set. A write that frees places gives them to executions that wait, and
nudges these. A waiting execution also takes back the places of executions that have ended without giving them back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from stepwell.contract.store import Store
from stepwell.errors import CommitUnknown, Conflict, StepwellError
from stepwell.model.child_places import ChildPlaces
from stepwell.model.commit import StateBatch
from stepwell.model.record import Metadata, root_of
from stepwell.model.scope import internal_path
from stepwell.model.scoped_operations import ABSENT, Delete, Put, StoredEntry
from stepwell.model.status import FINAL
from stepwell.model.value import decode, recode
from stepwell.pipeline.operations import AsyncDriver, read, write_or_raise

__all__ = ["ExtraPlaces", "PlaceRecords", "PlacesNeeded"]

log = logging.getLogger(__name__)

_KEY = "places"
_LONGEST_PAUSE_SECONDS = 0.05


class PlacesNeeded(NamedTuple):
    """How many extra places an execution wants, and how many of them its live children take."""

    wanted: int
    used: int


class PlaceRecords:
    """Reads and changes the records of trees."""

    def __init__(self, store: Store, driver: AsyncDriver) -> None:
        self._store, self._driver = store, driver
        # Within the process the executions of a tree take turns, so that only other processes make them try again.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ask(self, identity: Metadata, needed: Callable[[], PlacesNeeded], fence: int, extra: int) -> int:
        """Ask for extra places, or give some back; return how many the execution holds then.

        ``needed`` is called when its turn has come, so that a request covers what was asked for meanwhile.
        """
        path = internal_path("child_places", identity.workspace_id, root_of(identity))
        turn = self._turns.get(path)
        if turn is None:
            turn = self._turns[path] = asyncio.Lock()
        async with turn:
            while True:
                row = (await self._driver.run(read(lambda: self._store.entries(path, [_KEY])))).get(_KEY)
                found = _decoded(row)
                if identity.execution_id in found.waiting:
                    found = await self._without_ended(found, identity.execution_id)
                wanted, used = needed()
                places, served = found.asked(identity.execution_id, wanted, used, fence, extra)
                if places == _decoded(row):
                    return places.held_by(identity.execution_id, fence)
                nudges = tuple(sorted(served - {identity.execution_id}))
                try:
                    await self._driver.run(write_or_raise(StateBatch((_change(path, places, row),), (), nudges)))
                except (Conflict, CommitUnknown):  # another process was first, or the reply was lost: look what is there now
                    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE_SECONDS))  # noqa: S311 - spreads retries, guards nothing
                    continue
                return places.held_by(identity.execution_id, fence)

    async def _without_ended(self, found: ChildPlaces, own_id: str) -> ChildPlaces:
        """Return the places without those of executions that have ended, but died before they gave them back."""
        others = [each for each in found.holdings if each != own_id]

        def ended() -> set[str]:
            heads = {each: self._store.head(each) for each in others}
            return {name for name, head in heads.items() if head is None or head.status in FINAL}

        return found.without(await self._driver.run(read(ended)))


def _decoded(row: StoredEntry | None) -> ChildPlaces:
    return ChildPlaces() if row is None or row.data is None else msgspec.convert(decode(row.data), ChildPlaces)


def _change(path: str, places: ChildPlaces, row: StoredEntry | None) -> Put | Delete:
    if row is not None and not places.holdings:
        return Delete(path, _KEY, row.revision)
    data = recode(msgspec.to_builtins(places))
    return Put(path, _KEY, msgspec.Raw(data), expected=ABSENT if row is None else row.revision)


class ExtraPlaces:
    """The extra places of one execution, as its session knows them.

    Args:
        needed: returns how many the session needs now.
        changed: is called when more are held than before.
        beside: where tasks are kept for whose end the session waits before it rests.
        is_new: whether the execution has had no session before, which may have died before it said what it needs.
    """

    def __init__(
        self,
        records: PlaceRecords,
        identity: Metadata,
        fence: int,
        needed: Callable[[], PlacesNeeded],
        changed: Callable[[], None],
        beside: set[asyncio.Task[None]],
        *,
        is_new: bool,
    ) -> None:
        self._records, self._identity, self._fence = records, identity, fence
        self._needed, self._changed, self._tasks = needed, changed, beside
        self.held = 0
        """How many it holds for sure."""
        self._told: tuple[int, int] | None = None
        """The number that the session asked for last, and the limit at that time."""
        self._limit: int | None = None
        """The limit that the session knew last."""
        self._is_unsure = not is_new
        """Whether the record may say something else than ``held`` and ``_told``."""
        self._is_closed = False
        self._turn = asyncio.Lock()

    async def settle(self, limit: int | None, *, is_nudged: bool = False) -> None:
        """Ask for what is missing, and give back what is left over. Without need nothing is read or written.

        Args:
            limit: the child_concurrency now; without one nothing is counted, and with 1 there is no extra place.
            is_nudged: whether others may have given places since the last time.
        """
        self._limit = limit
        if limit is None or not self._is_due(limit, is_nudged=is_nudged):
            return
        async with self._turn:
            if not self._is_due(limit, is_nudged=is_nudged):
                return  # the request before this one covered it
            asked = PlacesNeeded(0, 0)

            def needed() -> PlacesNeeded:
                nonlocal asked, before
                asked = self._needed_within(limit)
                # The record may give a place beyond that to another execution before the reply is here: start no child in it.
                before = self.held = min(self.held, asked.wanted)
                return asked

            before, self._is_unsure = self.held, True
            try:
                self.held = await self._records.ask(self._identity, needed, self._fence, limit - 1)
            except asyncio.CancelledError:
                self.settle_later(limit)  # the call does not want it any more
                raise
            self._told, self._is_unsure = (asked.wanted, limit), False
        if self.held > before:
            self._changed()

    def settle_later(self, limit: int | None, *, is_nudged: bool = False) -> None:
        """Do the same beside the session, which does not rest until it is done."""
        self._limit = limit
        if limit is not None and not self._is_closed and self._is_due(limit, is_nudged=is_nudged):
            task = asyncio.get_running_loop().create_task(self._settle_quietly(limit, is_nudged=is_nudged))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def give_back(self) -> None:
        """Give everything back, since the execution has ended."""
        self.close()
        told = self._told[0] if self._told is not None else 0
        if self._limit is not None and (self._is_unsure or self.held or told):
            await self._settle_quietly(self._limit, is_nudged=True)

    def close(self) -> None:
        """Let go of the session, which is over."""
        self._is_closed = True
        self._needed, self._changed = _nothing_needed, _nothing_to_do
        for task in self._tasks:
            task.cancel()

    def _is_due(self, limit: int, *, is_nudged: bool) -> bool:
        if is_nudged or self._is_unsure:
            return limit > 1 or self._told is not None
        wanted = self._needed_within(limit).wanted
        if self._told is None:
            return limit > 1 and wanted > 0
        told, before = self._told
        # That less is wanted than before need not be said: a place for which there is no need any more goes back when it comes.
        return before != limit or not self.held <= wanted <= told

    def _needed_within(self, limit: int) -> PlacesNeeded:
        wanted, used = self._needed()
        return PlacesNeeded(max(min(wanted, limit - 1), used), used)

    async def _settle_quietly(self, limit: int, *, is_nudged: bool) -> None:
        try:
            await self.settle(limit, is_nudged=is_nudged)
        except StepwellError as error:
            # It is said with the next request; what an ended execution holds is found by those who wait.
            log.info("the places for children of execution %r are as before: %s", self._identity.execution_id, error)


def _nothing_needed() -> PlacesNeeded:
    return PlacesNeeded(0, 0)


def _nothing_to_do() -> None:
    pass
