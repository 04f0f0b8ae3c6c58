"""Locks: a name that one holder has at a time, across threads, processes and machines that share a store.

A lock is a lease: it expires when its holder dies. While it is held, a thread renews it. If a holder is stopped for longer than its
lease (a long pause, a lost network), another holder can get the lock. So its writes must carry the lock's fence
(``transaction(..., lock=held)``), which the store compares in the same transaction. The lock is for efficiency, the fence is for
safety.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from math import inf
from time import monotonic

import msgspec

from stepwell.duration import Span, held_seconds, waited_seconds
from stepwell.errors import CommitUnknown, InvalidInput, LeaseLost, LockHeld, StepwellError, StoreUnavailable
from stepwell.model.commit import Acquire, Lease, LockGuard, Outcome, Renew, Unlock, Written
from stepwell.model.ids import NewId
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.notifications import LOCK, Notifications
from stepwell.pipeline.operations import Operation, wait, write

__all__ = [
    "HeldLock",
    "LockHandle",
    "LockOperations",
    "LockRenewal",
    "LockRequest",
    "guards_of",
    "lock_request",
    "schedule_request",
]

log = logging.getLogger(__name__)

_RENEWALS_PER_LEASE = 3
_LAST_SECONDS = 5.0  # how long close waits for a renewal under way; a dead server must not hold up the process


class HeldLock:
    """The hold on a lock that was acquired. Its ``fence`` is higher than that of every earlier holder.

    Pass it to ``transaction(..., lock=held)`` or ``conversations.set(..., lock=held)``: such a write lands only while it is
    held.
    """

    def __init__(self, label: str, lease: Lease, seconds: float, kind: str = "lock") -> None:
        self.label, self.seconds, self.kind = label, seconds, kind
        self._lease = lease
        self._is_lost = False

    def __repr__(self) -> str:
        return f"<HeldLock {self.label!r} fence={self.fence}{' lost' * self._is_lost}>"

    @property
    def name(self) -> str:
        """Return the lock's name in the store."""
        return self._lease.name

    @property
    def holder(self) -> str:
        """Return the id of this acquisition."""
        return self._lease.holder

    @property
    def fence(self) -> int:
        """Return the fencing token: pass it to each system that you write to while you hold the lock."""
        return self._lease.fence

    @property
    def guard(self) -> LockGuard:
        """Return what a commit carries to prove the hold."""
        return LockGuard(self.name, self.fence)

    @property
    def is_lost(self) -> bool:
        """Return whether this process knows that the hold has ended: it expired, or another holder has the lock."""
        return self._is_lost

    def check(self) -> None:
        """Raise ``LeaseLost`` if this process knows that the hold has ended."""
        if self._is_lost:
            raise LeaseLost(f"{self.kind} {self.label!r} expired before it was given back", fence=self.fence)

    def lose(self) -> None:
        """Mark the hold as ended."""
        self._is_lost = True


def guards_of(lock: HeldLock | None) -> tuple[LockGuard, ...]:
    """Return what a write carries that may land only while a lock is held. Raise ``InvalidInput`` for no ``HeldLock``."""
    if lock is None:
        return ()
    if not isinstance(lock, HeldLock):
        raise InvalidInput(f"lock is what acquiring one gave, as in `with well.lock(...) as held`, not {lock!r}")
    return (lock.guard,)


