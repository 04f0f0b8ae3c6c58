"""A claim on SQLite: a handful of statements, whatever waits; which items it takes is decided by ``model.claiming``.

Every row that a statement gives costs a turn of the interpreter, which a busy loop in this process gives back a millisecond later.
So each of them gives all that it has to say in one row, as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stepwell.errors import Corrupted
from stepwell.faults import fault
from stepwell.model.claiming import Candidate, Choosing, Contender, LaneKey, Queued, free_slots, later_rate_ms, rate_allowance
from stepwell.model.queue import Claimed, ClaimItems
from stepwell.stores.sqlite.connection import Database

__all__ = ["claim_items"]

# So many delayed items at most are made ready by one claim, so that none takes for ever; the next one goes on.
_MOST_PROMOTED = 10_000

# Inputs of more bytes are read by themselves, so that no list gets as long as 200 of the largest inputs.
_MOST_QUOTED = 4_096


def claim_items(db: Database, sql: Mapping[str, str], unit: ClaimItems, now_ms: int) -> list[Claimed]:
    """Take items that are ready and have capacity, fairly."""
    return _Claim(db, sql, unit, now_ms).run() if unit.limit > 0 else []


class _Limit(msgspec.Struct, array_like=True, gc=False):
    """What a workspace or a queue may start. Numbers that need not be whole are texts, with all of their digits."""

    name: str
    is_paused: int
    concurrency: int | None
    used: int
    """How many are active, if that is limited."""
    rate: float | None
    rate_ms: float

    def allowance(self, now_ms: int) -> int:
        """How many more it may start now."""
        return min(free_slots(self.concurrency, self.used), rate_allowance(self.rate, self.rate_ms, now_ms))


class _Tenant(_Limit):
    weight: float
    passed: float


_lanes = msgspec.json.Decoder(list[tuple[str, str, str, int, int]]).decode
_tenants = msgspec.json.Decoder(list[_Tenant], strict=False).decode
_queues = msgspec.json.Decoder(list[_Limit], strict=False).decode
_more = msgspec.json.Decoder(list[Candidate]).decode
_candidates = msgspec.json.Decoder(list[tuple[int, int, int]]).decode
_claimed = msgspec.json.Decoder(list[tuple[int, str, str, str, int, str, str | None, int, int, int, str, int]]).decode


class _Claim:
    def __init__(self, db: Database, sql: Mapping[str, str], unit: ClaimItems, now_ms: int) -> None:
        self._db, self._sql, self._unit, self._now_ms = db, sql, unit, now_ms
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
        turn, lanes = self._look()
        contenders = [
            Contender(name, tenant.weight, tenant.passed, allowance)
            for name, tenant in self._tenants.items()
            if (allowance := tenant.allowance(self._now_ms))
        ]
        if not contenders:
            return []
        allowances = {name: 0 if queue.is_paused else queue.allowance(self._now_ms) for name, queue in self._queues.items()}
        choosing = Choosing(turn, contenders, self._first(lanes, contenders, turn), allowances, self._more)
        choosing.take(self._unit.limit)
        taken = self._take(choosing.numbers)
        fault("queue.items_claimed")
        self._count(choosing, taken, turn)
        fault("queue.claim_counted")
        return taken

    def _look(self) -> tuple[float, dict[LaneKey, Candidate]]:
        """The turn, and the lanes that are asked for, each with its first item. What limits them is noted."""
        wanted = [_json(names) if names else None for names in (self._unit.queues, self._unit.workflows)]
        row = self._row("outlook", self._now_ms, *wanted)
        if row[0]:
            self._db.run(self._sql["promote"], self._now_ms, _MOST_PROMOTED)
            row = self._row("outlook", self._now_ms, *wanted)
        _, turn, lanes, tenants, queues = row
        self._tenants = {tenant.name: tenant for tenant in _tenants(tenants) if not tenant.is_paused}
        self._queues = {queue.name: queue for queue in _queues(queues)}
        return turn, {LaneKey(*key): Candidate(rank, number) for *key, rank, number in _lanes(lanes)}

    def _first(self, lanes: Mapping[LaneKey, Candidate], contenders: Sequence[Contender], turn: float) -> Iterable[Queued]:
        """What the claim begins with: several items of the lanes that it will probably take from, the first item of the others."""
        limit = self._unit.limit
        first = sorted(contenders, key=lambda contender: max(contender.passed, turn))[:limit]
        names, most = {contender.workspace_id for contender in first}, max(contender.allowance for contender in first)
        likely = [key for key in lanes if key.workspace_id in names]
        chunk = min(limit, most, 2 * limit // max(len(likely), 1) + 2)
        found: dict[LaneKey, list[Candidate]] = {key: [] for key in likely}
        if chunk > 1:
            for index, rank, number in _candidates(self._row("first_of_lanes", _json(likely), chunk)[0]):
                found[likely[index]].append(Candidate(rank, number))
        for key, head in lanes.items():
            candidates = found.get(key)
            yield Queued(key, candidates, len(candidates) < chunk) if candidates else Queued(key, [head], False)

    def _more(self, key: LaneKey, after: Candidate) -> Queued:
        rows = _more(self._row("more_of_lane", *key, after.rank, after.number, self._unit.limit)[0])
        return Queued(key, rows, len(rows) < self._unit.limit)

    def _take(self, numbers: Sequence[int]) -> list[Claimed]:
        if not numbers:
            return []
        until, those = self._now_ms + round(self._unit.seconds * 1000), _json(numbers)
        self._db.run(self._sql["claim_items"], those, self._unit.holder, until, self._now_ms)
        taken = {row[0]: row for row in _claimed(self._row("claimed_items", those, _MOST_QUOTED)[0])}
        return [self._claimed(*taken[number]) for number in numbers]

    def _claimed(self, number: int, *row: Any) -> Claimed:
        item, workspace, workflow, version, execution, text, *rest = row
        data = self._row("input_of_item", number)[0] if text is None else text.encode()
        return Claimed(item, workspace, workflow, version, execution, data, *rest)

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
            queue = self._queues.get(name)
            if queue is not None and queue.rate is not None:
                self._db.run(self._sql["count_queue"], name, later_rate_ms(queue.rate, queue.rate_ms, self._now_ms, started))


def _json(values: Sequence[object]) -> str:
    return msgspec.json.encode(values).decode()
