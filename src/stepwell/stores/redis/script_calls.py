"""Build the script call of a unit, and read the unit's outcome from the script's reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stepwell.errors import Conflict, Corrupted, InvalidInput, LeaseLost, StepwellError
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
from stepwell.model.ids import revision_in
from stepwell.model.queue_lifecycle import storable
from stepwell.model.refusals import (
    changed_since_decision,
    guard_lost,
    id_taken,
    leased,
    lock_held,
    lock_lost,
    no_execution,
    no_revision,
)
from stepwell.stores.redis.connection import Command, Reply
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.queue_calls import QUEUE_UNITS, QueueCalls, queue_refusal, queue_written
from stepwell.stores.redis.rows import (
    commit_beginning,
    pack,
    pack_commit,
    pack_mark,
    pack_snapshot,
    read_found_commit,
    request,
    text,
)
from stepwell.stores.redis.scripts import SCRIPTS
from stepwell.stores.redis.state_plan import ScopeWrite

__all__ = [
    "ScriptCall",
    "ScriptCaller",
    "lost_store",
    "outcome_of",
]


_WRITTEN = Written()


def outcome_of(unit: Unit, call: ScriptCall, reply: Reply) -> Outcome | None:
    """Return what a script's reply means for its unit; None if the unit has to be planned again on newer state."""
    word, rest = _split(reply)
    match word:
        case b"ok":
            return _written(unit, call, rest)
        case b"stale" | b"behind":
            return None
        case b"checked":
            return call.refusal
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
    # A server with asynchronous persistence can come back with an older state than it has acknowledged.
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
        case b"newer":
            return changed_since_decision(unit.execution_id)
        case b"torn":
            return Corrupted(f"execution {unit.execution_id!r} is quarantined: the server lost a part of it; nothing was written")
        case b"lost":
            return lost_store()
        case _:
            return Corrupted(f"a script replied a word that it does not have: {word!r}")


def lost_store() -> Corrupted:
    """Return the error for a server that no longer has the store that was opened."""
    return Corrupted(
        "the Redis server no longer has the data that this process worked with: it was flushed, restarted without persistence or "
        "replaced; nothing was written. Restore it, or open the store again to go on with what is there"
    )


# The time that a lock's row outlives its end: while it is there, its fence tells a late holder that the lock was lost.
_LOCK_GRACE_MS = 3_600_000
_LONGEST_SECONDS = 3_153_600_000.0

Argument = bytes | str | int


class ScriptCall:
    """A script with its keys and arguments."""

    __slots__ = ("answers", "arguments", "is_conditional", "is_planned", "keys", "refusal", "script")

    def __init__(self, script: str, keys: Sequence[bytes], arguments: Sequence[Argument]) -> None:
        self.script, self.keys, self.arguments = script, keys, arguments
        self.answers: Sequence[object] = ()
        self.is_planned = False
        """Whether it was planned on scoped state as it was read before."""
        self.refusal: StepwellError | None = None
        """Why its scoped state is refused; the script then only checks whether something else stops the unit first."""
        self.is_conditional = False
        """Whether the refusal builds on units before it in the group."""

    def command(self, group: str = "", stop: bytes = b"") -> Command:
        """Return the command to send; with the name of its group if an earlier unit may stop it (``includes/group_order.lua``)."""
        # Units that build on each other are sent in one pipeline: once one is stale, those after it must not land.
        keys = (*self.keys, stop) if group else self.keys
        return ("EVALSHA", SCRIPTS[self.script].sha, len(keys), *keys, *self.arguments, group)

    def shares(self, reply: Reply) -> list[Reply]:
        """Return the reply of each unit that the call is for."""
        return [reply]


