"""The write hook: every group that this process writes goes through here, and is passed on to those who wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.contract.store import Store
from stepwell.model.commit import Commit, CommitKind, Outcome, Unit
from stepwell.pipeline.notifications import Notifications

__all__ = ["StoreWriter"]


class StoreWriter:
    """Writes groups of units to a store, and notifies of what landed."""

    def __init__(self, store: Store, pulse: Notifications) -> None:
        self._store, self._pulse = store, pulse

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write a group as ``Store.write`` does."""
        try:
            outcomes = self._store.write(units)
        except BaseException:
            # The group may have landed all the same, so everybody who waits has to look.
            self._pulse.beat("")
            raise
        # A single step has no topic, and most groups of a quiet process are that.
        if len(units) > 1 or type(unit := units[0]) is not Commit or unit.kind is not CommitKind.STEP:
            self._pulse.written(units, outcomes)
        return outcomes
