"""News for the dispatcher: which writes of this process may let it start something.

A request whose item was claimed by the claim behind it is none. Nor is the end of an item that was alone: nothing else of its
workspace waited when it was claimed, and nothing has been asked for since, so nobody waits for its slot. To look all the same would
cost the store a claim that finds nothing: in a quiet system, as many of them as there are runs. What this cannot know is what time
alone brings, and requests of other processes at the very same moment; so the dispatcher looks a little later, once for many ends,
unless it has looked for another reason by then.

Nor is anything news that landed before a claim set out: the claim finds it, and another one after it would find nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress

from stepwell.model.commit import Commit, Outcome, Unit, Written
from stepwell.model.queue_item import Claimed, ClaimItems, Enqueue, ItemStatus
from stepwell.pipeline.notifications import QUEUE, topics_of
from stepwell.queue.bell import DispatcherWakeup

__all__ = ["WriteNotices"]

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
