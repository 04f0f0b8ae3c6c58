"""The queue's machine: drives a store's queue and a plain model of it side by side with random rules.

After each rule the used slots of every workspace are its CLAIMED and DISPATCHED rows, in the store as in the model (T35), no cap is
passed (I7), and no item is lost or there twice (I6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, LeaseLost, LimitExceeded
from stepwell.model.commit import Outcome, Unit, Written
from stepwell.model.queue_item import (
    CancelItem,
    ClaimItems,
    Enqueue,
    ItemMark,
    ItemQuery,
    PutQueue,
    QueueSettings,
    Redrive,
    ReturnItem,
)
from stepwell.testing.conformance.fixtures import OpenStore
from stepwell.testing.conformance.samples import HOUR, answers, fresh_id, ids_of, new_item, put_workspace, recover, refused, write
from stepwell.testing.effort import scaled
from stepwell.testing.reference_model.queue import PlainItem, PlainQueue, PlainWorkspace

QUEUES = ("mail", "bulk")
picks = st.integers(0, 10_000)
names = st.one_of(st.none(), st.sampled_from(["x", "y"]))

# Of a rate below one: single starts, so far apart. No time to which the clock is moved is near such an end.
INTERVAL_MS = round(0.7 * HOUR * 1000)


def _rate(interval_ms: int) -> float | None:
    return 1000 / interval_ms if interval_ms else None


class QueueMachine(RuleBasedStateMachine):
    """A store's queue beside its plain model."""

    def __init__(self, stores: Sequence[Store], clock: FakeClock) -> None:
        super().__init__()
        self.stores, self.clock, self.plain = stores, clock, PlainQueue()
        self.prefix = fresh_id("m")
        self.turns = 0

    @property
    def store(self) -> Store:
        """The store whose turn it is: two of them take turns, where there are two."""
        self.turns += 1
        return self.stores[self.turns % len(self.stores)]

    @initialize(
        caps=st.lists(st.sampled_from([None, 0, 1, 2, 3]), min_size=3, max_size=3),
        # Halves and doubles, so that tags come out the same whatever turn was left here by those who claimed before.
        weights=st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=3, max_size=3),
        intervals=st.lists(st.sampled_from([0, 0, INTERVAL_MS]), min_size=5, max_size=5),
    )
    def set_up(self, caps: list[int | None], weights: list[float], intervals: list[int]) -> None:
        for number, (cap, weight, interval_ms) in enumerate(zip(caps, weights, intervals[:3], strict=True)):
            name = f"{self.prefix}-w{number}"
            self.plain.workspaces[name] = PlainWorkspace(cap, weight, 6, interval_ms)
            self._put(name)
        for number, interval_ms in enumerate(intervals[3:]):
            if interval_ms:
                self.plain.intervals_ms[self._queue(number)] = interval_ms
                self.change_queue(number, None, False)

    def _put(self, name: str) -> None:
        workspace = self.plain.workspaces[name]
        limits = {"concurrency": workspace.concurrency, "weight": workspace.weight, "queue_depth": workspace.depth}
        rate = _rate(workspace.interval_ms)
        put_workspace(self.store, name, is_paused=workspace.is_paused, retention_seconds=None, rate_per_second=rate, **limits)

    def _name(self, pick: int) -> str:
        return list(self.plain.workspaces)[pick % len(self.plain.workspaces)]

    def _queue(self, pick: int) -> str:
        return f"{self.prefix}-{QUEUES[pick % 2]}"

    def _item(self, pick: int, status: str = "") -> PlainItem:
        """One of the items; one of this status, if there is any."""
        items = [item for item in self.plain.items if item.status == status] or self.plain.items
        return items[pick % len(items)]

    def _write(self, unit: Unit) -> Outcome:
        return write(self.store, unit)

    def has_items(self) -> bool:
        """Return whether there is an item."""
        return bool(self.plain.items)

    @rule(workspace=picks, queue=picks, count=st.integers(2, 4))
    def enqueue_some(self, workspace: int, queue: int, count: int) -> None:
        for _ in range(count):
            self.enqueue(workspace, queue, 0, 0, None, None)

    @rule(
        workspace=picks, queue=picks, priority=st.integers(-1, 1), hours=st.sampled_from([0, 0, 0, 2]), key=names, singleton=names
    )
    def enqueue(self, workspace: int, queue: int, priority: int, hours: int, key: str | None, singleton: str | None) -> None:
        item_id, number = fresh_id(self.prefix), len(self.plain.items)
        name, run_at = self._name(workspace), self.clock.now_ms() + hours * HOUR * 1000
        fields = {"queue": self._queue(queue), "priority": priority, "key": key, "singleton": singleton, "max_attempts": 2}
        new = new_item(item_id, name, delay_ms=hours * HOUR * 1000, **fields)
        plain = PlainItem(item_id, number, name, self._queue(queue), priority, run_at, key, singleton, 2)
        wanted = self.plain.enqueue(plain)
        [answer] = answers(self._write(Enqueue((new,))))
        if wanted is None:
            refused(answer, LimitExceeded)
        else:
            assert (answer.item_id, answer.is_new) == wanted

    @rule(limit=st.integers(1, 8), hours=st.sampled_from([1, 3]))
    def claim(self, limit: int, hours: int) -> None:
        now = self.clock.now_ms()
        wanted = self.plain.claim(limit, now, now + hours * HOUR * 1000)
        queues = tuple(self._queue(number) for number in range(2))
        taken = answers(self._write(ClaimItems("d", hours * HOUR, limit, queues)))
        assert ids_of(taken) == wanted
        assert [(each.fence, each.attempts) for each in taken] == [
            (item.fence, item.attempts) for item in map(self.plain.get, wanted)
        ]

    @precondition(has_items)
    @rule(
        pick=picks,
        status=st.sampled_from(["DISPATCHED", "COMPLETED", "FAILED"]),
        late=st.sampled_from([0, 0, 1]),
        fenced=st.booleans(),
    )
    def mark(self, pick: int, status: str, late: int, fenced: bool) -> None:
        item = self._item(pick)
        outcome = self._write(ItemMark(item.item_id, status, item.fence - late if fenced else None))
        if fenced and (late or not item.is_active):
            refused(outcome, LeaseLost)
            return
        assert isinstance(outcome, Written)
        if not item.has_ended:
            item.status = status

    @precondition(has_items)
    @rule(pick=picks, error=st.sampled_from([None, "broken"]), late=st.sampled_from([0, 0, 1]))
    def give_back(self, pick: int, error: str | None, late: int) -> None:
        item = self._item(pick, "CLAIMED")
        outcome = self._write(ReturnItem(item.item_id, item.fence - late, error))
        if item.status != "CLAIMED" or late:
            refused(outcome, LeaseLost)
        elif error is None:
            self.plain.give_back(item, self.clock.now_ms())
        else:
            self.plain.give_up(item, self.clock.now_ms())

    @precondition(has_items)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        item = self._item(pick)
        if item.status in ("QUEUED", "CLAIMED"):
            item.status = "CANCELLED"
        [after] = answers(self._write(CancelItem(item.item_id)))
        assert after.status == item.status

    @precondition(has_items)
    @rule(pick=picks, is_same=st.booleans())
    def drive_again(self, pick: int, is_same: bool) -> None:
        """As a new execution, or as the same one."""
        item = self._item(pick)
        outcome = self._write(ItemMark(item.item_id, "QUEUED") if is_same else Redrive(item.item_id, fresh_id("again")))
        rivals = [each for each in self.plain.items if each.singleton == item.singleton and each.workspace == item.workspace]
        is_taken = item.singleton is not None and any(not each.has_ended for each in rivals)
        if item.status not in ("FAILED", "CANCELLED") or is_taken:
            refused(outcome, Conflict)
        else:
            item.status, item.attempts, item.run_at_ms = "QUEUED", 0, self.clock.now_ms()

    @rule(hours=st.sampled_from([0.5, 2, 4]))
    def wait_and_recover(self, hours: float) -> None:
        self.clock.advance(hours * HOUR)
        now = self.clock.now_ms()
        expired = [item for item in self.plain.items if item.status == "CLAIMED" and item.until_ms <= now]
        for item in expired:
            self.plain.give_up(item, now)
        own = {item.item_id for item in self.plain.items}
        assert {item_id for item_id in recover(self.store) if item_id in own} == {item.item_id for item in expired}

    @rule(pick=picks, cap=st.sampled_from([None, 0, 1, 2, 5]), is_paused=st.sampled_from([False, False, False, True]))
    def change_workspace(self, pick: int, cap: int | None, is_paused: bool) -> None:
        name = self._name(pick)
        workspace = self.plain.workspaces[name]
        workspace.concurrency, workspace.is_paused = cap, is_paused
        self._put(name)

    @rule(pick=picks, cap=st.sampled_from([None, None, 1, 2]), is_paused=st.sampled_from([False, False, True]))
    def change_queue(self, pick: int, cap: int | None, is_paused: bool) -> None:
        name = self._queue(pick)
        rate = _rate(self.plain.intervals_ms.get(name, 0))
        settings = QueueSettings(name=name, is_paused=is_paused, concurrency=cap, rate_per_second=rate)
        assert isinstance(self._write(PutQueue(settings)), Written)
        self.plain.paused.discard(name)
        self.plain.caps.pop(name, None)
        if is_paused:
            self.plain.paused.add(name)
        if cap is not None:
            self.plain.caps[name] = cap

    @invariant()
    def every_row_is_the_plain_one(self) -> None:
        """T35, I6, I7."""
        store = self.store
        for name in self.plain.workspaces:
            rows = {item.item_id: (item.status, item.attempts, item.fence) for item in store.items(ItemQuery(workspace_id=name))}
            plain = [item for item in self.plain.items if item.workspace == name]
            assert rows == {item.item_id: (item.status, item.attempts, item.fence) for item in plain}
            lanes = store.lanes(name)
            assert sum(lane.claimed + lane.dispatched for lane in lanes) == self.plain.used(name)
            assert sum(lane.ready + lane.delayed for lane in lanes) == sum(item.status == "QUEUED" for item in plain)


EFFORT = settings(
    max_examples=scaled(30),
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.timeout(900)
def test_queue_does_what_its_plain_model_does(store: Store, open_store: OpenStore, clock: FakeClock) -> None:
    """T35."""
    stores = [store, open_store()] if store.capabilities().is_shared else [store]
    # It is called, never subclassed, though its type says that it must be a class.
    run_state_machine_as_test(cast("type[QueueMachine]", lambda: QueueMachine(stores, clock)), settings=EFFORT)
