"""Draws units of the queue from a seed: requests, claims, what becomes of items, and what limits them. See ``machine.units``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from stepwell.clock import FakeClock
from stepwell.model.commit import Unit
from stepwell.model.queue_item import (
    ACTIVE,
    CancelItem,
    ClaimItems,
    Enqueue,
    Item,
    ItemMark,
    NewItem,
    PutQueue,
    PutTier,
    PutWorkspace,
    QueueSettings,
    RecoverItems,
    Redrive,
    ReturnItem,
    Tier,
    Workspace,
)
from stepwell.model.scope import Scope
from stepwell.testing.conformance.sample import HOUR
from stepwell.testing.machine.twins import HALF_HOUR_MS, Twins

__all__ = ["HOLDERS", "LEASE", "QueueUnits"]

T = TypeVar("T")

# Half hours: nothing ends at a time to which the clock is moved.
LEASE = 1.5 * HOUR
HOLDERS = ("a", "b")
RETENTION = 2.5 * HOUR
RATE = 1 / (0.7 * HOUR)


class QueueUnits:
    """Draws units about a few names, so that they meet."""

    def __init__(self, twins: Twins, clock: FakeClock, seed: int) -> None:
        self.twins, self.right, self._clock, self._chance = twins, twins.right, clock, random.Random(seed)
        self.workspaces = ["w0", "w1"]
        self.scopes = [Scope.custom("one", workspace).path for workspace in self.workspaces]
        self.workflows, self.queues = ["f0", "f1"], ["q0", "q1"]
        self.executions: list[str] = []
        self.items: list[str] = []
        self._made = 0

    def pick(self, *choices: T) -> T:
        """One of these; name one more than once to have it more often."""
        return self._chance.choice(choices)

    def some(self, *choices: T) -> tuple[T, ...]:
        """Some of these, at least one, in any order."""
        return tuple(self._chance.sample(choices, self.pick(*range(1, len(choices) + 1))))

    def chance(self, one_in: int) -> bool:
        """Whether something happens that does so once in so many times."""
        return self._chance.randrange(one_in) == 0

    def _fresh(self, name: str) -> str:
        self._made += 1
        return f"{name}{self._made}"

    def _time(self, half_hours: int) -> int:
        return self.right.now_ms() + half_hours * HALF_HOUR_MS

    def advance(self, hours: int) -> None:
        """Let time go by."""
        self._clock.advance(hours * HOUR)

    def enqueue(self) -> Unit:
        return Enqueue(tuple(self._item() for _ in range(self.pick(1, 1, 2))))

    def _item(self) -> NewItem:
        item_id = self.pick(*self.items[-4:]) if self.items and self.chance(6) else self._fresh("i")
        if item_id not in self.items:
            self.items.append(item_id)
            self.executions.append(f"of-{item_id}")
        return NewItem(
            item_id=item_id,
            workspace_id=self.pick(*self.workspaces),
            workflow_id=self.pick(*self.workflows),
            version=1,
            execution_id=f"of-{item_id}",
            input=self.pick(b"1", b"2"),
            queue=self.pick(*self.queues),
            priority=self.pick(0, 0, 1, -1),
            delay_ms=self.pick(0, 0, 3 * HALF_HOUR_MS),
            run_at_ms=self.pick(None, None, None, self._time(3), self._time(-1)),
            key=self.pick(*(None,) * 6, self._fresh("k"), "k"),
            body_digest=self.pick("d1", "d1", "d1", "d2"),
            singleton=self.pick(*(None,) * 6, "s"),
            debounce=self.pick(*(None,) * 6, "b"),
            max_attempts=self.pick(1, 2),
        )

    def claim_items(self) -> Unit:
        queues = self.pick((), self.some(*self.queues))
        workflows = self.pick((), (), (self.workflows[0],))
        return ClaimItems(self.pick(*HOLDERS), LEASE, self.pick(1, 2, 5), queues, workflows)

    def mark(self) -> Unit:
        return self._mark("") if self.items else self.enqueue()

    def give_back(self) -> Unit:
        item = self._some_item()
        if item is None:
            return self.enqueue()
        delay, error = self.pick(0, 3 * HALF_HOUR_MS), self.pick(None, "broken")
        return ReturnItem(item.item_id, self.pick(item.fence, item.fence, item.fence - 1), error, delay, self.chance(5))

    def cancel(self) -> Unit:
        return CancelItem(self.pick(*self.items[-6:], "nothing"))

    def redrive(self) -> Unit:
        item_id = self.pick(*self.items[-6:], "nothing")
        return Redrive(item_id, self._fresh("again"))

    def recover(self) -> Unit:
        return RecoverItems()

    def put(self) -> Unit:
        number = self.pick(0, 1)
        tier, is_paused = self._tier(number), self.pick(False, False, True)
        workspace = Workspace(workspace_id=self.workspaces[number], tier=tier.name, is_paused=is_paused)
        cap, rate = self.pick(None, 1, 2), self.pick(None, None, RATE)
        settings = QueueSettings(name=self.queues[number], is_paused=is_paused, concurrency=cap, rate_per_second=rate)
        old_tier = self._based_on(each for each in self.right.tiers() if each.name == tier.name)
        old_settings = self._based_on(each for each in self.right.queues() if each.name == settings.name)
        return self.pick(PutTier(tier, old_tier), PutWorkspace(workspace), PutQueue(settings, old_settings))

    def _based_on(self, known: Iterator[T]) -> T | msgspec.UnsetType | None:
        """What a change says that it is based on: mostly nothing, or what is there."""
        there = next(known, None)
        return self.pick(msgspec.UNSET, msgspec.UNSET, there, there, None)

    def _tier(self, number: int) -> Tier:
        # Weights by which tags come out exact, whatever turn was left by those who claimed before.
        return Tier(
            name=f"t{number}",
            concurrency=self.pick(None, 1, 2, 3),
            weight=self.pick(0.5, 1.0, 4.0),
            rate_per_second=self.pick(None, None, RATE),
            queue_depth=self.pick(None, None, 2, 4),
            state_bytes=self.pick(None, None, 20),
            retention_seconds=None if number == 0 else RETENTION,
        )

    def _all_items(self) -> list[Item]:
        return [item for item_id in self.items[-12:] if (item := self.right.item(item_id)) is not None]

    def _some_item(self) -> Item | None:
        items = self._all_items()
        active = [item for item in items if item.status in ACTIVE]
        return self.pick(*(active or items)) if items else None

    def _mark(self, name: str) -> ItemMark:
        """Mostly of the item that the execution came from."""
        own = [item.item_id for item in self._all_items() if item.execution_id == name or (not name and item.status in ACTIVE)]
        item_id = self.pick(*own, *own, *own, self.pick(*self.items[-4:]))
        item = self.right.item(item_id)
        status = self.pick("DISPATCHED", "COMPLETED", "FAILED", "CANCELLED", "PENDING")
        if status == "PENDING":
            return ItemMark(item_id, status)
        fence = self.pick(None, *(() if item is None else (item.fence, item.fence, item.fence - 1)))
        return ItemMark(item_id, status, fence, self.pick(None, "broken"))
