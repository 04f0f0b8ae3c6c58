"""Locks that a client elsewhere holds, such as one of the HTTP API: by a holder and a fence, and renewed by the client itself."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

from stepwell.clock import from_ms
from stepwell.duration import Span, held_seconds
from stepwell.model.commit import Acquire, Lease, Renew, Unlock, Written
from stepwell.model.ids import NewId, check_key
from stepwell.model.lock import user_lock
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.pipeline.operations import Operation, write_or_raise

__all__ = ["RemoteHold", "RemoteLocks"]


class RemoteHold(PlainRecord, frozen=True, kw_only=True):
    """A hold on a lock: what its holder needs to renew and release it."""

    name: str
    holder: str
    """Unique to this acquisition; it is the secret of the holder."""
    fence: int
    """Higher than that of every earlier holder."""
    expires_at: datetime


class RemoteLocks:
    """Operations on locks by their holder's name and fence."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id

    def acquire(self, name: str, workspace: str, seconds: Span, holder: str | None) -> Operation[RemoteHold]:
        """Acquire a lock. Raise ``LockHeld`` at once if another holder has it; the same holder keeps its fence."""
        who = self._new_id() if holder is None else check_key(holder, "a holder")
        unit = Acquire(_lock(name, workspace), who, held_seconds(seconds, "seconds"))
        outcome = yield from write_or_raise(unit)
        return _hold(name, outcome)

    def renew(self, name: str, workspace: str, seconds: Span, holder: str, fence: int) -> Operation[RemoteHold]:
        """Hold a lock for longer, counted from now. Raise ``LeaseLost`` if it is not held any more."""
        unit = Renew(_lock(name, workspace), check_key(holder, "a holder"), fence, held_seconds(seconds, "seconds"))
        outcome = yield from write_or_raise(unit)
        return _hold(name, outcome)

    def release(self, name: str, workspace: str, holder: str, fence: int) -> Operation[None]:
        """Release a lock. Raise ``LeaseLost`` if it is not held any more."""
        yield from write_or_raise(Unlock(_lock(name, workspace), check_key(holder, "a holder"), fence))


def _lock(name: str, workspace: str) -> str:
    """Return the name of a lock of a workspace; one of ``default`` is that of ``well.lock``."""
    if workspace == DEFAULT_WORKSPACE:
        return user_lock(name)
    parts = check_key(workspace, "a workspace id"), check_key(name, "a lock name")
    return "workspace/" + "/".join(quote(part, safe="") for part in parts)


def _hold(name: str, outcome: object) -> RemoteHold:
    lease = outcome.answers[0] if isinstance(outcome, Written) else None
    assert isinstance(lease, Lease)  # noqa: S101 - what the unit's class promises
    return RemoteHold(name=name, holder=lease.holder, fence=lease.fence, expires_at=from_ms(lease.until_ms))
