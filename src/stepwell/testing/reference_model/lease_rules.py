"""Rules for leases of executions and for locks."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import LeaseLost, LockHeld
from stepwell.model.commit import Acquire, Claim, Extension, Lease, Release, Renew, Unlock
from stepwell.testing.conformance.samples import HOUR
from stepwell.testing.reference_model.comparison import Comparison, has_executions
from stepwell.testing.reference_model.generators import FENCES, HOUR_MS, doors, fences, hours, picks, writers
from stepwell.testing.reference_model.store import PlainLease

__all__ = ["LeaseRules"]

holders = st.sampled_from(["a", "b"])
parties = st.sampled_from(["holder", "holder", "holder", "stranger"])
"""The caller that extends or releases: mostly the holder, or no lease would ever be extended."""


class LeaseRules(Comparison):
    """Rules for holders of leases and locks."""

    def __init__(self, stores: Sequence[Store], clock: FakeClock) -> None:
        super().__init__(stores, clock)
        self._highest_fence = 0

    def party_of(self, lease: PlainLease, party: str) -> str:
        """Return the name of a holder."""
        return lease.holder or "a" if party == "holder" else "stranger"

    def ends_ms(self, hours: float) -> int:
        """Return the end of a lease that begins now."""
        return self.now_ms + round(hours * HOUR_MS)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, holder=holders, hours=hours)
    def claim(self, pick: int, writer: int, holder: str, hours: float) -> None:
        name = self.pick_execution(pick)
        lease = self.executions[name].lease
        is_held = lease.holder not in ("", holder) and lease.until_ms > self.now_ms
        answers = self.write(writer, Claim(name, holder, hours * HOUR), LockHeld if is_held else None)
        if answers is not None:
            [granted] = answers
            assert isinstance(granted, Lease)
            assert granted.fence > lease.fence
            self.executions[name].lease = PlainLease(holder, granted.fence, self.ends_ms(hours))
        self.compare_execution(name)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, party=parties, hours=hours, fence=fences)
    def extend(self, pick: int, writer: int, party: str, hours: float, fence: str) -> None:
        name = self.pick_execution(pick)
        lease = self.executions[name].lease
        holder = self.party_of(lease, party)
        is_lost = lease.holder != holder or fence != "own" or lease.until_ms <= self.now_ms
        unit = Extension(name, holder, lease.fence + FENCES[fence], hours * HOUR)
        if self.write(writer, unit, LeaseLost if is_lost else None) is not None:
            lease.until_ms = self.ends_ms(hours)
        self.compare_execution(name)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, party=parties, fence=fences)
    def release(self, pick: int, writer: int, party: str, fence: str) -> None:
        name = self.pick_execution(pick)
        lease = self.executions[name].lease
        holder = self.party_of(lease, party)
        is_lost = lease.holder != holder or fence != "own"
        unit = Release(name, holder, lease.fence + FENCES[fence])
        if self.write(writer, unit, LeaseLost if is_lost else None) is not None:
            lease.holder = ""
        self.compare_execution(name)

    @rule(door=doors, writer=writers, holder=holders, hours=hours)
    def acquire(self, door: str, writer: int, holder: str, hours: float) -> None:
        name = self.name_of(door)
        held = self.locks.get(name, PlainLease())
        is_live = held.until_ms > self.now_ms
        is_held = is_live and held.holder != holder
        [outcome] = self.writers[writer].store.write([Acquire(name, holder, hours * HOUR)])
        if is_held:
            assert isinstance(outcome, LockHeld)
            self.compare_time(outcome.until_ms, held.until_ms)
            return
        [granted] = self.check(outcome)
        assert isinstance(granted, Lease)
        assert granted.fence == held.fence if is_live else granted.fence > self._highest_fence
        self._highest_fence = max(self._highest_fence, granted.fence)
        acquired_ms = held.acquired_ms if is_live else self.now_ms
        self.locks[name] = PlainLease(holder, granted.fence, self.ends_ms(hours), acquired_ms)
        self.compare_time(granted.until_ms, self.locks[name].until_ms)

    @rule(door=doors, writer=writers, party=parties, hours=hours, fence=fences)
    def renew(self, door: str, writer: int, party: str, hours: float, fence: str) -> None:
        name = self.name_of(door)
        held = self.locks.get(name, PlainLease())
        holder = self.party_of(held, party)
        unit = Renew(name, holder, held.fence + FENCES[fence], hours * HOUR)
        if self.write(writer, unit, LeaseLost if self.is_lost(held, holder, fence) else None) is not None:
            held.until_ms = self.ends_ms(hours)

    @rule(door=doors, writer=writers, party=parties, least=st.just(0.0) | hours, fence=fences)
    def unlock(self, door: str, writer: int, party: str, least: float, fence: str) -> None:
        name = self.name_of(door)
        held = self.locks.get(name, PlainLease())
        holder = self.party_of(held, party)
        unit = Unlock(name, holder, held.fence + FENCES[fence], least * HOUR)
        if self.write(writer, unit, LeaseLost if self.is_lost(held, holder, fence) else None) is None:
            return
        until_ms = held.acquired_ms + round(least * HOUR_MS)
        if until_ms > self.now_ms:
            self.locks[name] = PlainLease("", held.fence, until_ms, held.acquired_ms)
        else:
            del self.locks[name]

    def is_lost(self, held: PlainLease, holder: str, fence: str) -> bool:
        """Return whether this holder has lost a lock."""
        return held.holder != holder or fence != "own" or held.until_ms <= self.now_ms
