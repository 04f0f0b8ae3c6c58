"""The write hook: writes every group of this process to the store, and notifies those who wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from stepwell.contract.store import Store
from stepwell.errors import CommitUnknown, Corrupted, StoreForeign, StoreUnavailable
from stepwell.model.commit import Commit, CommitKind, Outcome, Unit
from stepwell.pipeline.notifications import Notifications
from stepwell.pipeline.store_clock import StoreClock
from stepwell.pipeline.write_statistics import WriteStatistics

__all__ = ["StoreWriter"]

_RECENT_SECONDS = 30.0
"""For how long damage is reported. Nothing reports a repair, but work that needs the damaged part meets it again."""


class StoreWriter:
    """Writes groups of units to a store, notifies of what landed, remembers damage, and keeps the store's time fresh."""

    def __init__(self, store: Store, notifications: Notifications, clock: StoreClock) -> None:
        self._store, self._notifications, self._clock = store, notifications, clock
        self.statistics = WriteStatistics()
        """Counts of the writes since the store was opened."""
        self._damage: tuple[float, str] | None = None
        """When a write last met damage, by ``time.monotonic``, and what the store said."""

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write a group as ``Store.write`` does."""
        began = monotonic()
        try:
            outcomes = self._store.write(units)
        except BaseException as error:
            self.statistics.add_failure()
            if isinstance(error, Corrupted | StoreForeign):
                self._damage = monotonic(), str(error)
            if not isinstance(error, StoreUnavailable):
                # The group may have landed, so its waiters have to look. When it is certain that nothing
                # landed, no waiter is notified: tasks that write whenever they are woken would wake each other for ever.
                self._notifications.written(units, [CommitUnknown()] * len(units))
            raise
        ended = monotonic()
        self.statistics.add(units, outcomes, ended - began)
        # A single step has no topic, and most groups of a quiet process are that.
        if len(units) > 1 or type(unit := units[0]) is not Commit or unit.kind is not CommitKind.STEP:
            self._notifications.written(units, outcomes)
        self._clock.refresh(ended)
        return outcomes

    def recent_damage(self) -> str | None:
        """Return what the store said when a write met damage lately; None if none did."""
        damage = self._damage
        return damage[1] if damage is not None and damage[0] + _RECENT_SECONDS > monotonic() else None
