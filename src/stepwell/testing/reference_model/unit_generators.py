"""Draws units of the queue from a seed: requests, claims, what becomes of items, and what limits them. See ``machine.units``.

Draws units of every kind from a seed, with fields that meet in every way that a worker, a dispatcher and a user bring about.

Each unit is written to the right store as soon as it is drawn, so that the next one is drawn on what it left; those of one group
are then written to the store under test together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from stepwell.clock import FakeClock
from stepwell.model.commit import (
    Acquire,
    Adoption,
    Archiving,
    Claim,
    ClaimDue,
    Commit,
    Creation,
    Deletion,
    Extension,
    Head,
    Lease,
    LockGuard,
    Outcome,
    Release,
    Renew,
    Rest,
    StateBatch,
    Sweep,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.ids import new_commit_id
from stepwell.model.queue_item import (
    ACTIVE,
    CancelItem,
    ClaimItems,
    DropItems,
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
from stepwell.model.scoped_operations import ABSENT, Clear, Copy, Delete, Increment, Put, StateOp
from stepwell.model.snapshot import StoredSnapshot
from stepwell.testing.conformance.samples import HOUR
from stepwell.testing.reference_model.side_by_side import HALF_HOUR_MS, Twins

__all__ = [
    "HOLDERS",
    "LEASE",
    "QueueUnits",
    "Units",
]


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
        """Return one of these; name one more than once to get it more often."""
        return self._chance.choice(choices)

    def some(self, *choices: T) -> tuple[T, ...]:
        """Return some of these, at least one, in any order."""
        return tuple(self._chance.sample(choices, self.pick(*range(1, len(choices) + 1))))

    def chance(self, one_in: int) -> bool:
        """Return True once in so many times."""
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
        statuses = self.pick(("COMPLETED",), ("FAILED", "CANCELLED"))
        return self.pick(RecoverItems(), DropItems(tuple(self.workspaces), statuses, RETENTION))

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
        """Return the settings that a change is based on: mostly none, or the present ones."""
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
            child_concurrency=self.pick(None, 1, 100),
            state_keys=self.pick(None, None, 2),
        )

    def _all_items(self) -> list[Item]:
        return [item for item_id in self.items[-12:] if (item := self.right.item(item_id)) is not None]

    def _some_item(self) -> Item | None:
        items = self._all_items()
        active = [item for item in items if item.status in ACTIVE]
        return self.pick(*(active or items)) if items else None

    def _mark(self, name: str) -> ItemMark:
        """Return a mark, mostly of the item that the execution came from."""
        own = [item.item_id for item in self._all_items() if item.execution_id == name or (not name and item.status in ACTIVE)]
        item_id = self.pick(*own, *own, *own, self.pick(*self.items[-4:]))
        item = self.right.item(item_id)
        status = self.pick("DISPATCHED", "COMPLETED", "FAILED", "CANCELLED", "QUEUED")
        if status == "QUEUED":
            return ItemMark(item_id, status)
        fence = self.pick(None, *(() if item is None else (item.fence, item.fence, item.fence - 1)))
        return ItemMark(item_id, status, fence, self.pick(None, "broken"))


# Half hours: nothing ends at a time to which the clock is moved.
LONGER = 2.5 * HOUR
DOOR = "door"


class Units(QueueUnits):
    """Draws units about a few names, so that they meet. ``write`` writes one to the right store."""

    def __init__(self, twins: Twins, clock: FakeClock, seed: int) -> None:
        super().__init__(twins, clock, seed)
        self._locked: Lease | None = None
        self._sent: list[Commit] = []

    def write(self, unit: Unit) -> Outcome:
        """Write a unit to the right store, and keep in mind what comes of it."""
        [outcome] = self.right.write([unit])
        match unit:
            case Commit():
                self._sent = [*self._sent[-5:], unit]
                if isinstance(outcome, Written) and unit.creation is not None and unit.creation.holder is not None:
                    self.twins.born_with_a_lease(unit.execution_id)
            case Acquire() if isinstance(outcome, Written):
                self._locked = outcome.answers[0]  # pyright: ignore[reportAttributeAccessIssue] - a lease
            case _:
                pass
        return outcome

    def set_up(self) -> list[Unit]:
        """Create the workspaces."""
        tiers = [self._tier(number) for number in range(2)]
        made = [Workspace(workspace_id=name, tier=tier.name) for name, tier in zip(self.workspaces, tiers, strict=True)]
        return [*map(PutTier, tiers), *map(PutWorkspace, made)]

    def drawn(self, number: int) -> Iterator[Unit]:
        """Yield so many units, each drawn when the one before was written. A sweep is alone: a store may do it after the others."""
        return (self.sweep() if number == 1 and self.chance(25) else self.draw() for _ in range(number))

    def draw(self) -> Unit:
        """Return the next unit."""
        kinds = (
            *(self.commit,) * 9,
            *(self.dispatch, self.claim_due, self.enqueue, self.claim_items) * 3,
            *(self.state, self.claim, self.extend, self.release, self.resend, self.lock) * 2,
            *(self.delete, self.archive, self.adopt, self.mark, self.give_back),
            *(self.cancel, self.redrive, self.recover, self.put),
        )
        return self.pick(*kinds)()

    def execution(self) -> str:
        """Return one of the latest executions, that of one of the latest items, or a new one."""
        if len(self.executions) < 3 or self.chance(8):
            self.executions.append(self._fresh("x"))
        return self.pick(*self.executions[-5:])

    def _held(self) -> str:
        """Return an execution with a holder, if there is one."""
        held = [name for name in self.executions[-8:] if (head := self.right.head(name)) is not None and head.holder is not None]
        return self.pick(*held) if held and not self.chance(6) else self.execution()

    # Commits.

    def commit(self) -> Unit:
        return self._commit(self.pick(self.execution, self._held)())

    def dispatch(self) -> Unit:
        """Make the execution of an item that was claimed, as a dispatcher does."""
        claimed = [item for item in self._all_items() if item.status == "CLAIMED"]
        if not claimed:
            return self.claim_items()
        item = self.pick(*claimed)
        mark = ItemMark(
            item.item_id, self.pick("DISPATCHED", "DISPATCHED", "COMPLETED", "FAILED"), item.fence, self.pick(None, "broken")
        )
        return msgspec.structs.replace(self._commit(item.execution_id), mark=mark)

    def _commit(self, name: str) -> Commit:
        head = self.right.head(name)
        is_first = head is None or self.chance(12)
        fields: dict[str, Any] = self._first() if is_first or head is None else self._next(head)
        workspace = self.workspaces[0] if head is None else head.workspace_id
        revision = fields["revision"]
        is_named = self.chance(4)
        return Commit(
            execution_id=name,
            workspace_id=workspace,
            commit_id=self._fresh("named") if is_named else new_commit_id(revision, _digest(self._fresh(""))[:32]),
            digest=_digest(self._fresh("digest")),
            header=f"header {self._made}".encode(),
            body=f"body {self._made}".encode(),
            committed_ms=self.right.now_ms() + self._made,
            signature=self.pick(None, b"signed"),
            is_named=is_named,
            **fields,
            **self._riding(name),
        )

    def _first(self) -> dict[str, Any]:
        holder, parent = self.pick(None, "a"), self.pick(None, "parent")
        creation = Creation(self.pick(*self.workflows), self.pick(1, 2), parent, holder, LEASE if holder else 0, not self.chance(3))
        return {"revision": 0, "previous": "", "creation": creation, "status": self.pick(None, "RUNNING", "COMPLETED")}

    def _next(self, head: Head) -> dict[str, Any]:
        is_late = self.chance(10)
        return {
            "revision": head.revision + (0 if is_late else 1),
            "previous": _digest("another") if is_late else head.digest,
            "status": self.pick(None, None, None, "RUNNING", "COMPLETED"),
            "fence": self._fence(head),
            "snapshot": _snapshot(head.revision) if self.chance(8) and not is_late else None,
        }

    def _fence(self, head: Head) -> int | None:
        """Return None, the present fence if its holder can know it, or an earlier one."""
        fence = self.pick(None, *(head.fence,) * 4, max(head.fence - 1, 0))
        return fence if fence is not None and self.twins.has_told(head.execution_id, fence) else None

    def _riding(self, name: str) -> dict[str, Any]:
        """Return the additions to a commit; most have few, so that every pair also occurs alone."""
        fields: dict[str, Any] = {}
        if self.chance(3):
            fields["rest"] = self.pick(Rest(is_final=True), Rest(), Rest(self._time(-1)), Rest(self._time(3)), Rest(0))
        if self.chance(5):
            fields["nudges"] = self._nudges()
        if self.chance(6):
            fields["ops"] = self._ops()
        if self.chance(8):
            fields["guards"] = self._guards()
        if self.chance(6):
            fields["items"] = tuple(self._item() for _ in range(self.pick(1, 2)))
        if self.items and self.chance(3):
            fields["mark"] = self._mark(name)
        return fields

    def resend(self) -> Unit:
        """Return the same commit once more, or another one with its id (T03)."""
        if not self._sent:
            return self.commit()
        sent, other = self.pick(*self._sent), self.commit()
        if isinstance(other, Commit) and other.execution_id == sent.execution_id and self.chance(2):
            return msgspec.structs.replace(other, commit_id=sent.commit_id, is_named=True)
        return sent

    def delete(self) -> Unit:
        return Deletion(self.execution())

    def archive(self) -> Unit:
        name = self.execution()
        head = self.right.head(name)
        revision = 0 if head is None else head.revision
        return Archiving(name, _snapshot(self.pick(revision, max(revision - 1, 0), revision + 1)))

    def adopt(self) -> Unit:
        name = self.execution()
        return Adoption(
            execution_id=name,
            workspace_id=self.workspaces[0],
            creation=Creation(self.workflows[0], 1, self.pick(None, "parent")),
            status=self.pick("PENDING", "COMPLETED"),
            digest=_digest(self._fresh("digest")),
            snapshot=_snapshot(4),
            signature=self.pick(None, b"signed"),
            adopted_ms=self.right.now_ms(),
        )

    # State and locks.

    def state(self) -> Unit:
        return StateBatch(self._ops(), self._guards() if self.chance(3) else (), self._nudges() if self.chance(2) else ())

    def _ops(self) -> tuple[StateOp, ...]:
        return tuple(self._op() for _ in range(self.pick(0, 1, 1, 2)))

    def _op(self) -> StateOp:
        scope, key = self.pick(*self.scopes), self.pick("a", "b")
        ttl_ms = self.pick(None, None, 3 * HALF_HOUR_MS)
        value = msgspec.Raw(self.pick(b"1", b"2", b'"a word that is not so short"'))
        return self.pick(
            Put(scope, key, value, ttl_ms),
            Put(scope, key, value, ttl_ms),
            Put(scope, key, value, ttl_ms, expected=ABSENT),
            Put(scope, key, value, ttl_ms, expected=ABSENT, strict=False),
            Increment(scope, key),
            Delete(scope, key),
            Copy(scope, key, self.pick(*self.scopes), "c", move=self.pick(False, True)),
            Clear(scope),
        )

    def _guards(self) -> tuple[LockGuard, ...]:
        return (LockGuard(DOOR, self._lock_fence()),)

    def _lock_fence(self) -> int:
        fence = 0 if self._locked is None else self._locked.fence
        return self.pick(fence, fence, fence, 0) if self.twins.has_told(DOOR, fence) else 0

    def _nudges(self) -> tuple[str, ...]:
        return tuple(self.pick(self.execution, self._held, lambda: "nobody")() for _ in range(self.pick(1, 1, 2)))

    def lock(self) -> Unit:
        fence = self._lock_fence()
        holder = self._locked.holder if self._locked is not None and not self.chance(3) else self.pick(*HOLDERS)
        at_least = self.pick(0.0, LONGER)
        acquire = Acquire(DOOR, holder, LEASE)
        return self.pick(acquire, acquire, Renew(DOOR, holder, fence, LONGER), Unlock(DOOR, holder, fence, at_least))

    def sweep(self) -> Unit:
        return Sweep(self.pick(0, 5 * HALF_HOUR_MS))

    # Leases.

    def claim(self) -> Unit:
        return Claim(self.execution(), self.pick(*HOLDERS), LEASE)

    def claim_due(self) -> Unit:
        workflows = self.some(*self.workflows)
        versions = self.pick((), (1,) * len(workflows), (2,) * len(workflows))
        return ClaimDue(workflows, self.pick(*HOLDERS), LEASE, 1_000, versions)

    def extend(self) -> Unit:
        return self._of_holder(lambda name, holder, fence: Extension(name, holder, fence, LONGER))

    def release(self) -> Unit:
        return self._of_holder(Release)

    def _of_holder(self, make: Callable[[str, str, int], Unit]) -> Unit:
        name = self._held()
        head = self.right.head(name)
        fence = 0 if head is None else self._fence(head) or 0
        holder = self.pick("a", "b") if head is None or head.holder is None or self.chance(6) else head.holder
        return make(name, holder, fence)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _snapshot(revision: int) -> StoredSnapshot:
    data, accumulator = f"state {revision}".encode(), bytes(256)
    return StoredSnapshot(revision, data, accumulator, sha256(data + accumulator).hexdigest())
