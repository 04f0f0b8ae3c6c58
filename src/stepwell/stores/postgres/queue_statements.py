"""Units of the queue that are one statement each: enqueue, claim, recover, and settings of tiers, workspaces and queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from stepwell.errors import NotFound, StepwellError
from stepwell.model.commit import Outcome, Written
from stepwell.model.queue_item import (
    Claimed,
    ClaimItems,
    DropItems,
    Enqueue,
    Enqueued,
    NewItem,
    PutQueue,
    PutTier,
    PutWorkspace,
    RecoverItems,
    Tier,
)
from stepwell.model.queue_lifecycle import EXPIRED, full, is_plain, unknown_workspace
from stepwell.model.refusals import asked_otherwise, changed_since_read
from stepwell.stores.postgres.connection import StatementCall
from stepwell.stores.postgres.statements import Row, blobs, integers, texts
from stepwell.stores.queue_rows import encode_overrides, encode_quotas, quotas_of

__all__ = [
    "DIRECT",
    "Direct",
    "claim_call",
    "claimed",
    "enqueue_call",
    "enqueued",
    "recover_call",
    "recovered",
    "write_direct",
]

Direct = ClaimItems | RecoverItems | DropItems | PutTier | PutWorkspace | PutQueue

DIRECT = (ClaimItems, RecoverItems, DropItems, PutTier, PutWorkspace, PutQueue)
"""The general path writes these by their statements, and all other units on rows that it has locked."""


Run = Callable[..., list[Row]]
"""Runs a statement, given its name and arguments, and returns its rows."""


def write_direct(run: Run, unit: Direct, ahead_ms: int, channel: str) -> Outcome:
    """Write one unit by its statement."""
    match unit:
        case ClaimItems():
            name, arguments = claim_call(unit, ahead_ms)
            return claimed(run(name, *arguments))
        case RecoverItems():
            name, arguments = recover_call(unit, ahead_ms, channel)
            return recovered(run(name, *arguments))
        case DropItems():
            span, names = round(unit.seconds * 1000), (texts(unit.workspaces), texts(unit.statuses))
            return Written([len(run("drop_items", *names, span, unit.limit, ahead_ms))])
        case PutTier():
            tier = unit.tier
            numbers = _text(tier.rate_per_second), tier.queue_depth, tier.state_bytes, _text(tier.retention_seconds)
            limits = tier.concurrency, _text(tier.weight), *numbers
            is_put = run(
                "put_tier",
                tier.name,
                *limits,
                channel,
                ahead_ms,
                _tier_before(unit.based_on),
                tier.child_concurrency,
                encode_quotas(tier),
            )
            return Written() if is_put else changed_since_read(unit)
        case PutWorkspace():
            wanted = unit.workspace
            settings = wanted.tier, wanted.is_paused, ahead_ms, channel, _based_on(unit.based_on), encode_overrides(wanted)
            if run("put_workspace", wanted.workspace_id, *settings):
                return Written()
            names = [row[0] for row in run("tiers")]
            if wanted.tier in names:
                return changed_since_read(unit)
            return NotFound(f"there is no tier {wanted.tier!r}; there are {', '.join(names)}")
        case PutQueue():
            queue = unit.settings
            rate = _text(queue.rate_per_second)
            limits = queue.is_paused, queue.concurrency, rate
            is_put = run("put_queue", queue.name, *limits, channel, ahead_ms, _based_on(unit.based_on))
            return Written() if is_put else changed_since_read(unit)


def _tier_before(tier: Tier | msgspec.UnsetType | None) -> str | None:
    """Return the tier that a change is based on, as its statement compares it: the columns after the name, as JSON."""
    if not isinstance(tier, Tier):
        return _based_on(tier)
    numbers = tier.rate_per_second, tier.queue_depth, tier.state_bytes, tier.retention_seconds, tier.child_concurrency
    return msgspec.json.encode((tier.concurrency, tier.weight, *numbers, quotas_of(tier))).decode()


def _based_on(row: msgspec.Struct | msgspec.UnsetType | None) -> str | None:
    """Return the row that a change is based on, as its statement compares it: the columns after the name, as JSON."""
    if isinstance(row, msgspec.UnsetType):
        return None
    return msgspec.json.encode(None if row is None else msgspec.structs.astuple(row)[1:]).decode()


def claim_call(unit: ClaimItems, ahead_ms: int) -> StatementCall:
    """Return the statement that claims items."""
    lanes = texts(unit.queues), texts(unit.workflows)
    return "claim_items", [unit.holder, round(unit.seconds * 1000), unit.limit, *lanes, ahead_ms]


def claimed(rows: Sequence[Row]) -> Written:
    """Return the items that were claimed."""
    return Written([Claimed(*row) for row in rows])


def recover_call(unit: RecoverItems, ahead_ms: int, channel: str) -> StatementCall:
    """Return the statement that returns items whose claims have expired."""
    return "recover_items", [unit.limit, EXPIRED, ahead_ms, channel]


def recovered(rows: Sequence[Row]) -> Written:
    """Return the ids of the returned items."""
    return Written([row[0] for row in rows])


def _text(number: float | None) -> str | None:
    """Return a number as text that the server reads without rounding."""
    return None if number is None else repr(float(number))


def enqueue_call(units: Sequence[Enqueue], ahead_ms: int, channel: str) -> StatementCall:
    """Return the statement that adds the items of all units."""
    items = [new for unit in units for new in unit.items]
    return "enqueue", [
        texts([new.item_id for new in items]),
        texts([new.workspace_id for new in items]),
        texts([new.workflow_id for new in items]),
        integers([new.version for new in items]),
        texts([new.execution_id for new in items]),
        blobs([new.input for new in items]),
        texts([new.queue for new in items]),
        integers([new.priority for new in items]),
        integers([new.delay_ms for new in items]),
        integers([new.run_at_ms for new in items]),
        texts([new.key for new in items]),
        texts([new.body_digest for new in items]),
        texts([new.singleton for new in items]),
        texts([new.debounce for new in items]),
        integers([new.max_attempts for new in items]),
        all(map(is_plain, items)),
        ahead_ms,
        channel,
    ]


def enqueued(units: Sequence[Enqueue], rows: Sequence[Row]) -> list[Outcome]:
    """Return the outcome of each unit."""
    answers = iter(_answers([new for unit in units for new in unit.items], rows))
    return [Written(list(islice(answers, len(unit.items)))) for unit in units]


def _answers(items: Sequence[NewItem], rows: Sequence[Row]) -> list[Enqueued | StepwellError]:
    """Return the answer to each request. No rows mean that every item is new."""
    if not rows:
        return [Enqueued(new.item_id, new.execution_id, "QUEUED", True) for new in items]
    return [_answer(new, row) for new, row in zip(items, sorted(rows), strict=True)]


def _answer(new: NewItem, row: Row) -> Enqueued | StepwellError:
    _, item_id, execution_id, status, is_new, refusal = row
    match refusal:
        case None:
            return Enqueued(item_id, execution_id, status, is_new)
        case "workspace":
            return unknown_workspace(new.workspace_id)
        case "full":
            return full(new.workspace_id)
        case _:
            return asked_otherwise(item_id)