class ScriptCaller:
    """Build the script calls of one store."""

    def __init__(self, keys: Keys, *, store_id: bytes, ttl_ms: int, ahead_ms: Callable[[], int]) -> None:
        self._keys, self._id, self._ttl_ms, self._ahead_ms = keys, store_id, ttl_ms, ahead_ms
        self._queue = QueueCalls(keys, store_id=store_id, ttl_ms=ttl_ms, ahead_ms=ahead_ms)

    def of(
        self, unit: Unit, writes: Sequence[ScopeWrite] = (), now_ms: int = 0, *, is_check: bool = False
    ) -> ScriptCall | StepwellError:
        """Return the call of a unit with its writes to scoped state, or the refusal of a unit that cannot be written.

        With ``is_check`` the script only finds out whether anything else than its scoped state stops the unit.
        """
        try:
            match unit:
                case Commit():
                    return self.commit(unit, writes, now_ms, is_check=is_check)
                case StateBatch():
                    return self.state(unit, writes, now_ms, is_check=is_check)
                case _ if type(unit) in QUEUE_UNITS:
                    return ScriptCall(*self._queue.of(unit))
                case _:
                    return _BUILDERS[type(unit)](self, unit)
        except InvalidInput as refusal:
            return refusal

    def commit(self, unit: Commit, writes: Sequence[ScopeWrite], now_ms: int, *, is_check: bool) -> ScriptCall:
        keys, names = self._keys, self._keys.execution(unit.execution_id)
        packed: dict[str, object] = {
            "execution": unit.execution_id,
            "keys": [text(name) for name in names],
            "id": unit.commit_id,
            "beginning": text(commit_beginning(unit.commit_id)),
            "revision": unit.revision,
            "previous": unit.previous,
            "digest": unit.digest,
            "row": text(pack_commit(unit.commit_id, unit.header, unit.body)),
            "time": unit.committed_ms,
            "signature": text(unit.signature or b""),
            "items": [request(new) for new in unit.items],
            **self._effects(unit, writes, now_ms, is_check=is_check),
        }
        optional = (
            ("said", revision_in(unit.commit_id)),
            ("status", unit.status),
            ("fence", unit.fence),
            ("version", unit.version),
        )
        packed.update((name, value) for name, value in optional if value is not None)
        if unit.rest is not None:
            packed["rest"] = {"is_final": unit.rest.is_final, "wake": unit.rest.wake_ms}
        if unit.mark is not None:
            packed["mark"] = pack_mark(unit.mark, storable(unit.mark.error))
        if unit.snapshot is not None:
            packed["snapshot"], packed["snapshot_revision"] = text(pack_snapshot(unit.snapshot)), unit.snapshot.revision
        if unit.creation is not None:
            packed["status"] = unit.status or "PENDING"
            packed["creation"] = _packed_creation(unit.workspace_id, unit.creation)
        central = (keys.store, keys.executions, keys.due, keys.queue, keys.scopes, keys.ends, keys.tombs, keys.counts)
        channels = (keys.due_channel, keys.state_channel, keys.queue_channel)
        return ScriptCall("commit", central, (self._id, self._ahead_ms(), self._ttl_ms, *channels, pack(packed)))

    def _effects(
        self, unit: Commit | StateBatch, writes: Sequence[ScopeWrite], now_ms: int, *, is_check: bool
    ) -> dict[str, object]:
        """Return the fields that commits and batches share."""
        keys = self._keys
        return {
            "guards": [(text(keys.lock(guard.name)), guard.fence) for guard in unit.guards],
            "nudges": [(execution_id, text(keys.execution(execution_id).head)) for execution_id in unit.nudges],
            "scopes": [write.packed(now_ms) for write in writes],
            **({"is_check": True} if is_check else {}),
        }

    def adopt(self, unit: Adoption) -> ScriptCall:
        keys, made = self._keys, unit.creation
        names = (*keys.execution(unit.execution_id), keys.store, keys.executions)
        arguments = (
            *(self._id, unit.execution_id, unit.snapshot.revision, unit.digest, pack_snapshot(unit.snapshot), unit.adopted_ms),
            *(unit.status, unit.signature or b"", self._ttl_ms),
            *(unit.workspace_id, made.workflow_id, made.version, made.parent_id or ""),
        )
        return ScriptCall("adopt", names, arguments)

    def archive(self, unit: Archiving) -> ScriptCall:
        names = (*self._keys.execution(unit.execution_id), self._keys.store)
        return ScriptCall("archive", names, (self._id, unit.snapshot.revision, pack_snapshot(unit.snapshot), self._ttl_ms))

    def delete(self, unit: Deletion) -> ScriptCall:
        keys = self._keys
        names = (*keys.execution(unit.execution_id), keys.store, keys.executions, keys.due, keys.queue)
        told = (self._id, unit.execution_id, self._ahead_ms(), self._ttl_ms, keys.queue_channel)
        return ScriptCall("delete", names, (*told, unit.head or ""))

    def state(self, unit: StateBatch, writes: Sequence[ScopeWrite], now_ms: int, *, is_check: bool) -> ScriptCall:
        keys = self._keys
        central = (keys.store, keys.due, keys.scopes, keys.ends, keys.tombs, keys.counts)
        packed = pack(self._effects(unit, writes, now_ms, is_check=is_check))
        return ScriptCall("write_state", central, (self._id, self._ahead_ms(), keys.due_channel, keys.state_channel, packed))

    def claim(self, unit: Claim) -> ScriptCall:
        names = (*self._keys.execution(unit.execution_id), self._keys.store, self._keys.due)
        arguments = (self._id, unit.execution_id, unit.holder, _ms(unit.seconds), self._ahead_ms(), self._ttl_ms)
        return ScriptCall("claim", names, arguments)

    def take(self, unit: ClaimDue) -> ScriptCall:
        names = (self._keys.store, self._keys.due)
        arguments = (
            *(self._id, self._keys.prefix, unit.holder, _ms(unit.seconds), self._ahead_ms(), self._ttl_ms, unit.limit),
            *(len(unit.workflows), *unit.workflows, *unit.newest().values()),
        )
        return ScriptCall("claim_due", names, arguments)

    def extend(self, unit: Extension) -> ScriptCall:
        names = (*self._keys.execution(unit.execution_id), self._keys.store, self._keys.due)
        arguments = (self._id, unit.execution_id, unit.holder, unit.fence, _ms(unit.seconds), self._ahead_ms(), self._ttl_ms)
        return ScriptCall("extend", names, arguments)

    def release(self, unit: Release) -> ScriptCall:
        keys = self._keys
        names = (keys.execution(unit.execution_id).head, keys.store, keys.due)
        arguments = (self._id, unit.execution_id, unit.holder, unit.fence, self._ahead_ms(), keys.due_channel)
        return ScriptCall("release", names, arguments)

    def acquire(self, unit: Acquire) -> ScriptCall:
        names = (self._keys.lock(unit.name), self._keys.fence, self._keys.locks)
        return ScriptCall("acquire", names, (unit.holder, _ms(unit.seconds), self._ahead_ms(), _LOCK_GRACE_MS, unit.name))

    def renew(self, unit: Renew) -> ScriptCall:
        names = (self._keys.lock(unit.name), self._keys.locks)
        return ScriptCall("renew", names, (unit.holder, unit.fence, _ms(unit.seconds), self._ahead_ms(), _LOCK_GRACE_MS, unit.name))

    def unlock(self, unit: Unlock) -> ScriptCall:
        names = (self._keys.lock(unit.name), self._keys.locks)
        least = _ms(unit.at_least_seconds) if unit.at_least_seconds else 0
        return ScriptCall("unlock", names, (unit.holder, unit.fence, least, self._ahead_ms(), self._keys.lock_channel, unit.name))


