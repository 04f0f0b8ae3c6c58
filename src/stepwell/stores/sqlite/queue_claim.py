"""Claims of queue items on SQLite: a handful of statements, no matter how many items wait; ``model.queue_fairness`` selects them.

Fetching a row releases the GIL and has to get it back, up to a switch interval in a busy process. So each statement returns all
its data in one row, as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepwell.errors import Corrupted
from stepwell.fault_points import fault
from stepwell.model.queue_fairness import (
    Candidate,
    ClaimSelection,
    Contender,
    LaneKey,
    Queued,
    free_slots,
    later_rate_ms,
    rate_allowance,
)
from stepwell.model.queue_item import Claimed, ClaimItems
from stepwell.stores.sqlite.connection import Database

__all__ = ["claim_items"]

# The most delayed items that one claim makes ready, so that no claim takes too long; the next one continues.
_MOST_PROMOTED = 10_000

# Larger inputs are read one by one, so that no list gets as long as 200 of the largest inputs.
_MOST_QUOTED = 4_096


def claim_items(db: Database, sql: Mapping[str, str], unit: ClaimItems, now_ms: int) -> list[Claimed]:
    """Take items that are ready and have capacity, fairly."""
    return _Claim(db, sql, unit, now_ms).run() if unit.limit > 0 else []


class _Limit(msgspec.Struct, array_like=True, gc=False):
    """The limits of a workspace or a queue. Floats are texts, with all of their digits."""

    name: str
    is_paused: int
    concurrency: int | None
    used: int
    """The number of active items, if that is limited."""
    rate: float | None
    rate_ms: float

    def allowance(self, now_ms: int) -> int:
        """Return how many more it may start now."""
        return min(free_slots(self.concurrency, self.used), rate_allowance(self.rate, self.rate_ms, now_ms))

    def later_rate_ms(self, now_ms: int, started: int) -> float:
        """Return when the next start is due, after a number of starts now."""
        return float(later_rate_ms(self.rate, self.rate_ms, now_ms, started))


class _Tenant(_Limit):
    weight: float
    passed: float


_lanes = msgspec.json.Decoder(list[tuple[str, str, str, list[Candidate]]]).decode
_tenants = msgspec.json.Decoder(list[_Tenant], strict=False).decode
_queues = msgspec.json.Decoder(list[_Limit], strict=False).decode
_more = msgspec.json.Decoder(list[Candidate]).decode
_candidates = msgspec.json.Decoder(list[tuple[int, int, int]]).decode
_items = msgspec.json.Decoder(list[tuple[int, str, str, str, int, str, str | None, int, int, str, int]]).decode


class _Claim:
    def __init__(self, db: Database, sql: Mapping[str, str], unit: ClaimItems, now_ms: int) -> None:
        self._db, self._sql, self._unit, self._now_ms = db, sql, unit, now_ms
        self._until_ms = now_ms + round(unit.seconds * 1000)
        self._tenants: dict[str, _Tenant] = {}
        self._queues: dict[str, _Limit] = {}
        """The queues that were set up."""

    def _row(self, name: str, *arguments: object) -> tuple[Any, ...]:
        return self._db.rows(self._sql[name], *arguments)[0]

    def run(self) -> list[Claimed]:
        try:
            return self._run()
        except msgspec.DecodeError as error:
            raise Corrupted(f"a row of the queue does not hold what it should: {error}") from error

    def _run(self) -> list[Claimed]:
        virtual_time, lanes = self._look()
        contenders = [
            Contender(name, tenant.weight, tenant.passed, allowance)
            for name, tenant in self._tenants.items()
            if (allowance := tenant.allowance(self._now_ms))
        ]
        if not contenders:
            return []
        if len(lanes) > self._unit.limit:
            lanes = self._deepened(lanes, contenders, virtual_time)
        allowances = {name: 0 if queue.is_paused else queue.allowance(self._now_ms) for name, queue in self._queues.items()}
        choosing = ClaimSelection(virtual_time, contenders, lanes, allowances, self._more)
        choosing.take(self._unit.limit)
        if not choosing.numbers:
            return []
        chosen = self._chosen(choosing.numbers)
        self._write(choosing, Counter(item.queue for item in chosen))
        fault("queue.items_claimed")
        fault("queue.claim_counted")
        return chosen

    def _look(self) -> tuple[float, list[Queued]]:
        """Return the greatest start tag so far, and the requested lanes with their first items; note their limits."""
        wanted = [_json(names) if names else None for names in (self._unit.queues, self._unit.workflows)]
        row = self._row("outlook", self._now_ms, *wanted, self._unit.limit)
        if row[0]:
            self._db.run(self._sql["promote"], self._now_ms, _MOST_PROMOTED)
            row = self._row("outlook", self._now_ms, *wanted, self._unit.limit)
        _, virtual_time, chunk, lanes, tenants, queues = row
        self._tenants = {tenant.name: tenant for tenant in _tenants(tenants) if not tenant.is_paused}
        self._queues = {queue.name: queue for queue in _queues(queues)}
        return virtual_time, [Queued(LaneKey(*key), items, len(items) < chunk) for *key, items in _lanes(lanes)]

    def _deepened(self, lanes: list[Queued], contenders: Sequence[Contender], virtual_time: float) -> list[Queued]:
        """Return the lanes, with several items for those that the claim will probably take from, when there are too many for
        all."""
        first = sorted(contenders, key=lambda contender: max(contender.passed, virtual_time))[: self._unit.limit]
        names = {contender.workspace_id for contender in first}
        likely: dict[LaneKey, list[Candidate]] = {queued.key: [] for queued in lanes if queued.key.workspace_id in names}
        keys, chunk = [*likely], 2 * self._unit.limit // len(likely) + 2
        for index, rank, number in _candidates(self._row("first_of_lanes", _json(keys), chunk)[0]):
            likely[keys[index]].append(Candidate(rank, number))
        deep = (Queued(key, items, len(items) < chunk) for key, items in likely.items())
        return [*deep, *(queued for queued in lanes if queued.key not in likely)]

    def _more(self, key: LaneKey, after: Candidate) -> Queued:
        rows = _more(self._row("more_of_lane", *key, after.rank, after.number, self._unit.limit)[0])
        return Queued(key, rows, len(rows) < self._unit.limit)

    def _chosen(self, numbers: Sequence[int]) -> list[Claimed]:
        """Return the chosen items as they will be claimed."""
        found = {row[0]: row for row in _items(self._row("chosen_items", _json(numbers), _MOST_QUOTED)[0])}
        return [self._claimed(*found[number]) for number in numbers]

    def _claimed(self, number: int, *row: Any) -> Claimed:
        item, workspace, workflow, version, execution, text, fence, attempts, queue, enqueued_ms = row
        data = self._row("input_of_item", number)[0] if text is None else text.encode()
        return Claimed(
            item, workspace, workflow, version, execution, data, fence + 1, attempts + 1, self._until_ms, queue, enqueued_ms
        )

    def _write(self, choosing: ClaimSelection, by_queue: Mapping[str, int]) -> None:
        """Lease the items, and count them for the next claim's fairness and rates."""
        passes = [
            (name, float(passed), self._tenants[name].later_rate_ms(self._now_ms, started))
            for name, (passed, started) in choosing.passes().items()
        ]
        rates = [
            (name, queue.later_rate_ms(self._now_ms, by_queue[name]))
            for name, queue in self._queues.items()
            if queue.rate is not None and name in by_queue
        ]
        told = (_json(choosing.numbers), self._unit.holder, self._until_ms, self._now_ms, choosing.virtual_time)
        self._db.run(self._sql["claim"], *told, _json(passes), _json(rates))


def _json(values: Sequence[object]) -> str:
    return msgspec.json.encode(values).decode()
