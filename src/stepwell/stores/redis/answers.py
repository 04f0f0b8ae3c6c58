"""From the reply of a script to the outcome of its unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.errors import Conflict, Corrupted, LeaseLost, StepwellError
from stepwell.model.commit import (
    Acquire,
    Archiving,
    Claim,
    ClaimDue,
    Commit,
    Extension,
    Lease,
    Outcome,
    Release,
    Renew,
    Seen,
    StateBatch,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.refusals import guard_lost, id_taken, leased, lock_held, lock_lost, no_execution, no_revision
from stepwell.stores.redis.calls import ScriptCall
from stepwell.stores.redis.link import Reply
from stepwell.stores.redis.queue_answers import queue_refusal, queue_written
from stepwell.stores.redis.queue_calls import QUEUE_UNITS
from stepwell.stores.redis.rows import read_found_commit

__all__ = ["lost_store", "outcome_of"]

_WRITTEN = Written()


def outcome_of(unit: Unit, call: ScriptCall, reply: Reply) -> Outcome | None:
    """What a script's reply means for its unit; None if it has to be worked out again on newer state."""
    word, rest = _split(reply)
    match word:
        case b"ok":
            return _written(unit, call, rest)
        case b"stale" | b"behind":
            return None
        case b"seen" if isinstance(unit, Commit):
            row = read_found_commit(unit.execution_id, unit.revision, rest[0])
            return Seen(row.header, row.body)
        case b"conflict" if isinstance(unit, Commit):
            return _conflict(unit, rest[0])
        case b"guard" if isinstance(unit, Commit | StateBatch):
            return guard_lost(unit.guards[int(rest[0]) - 1])
        case b"fence" if isinstance(unit, Commit | Extension | Release | Renew | Unlock):
            return _fenced(unit)
        case b"held" if isinstance(unit, Acquire):
            return lock_held(unit.name, rest[0])
        case b"held" if isinstance(unit, Claim):
            return leased(unit.execution_id, rest[0])
        case _:
            return queue_refusal(word, rest, unit) or _refusal(word, unit)


def _split(reply: Reply) -> tuple[object, Sequence[Any]]:
    return (reply, ()) if isinstance(reply, bytes) else (reply[0], reply[1:])


def _written(unit: Unit, call: ScriptCall, rest: Sequence[Any]) -> Written:
    match unit:
        case Claim():
            return Written([Lease(unit.execution_id, unit.holder, rest[0], rest[1])])
        case ClaimDue():
            pairs = zip(rest[1::2], rest[2::2], strict=True)
            return Written([Lease(name.decode(), unit.holder, fence, rest[0]) for name, fence in pairs])
        case Acquire():
            return Written([Lease(unit.name, unit.holder, rest[0], rest[1])])
        case Extension():
            return Written([Lease(unit.execution_id, unit.holder, unit.fence, rest[0])])
        case Renew():
            return Written([Lease(unit.name, unit.holder, unit.fence, rest[0])])
        case _ if type(unit) in QUEUE_UNITS:
            return queue_written(unit, rest)
        case _:
            return Written(call.answers) if call.answers else _WRITTEN


def _conflict(unit: Commit, actual: int) -> Conflict:
    expected = unit.revision - 1
    if actual < expected:
        return Conflict(
            f"execution {unit.execution_id!r} is at revision {actual} and this commit follows {expected}: the server has lost the "
            "commits between; load the execution and decide again",
            expected=expected,
            actual=actual,
        )
    return Conflict(expected=expected, actual=actual)


def _fenced(unit: Commit | Extension | Release | Renew | Unlock) -> LeaseLost:
    if isinstance(unit, Renew | Unlock):
        return lock_lost(unit)
    return LeaseLost(fence=unit.fence)


def _refusal(word: object, unit: Any) -> StepwellError:
    match word:
        case b"missing" if isinstance(unit, Archiving):
            return no_revision(unit)
        case b"missing":
            return no_execution(unit.execution_id)
        case b"exists":
            return id_taken(unit.execution_id)
        case b"torn":
            return Corrupted(f"execution {unit.execution_id!r} is quarantined: the server lost a part of it; nothing was written")
        case b"lost":
            return lost_store()
        case _:
            return Corrupted(f"a script gave an answer that it never gives: {word!r}")


def lost_store() -> Corrupted:
    """The error for a server that no longer has the store that was opened."""
    return Corrupted(
        "the Redis server no longer has the data that this process worked with: it was flushed, restarted without persistence or "
        "replaced; nothing was written. Restore it, or open the store again to go on with what is there"
    )
