"""The short path of locks: a unit about one lock, alone in its group, is one statement and one round trip."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.errors import StepwellError
from stepwell.model.commit import Acquire, Lease, Outcome, Renew, Unit, Unlock, Written
from stepwell.model.refusals import lock_held, lock_lost
from stepwell.stores.postgres.deciding import misfit
from stepwell.stores.postgres.link import PostgresConnection
from stepwell.stores.postgres.statements import address, fences_of, turn

__all__ = ["is_one_lock", "why_held", "write_lock"]


def is_one_lock(units: Sequence[Unit]) -> bool:
    """Whether the group is about one lock and nothing else."""
    return len(units) == 1 and isinstance(units[0], Acquire | Renew | Unlock) and misfit(units[0]) is None


def write_lock(
    link: PostgresConnection, unit: Acquire | Renew | Unlock, schema: str, ahead_ms: int, channel: str
) -> Outcome | None:
    """Grant, prolong or give back a lock; None if it is held by another, who is asked for afterwards."""
    where = address(unit.name)
    match unit:
        case Acquire():
            length, number = _milliseconds(unit.seconds), turn(schema, unit.name)
            rows = link.ask("acquire_one", number, where, unit.name, unit.holder, length, ahead_ms, fences_of(schema))
            return Written([Lease(unit.name, unit.holder, *rows[0])]) if rows else None
        case Renew():
            rows = link.ask("renew_one", where, unit.holder, unit.fence, _milliseconds(unit.seconds), ahead_ms)
            return Written([Lease(unit.name, unit.holder, *rows[0])]) if rows else lock_lost(unit)
        case Unlock():
            least = _milliseconds(unit.at_least_seconds)
            rows = link.ask("unlock_one", where, unit.holder, unit.fence, least, ahead_ms, channel)
            return Written() if rows else lock_lost(unit)


def why_held(link: PostgresConnection, unit: Acquire) -> StepwellError:
    """Who holds a lock is nobody's business, but until when is."""
    rows = link.ask("lock_row", address(unit.name))
    return lock_held(unit.name, rows[0][0] if rows else None)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