class LockRenewal:
    """Renew the locks that this process holds, well before they expire, in one thread."""

    def __init__(self, group: GroupCommit) -> None:
        self._group = group
        self._lock = threading.Lock()  # not the Condition's own: an interrupt while entering a Condition would leave it locked
        self._sooner = threading.Condition(self._lock)
        self._due: dict[HeldLock, float] = {}
        self._failing: set[HeldLock] = set()
        """Locks whose last renewal failed, which was logged."""
        self._wakes_at = inf
        self._thread: threading.Thread | None = None

    @property
    def count(self) -> int:
        """The number of locks that are renewed."""
        return len(self._due)

    def add(self, held: HeldLock) -> None:
        """Renew a lock from now on."""
        with self._lock:
            due = self._due[held] = monotonic() + held.seconds / _RENEWALS_PER_LEASE
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stepwell-lock-renewal", daemon=True)
                self._thread.start()
            elif due < self._wakes_at:
                self._sooner.notify()

    def remove(self, held: HeldLock) -> None:
        """Stop renewing a lock."""
        with self._lock:
            # Without waking the thread: most locks are released long before it next looks.
            self._due.pop(held, None)

    def close(self) -> None:
        """Stop renewing all locks: those still held expire."""
        with self._lock:
            self._due.clear()
            self._sooner.notify()
            thread = self._thread
        if thread is not None:
            thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    # No lock is held: the thread ends, and the next lock starts another.
                    self._thread = None
                    return
                held, due = min(self._due.items(), key=lambda item: item[1])
                left = due - monotonic()
                if left > 0:
                    self._wakes_at = due
                    self._sooner.wait(left)
                    continue
            self._renew(held)

    def _renew(self, held: HeldLock) -> None:
        try:
            outcome = self._group.write(Renew(held.name, held.holder, held.fence, held.seconds))
        except Exception as error:  # noqa: BLE001 - one failed renewal must not end those of all other locks
            # The store is unavailable. The lease may still hold, so the renewal is tried again soon.
            if held not in self._failing:
                log.warning("%s %r could not be renewed, which is tried again: %s", held.kind, held.label, error)
                self._failing.add(held)
            outcome, again = None, held.seconds / (4 * _RENEWALS_PER_LEASE)
        else:
            self._failing.discard(held)
            again = held.seconds / _RENEWALS_PER_LEASE
        with self._lock:
            if held not in self._due:
                self._failing.discard(held)
                return
            if isinstance(outcome, LeaseLost):
                del self._due[held]
                held.lose()
                log.warning("%s %r was lost while it was held; what is written under it is refused", held.kind, held.label)
            else:
                self._due[held] = monotonic() + again


class LockOperations:
    """Acquire and release locks."""

    def __init__(self, notifications: Notifications, renewal: LockRenewal, new_id: NewId) -> None:
        self._notifications, self._renewal, self._new_id = notifications, renewal, new_id

    def acquire(self, request: LockRequest) -> Operation[HeldLock]:
        """Acquire a lock now or within the timeout. Raise ``LockHeld`` if another holder has it all that time."""
        unit = Acquire(request.name, self._new_id(), request.seconds)
        outcome = yield from self._ask(unit)
        if isinstance(outcome, LockHeld) and request.timeout > 0:
            outcome = yield from self._wait_for(unit, request.timeout)
        if isinstance(outcome, LockHeld):
            waited = f"was held by another for {request.timeout:g} s" if request.timeout else "is held by another"
            advice = "try again later" if request.timeout else request.advice
            raise LockHeld(f"{request.kind} {request.label!r} {waited}; {advice}", until_ms=outcome.until_ms)
        held = HeldLock(request.label, _lease_in(outcome), request.seconds, request.kind)
        if request.renew:
            self._renewal.add(held)
        return held

    def _wait_for(self, unit: Acquire, timeout: float) -> Operation[Outcome]:
        ends = monotonic() + timeout
        with self._notifications.listen(LOCK) as listening:
            while True:
                outcome = yield from self._ask(unit)
                left = ends - monotonic()
                if not isinstance(outcome, LockHeld) or left <= 0:
                    return outcome
                yield from wait(listening, left)

    def _ask(self, unit: Acquire) -> Operation[Outcome]:
        """Write a request for a lock. A lock that was granted to a cancelled caller is released again."""
        try:
            return (yield from write(unit))
        except CommitUnknown:
            # It may have been granted. The store recognises the holder, so a second request gives the answer.
            return (yield from write(unit))
        except asyncio.CancelledError:
            # The lock may be granted to a caller that is gone: release it, or it is taken until it expires.
            outcome = yield from write(unit)
            if isinstance(outcome, Written):
                lease = _lease_in(outcome)
                yield from write(Unlock(lease.name, lease.holder, lease.fence))
            raise

    def release(self, held: HeldLock, at_least_seconds: float = 0) -> Operation[bool]:
        """Release a lock; return whether it was still held. A lock that was lost stays with its present holder."""
        self._renewal.remove(held)
        outcome = yield from write(Unlock(held.name, held.holder, held.fence, at_least_seconds))
        if isinstance(outcome, LeaseLost):
            held.lose()
            log.warning("%s %r had expired before it was given back; another holder may have had it", held.kind, held.label)
            return False
        if isinstance(outcome, StepwellError):
            raise outcome
        return True


