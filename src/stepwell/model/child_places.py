"""Places for children: how many of a root's descendants may run at once, as one record that the whole tree shares.

What counts are the live *leaves* below a root: descendants that have not ended and have no live child. A tree has one leaf more
than the sum, over all executions with live children, of those children without one each. So an execution's first live child needs
no place: it runs in the place of its parent. Each further one needs an extra place, and with a limit of N there are N - 1 of them
for the whole tree. No execution waits for its first child, so a tree cannot wait for itself.

The record says which execution holds how many extra places, and which wait for more. Executions say how many they want as an
absolute number, so a request that is repeated after a crash changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

__all__ = ["ChildPlaces", "Holding"]


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """The extra places of one execution.

    ``fence`` is that of the lease under which it asked last: a request of an earlier lease that comes late is not heard.
    """

    held: int
    wanted: int
    fence: int


class ChildPlaces(msgspec.Struct, frozen=True):
    """The extra places of one tree. They go to waiting executions in turns, one place at a time, the oldest request first."""

    holdings: dict[str, Holding] = {}
    waiting: tuple[str, ...] = ()
    """The executions that want more than they hold, in the order in which they are served."""

    def asked(self, execution_id: str, wanted: int, used: int, fence: int, extra: int) -> tuple[ChildPlaces, set[str]]:
        """Return the places after an execution asked, and the executions that got more by that.

        Args:
            wanted: how many extra places it wants, with those that it holds.
            used: how many of them its live children take; it keeps these although the limit may have been lowered.
            extra: how many extra places there are.
        """
        before = self.holdings.get(execution_id, Holding(0, 0, fence))
        if before.fence > fence:
            return self, set()
        taken = sum(each.held for name, each in self.holdings.items() if name != execution_id)
        # More than it used is kept only within the limit, so that a lowered limit is reached as children end.
        held = min(before.held, max(used, min(wanted, extra - taken)))
        holdings = {**self.holdings, execution_id: Holding(held, wanted, fence)}
        others = tuple(each for each in self.waiting if each != execution_id)
        # One that waits already keeps its turn.
        waiting = others if held >= wanted else self.waiting if execution_id in self.waiting else (*others, execution_id)
        return _served(holdings, waiting, extra)

    def without(self, gone: Collection[str]) -> ChildPlaces:
        """Return the places without those of executions that have ended."""
        return ChildPlaces(
            {name: each for name, each in self.holdings.items() if name not in gone},
            tuple(each for each in self.waiting if each not in gone),
        )

    def held_by(self, execution_id: str, fence: int) -> int:
        """Return how many extra places an execution holds; none under an earlier lease than it has by now."""
        found = self.holdings.get(execution_id)
        return 0 if found is None or found.fence > fence else found.held


def _served(holdings: dict[str, Holding], waiting: tuple[str, ...], extra: int) -> tuple[ChildPlaces, set[str]]:
    """Give free places to those who wait, in turns."""
    free, queue, served = extra - sum(each.held for each in holdings.values()), list(waiting), set[str]()
    while free > 0 and queue:
        name = queue.pop(0)
        found = holdings[name]
        if found.held < found.wanted:
            found = holdings[name] = msgspec.structs.replace(found, held=found.held + 1)
            served.add(name)
            free -= 1
        if found.held < found.wanted:
            queue.append(name)
    kept = {name: each for name, each in holdings.items() if each.held or each.wanted}
    return ChildPlaces(kept, tuple(queue)), served
