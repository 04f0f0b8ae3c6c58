"""A claim on SQLite: a handful of statements, whatever waits; which items it takes is decided by ``model.claiming``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stepwell.faults import fault
from stepwell.model.claiming import Candidate, Choosing, Contender, LaneKey, Queued, free_slots, later_rate_ms, rate_allowance
from stepwell.model.queue import Claimed, ClaimItems
from stepwell.stores.sqlite.connection import Database

__all__ = ["claim_items"]

# So many delayed items at most are made ready by one claim, so that none takes for ever; the next one goes on.
_MOST_PROMOTED = 10_000


def claim_items(db: Database, sql: Mapping[str, str], unit: ClaimItems, now_ms: int) -> list[Claimed]:
    """Take items that are ready and have capacity, fairly."""
    return _Claim(db, sql, unit, now_ms).run() if unit.limit > 0 else []


class _Tenant(msgspec.Struct, gc=False):
    workspace_id: str
    is_paused: int
    concurrency: int | None
    weight: float
    rate: float | None
    passed: float
    rate_ms: float


class _Claim:
    def __init__(self, db: Database, sql: Mapping[str, str], unit: ClaimItems, now_ms: int) -> None:
        self._db, self._sql, self._unit, self._now_ms = db, sql, unit, now_ms
        self._tenants: dict[str, _Tenant] = {}
        self._queues: dict[str, tuple[float | None, float]] = {}
        """Rate and time of the next start of each queue that was set up."""

    def _rows(self, name: str, *arguments: object) -> list[tuple[Any, ...]]:
        return self._db.rows(self._sql[name], *arguments)

    def run(self) -> list[Claimed]:
        self._db.run(self._sql["promote"], self._now_ms, _MOST_PROMOTED)
        lanes = self._lanes()
        contenders = self._contenders({key.workspace_id for key in lanes}) if lanes else []
        if not contenders:
            return []
        turn = self._rows("turn")[0][0]
        allowance = self._queue_allowance({key.queue for key in lanes})
        choosing = Choosing(turn, contenders, self._first(lanes, contenders, turn), allowance, self._more)
        choosing.take(self._unit.limit)
        taken = self._take(choosing.numbers)
        fault("queue.items_claimed")
        self._count(choosing, taken, turn)
        fault("queue.claim_counted")
        return taken

    def _lanes(self) -> dict[LaneKey, Candidate]:
        """The lanes that are asked for, with the first item of each."""
        queues, workflows = frozenset(self._unit.queues), frozenset(self._unit.workflows)
        return {
            LaneKey(workspace, queue, workflow): Candidate(rank, number)
            for workspace, queue, workflow, rank, number in self._rows("ready_lanes")
            if (not queues or queue in queues) and (not workflows or workflow in workflows)
        }

    def _contenders(self, workspaces: set[str]) -> list[Contender]:
        rows = [_Tenant(*row) for row in self._rows("tenants", _json(sorted(workspaces)))]
        self._tenants = {tenant.workspace_id: tenant for tenant in rows if not tenant.is_paused}
        capped = [tenant.workspace_id for tenant in self._tenants.values() if tenant.concurrency is not None]
        used: dict[str, int] = dict(self._rows("used_by", _json(capped))) if capped else {}
        return [
            Contender(name, tenant.weight, tenant.passed, allowance)
            for name, tenant in self._tenants.items()
            if (allowance := self._allowance(tenant.concurrency, used.get(name, 0), tenant.rate, tenant.rate_ms))
        ]

    def _allowance(self, concurrency: int | None, used: int, rate: float | None, rate_ms: float) -> int:
        return min(free_slots(concurrency, used), rate_allowance(rate, rate_ms, self._now_ms))

    def _queue_allowance(self, names: set[str]) -> dict[str, int]:
        rows = [row for row in self._rows("queue_rates") if row[0] in names]
        self._queues = {name: (rate, rate_ms) for name, _, _, rate, rate_ms in rows}
        capped = [name for name, _, concurrency, _, _ in rows if concurrency is not None]
        used: dict[str, int] = dict(self._rows("used_in", _json(capped))) if capped else {}
        return {
            name: 0 if is_paused else self._allowance(concurrency, used.get(name, 0), rate, rate_ms)
            for name, is_paused, concurrency, rate, rate_ms in rows
        }

    def _first(self, lanes: Mapping[LaneKey, Candidate], contenders: Sequence[Contender], turn: float) -> Iterable[Queued]:
        """What the claim begins with: several items of the lanes that it will probably take from, the first item of the others."""
        limit = self._unit.limit
        first = sorted(contenders, key=lambda contender: max(contender.passed, turn))[:limit]
        names, most = {contender.workspace_id for contender in first}, max(contender.allowance for contender in first)
        likely = [key for key in lanes if key.workspace_id in names]
        chunk = min(limit, most, 2 * limit // max(len(likely), 1) + 2)
        found: dict[LaneKey, list[Candidate]] = {key: [] for key in likely}
        if chunk > 1:
            for index, rank, number in self._rows("first_of_lanes", _json(likely), chunk):
                found[likely[index]].append(Candidate(rank, number))
        for key, head in lanes.items():
            candidates = found.get(key)
            yield Queued(key, candidates, len(candidates) < chunk) if candidates else Queued(key, [head], False)

    def _more(self, key: LaneKey, after: Candidate) -> Queued:
        rows = self._rows("more_of_lane", *key, after.rank, after.number, self._unit.limit)
        return Queued(key, [Candidate(*row) for row in rows], len(rows) < self._unit.limit)

    def _take(self, numbers: Sequence[int]) -> list[Claimed]:
        until = self._now_ms + round(self._unit.seconds * 1000)
        rows = self._rows("claim_items", _json(numbers), self._unit.holder, until, self._now_ms) if numbers else []
        taken = {row[0]: Claimed(*row[1:]) for row in rows}
        return [taken[number] for number in numbers]

    def _count(self, choosing: Choosing, taken: Sequence[Claimed], turn: float) -> None:
        """Note what was taken for the next claim's fairness and rates."""
        if choosing.turn != turn:
            self._db.run(self._sql["set_turn"], choosing.turn)
        counted: list[tuple[str, float, float]] = []
        for name, (passed, started) in choosing.passes().items():
            tenant = self._tenants[name]
            counted.append((name, float(passed), float(later_rate_ms(tenant.rate, tenant.rate_ms, self._now_ms, started))))
        self._db.run(self._sql["count_tenants"], _json(counted))
        for name, started in Counter(item.queue for item in taken).items():
            rate, rate_ms = self._queues.get(name, (None, 0))
            if rate is not None:
                self._db.run(self._sql["count_queue"], name, later_rate_ms(rate, rate_ms, self._now_ms, started))


def _json(values: Sequence[object]) -> str:
    return msgspec.json.encode(values).decode()