def _lease_in(outcome: Outcome) -> Lease:
    """Return the lease that a write granted. Raise its refusal."""
    if isinstance(outcome, StepwellError):
        raise outcome
    match outcome:
        case Written(answers=[Lease() as lease]):
            return lease
        case _:
            raise TypeError(f"a store answered {outcome!r} to a request for a lock")


class LockRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a lock: its name, the length of its lease, and how long to wait for it."""

    name: str
    label: str
    seconds: float
    timeout: float
    kind: str = "lock"
    """The kind of thing that the label names: a lock, a conversation or a job."""
    advice: str = "try again later, or give a timeout to wait for it"
    renew: bool = True
    at_least_seconds: float = 0


def lock_request(name: str, label: str, seconds: Span, timeout: Span | None, kind: str = "lock") -> LockRequest:
    """Return the request for a lock that is renewed while it is held; ``timeout`` 0 fails at once, None waits without a limit."""
    waits = waited_seconds(timeout, "timeout")
    return LockRequest(name=name, label=label, seconds=held_seconds(seconds, "seconds"), timeout=waits, kind=kind)


def schedule_request(name: str, label: str, at_most: Span, at_least: Span) -> LockRequest:
    """Return the request for a lock that is not renewed: held for ``at_most``, and not free again before ``at_least``."""
    most, least = held_seconds(at_most, "at_most"), waited_seconds(at_least, "at_least")
    if least > most:
        raise InvalidInput(f"at_least ({least:g} s) is longer than at_most ({most:g} s)")
    return LockRequest(
        name=name,
        label=label,
        seconds=most,
        timeout=0,
        kind="scheduled lock",
        advice="another node does the job, or has done it",
        renew=False,
        at_least_seconds=least,
    )


class LockHandle:
    """A lock to be acquired, with the holds taken through it.

    Threads and tasks may share it: each gives back what it took itself.
    """

    def __init__(self, operations: LockOperations, request: LockRequest) -> None:
        self._operations, self._request = operations, request
        self._holds: list[tuple[object, HeldLock]] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._request.label!r}{' held' * bool(self._holds)}>"

    def _acquire(self, who: object) -> Operation[HeldLock]:
        held = yield from self._operations.acquire(self._request)
        self._holds.append((who, held))
        return held

    def _release(self, who: object) -> Operation[bool]:
        held = self._take(who)
        return False if held is None else (yield from self._operations.release(held, self._request.at_least_seconds))

    def _leave(self, who: object) -> Operation[None]:
        """Release the lock at the end of a block. If the store cannot be reached, the lock expires; the block's result stands."""
        try:
            yield from self._release(who)
        except (CommitUnknown, StoreUnavailable) as error:
            log.warning("%s %r could not be given back, so it ends by itself: %s", self._request.kind, self._request.label, error)

    def _take(self, who: object) -> HeldLock | None:
        """Remove and return the newest hold of this caller; for a caller without one, that of another caller."""
        holds = self._holds
        own = [hold for hold in holds if hold[0] == who] or holds[:]
        if not own:
            return None
        holds.remove(own[-1])
        return own[-1][1]