_BUILDERS: dict[type, Callable[[ScriptCaller, Any], ScriptCall]] = {
    Claim: ScriptCaller.claim,
    ClaimDue: ScriptCaller.take,
    Extension: ScriptCaller.extend,
    Release: ScriptCaller.release,
    Acquire: ScriptCaller.acquire,
    Renew: ScriptCaller.renew,
    Unlock: ScriptCaller.unlock,
    Deletion: ScriptCaller.delete,
    Archiving: ScriptCaller.archive,
    Adoption: ScriptCaller.adopt,
}


def _packed_creation(workspace_id: str, creation: Creation) -> dict[str, object]:
    packed: dict[str, object] = {
        "workspace": workspace_id,
        "workflow": creation.workflow_id,
        "version": creation.version,
        "parent": creation.parent_id or "",
        "is_runnable": creation.is_runnable,
    }
    if creation.holder:
        packed |= {"holder": creation.holder, "lease": _ms(creation.lease_seconds), "fence": creation.fence}
    return packed


def _ms(seconds: float) -> int:
    """Return a span in whole milliseconds; raise ``InvalidInput`` for one that Redis takes for "at once" or cannot hold."""
    if not 0.001 <= seconds <= _LONGEST_SECONDS:
        raise InvalidInput(f"a lease is held for a number of seconds from 0.001 to 100 years, not {seconds!r}")
    return round(seconds * 1000)
