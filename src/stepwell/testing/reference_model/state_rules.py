"""Rules for scoped state and for time."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import rule

from stepwell.errors import LeaseLost
from stepwell.model.commit import LockGuard, StateBatch, Sweep, Unit
from stepwell.testing.conformance.samples import HOUR
from stepwell.testing.reference_model.comparison import Comparison, Expected
from stepwell.testing.reference_model.generators import FENCES, HOUR_MS, DrawnMove, doors, fences, moves, op_of, writers
from stepwell.testing.reference_model.store import PlainEntry, PlainLease

__all__ = ["StateRules"]


class StateRules(Comparison):
    """Rules for scoped state and time."""

    @rule(writer=writers, batches=st.lists(st.lists(moves, min_size=1, max_size=4), min_size=1, max_size=3))
    def write_batches(self, writer: int, batches: list[list[DrawnMove]]) -> None:
        """Write batches of one group, each of which sees those before it."""
        units, expected = list[Unit](), list[Expected]()
        for batch in batches:
            ops = [op_of(move, self.paths, self.scopes, self.now_ms) for move in batch]
            units.append(StateBatch(tuple(ops)))
            expected.append(self.apply(ops))
        outcomes = self.writers[writer].store.write(units)
        for outcome, (answers, refusal) in zip(outcomes, expected, strict=True):
            self.compare_answers(self.check(outcome, refusal), answers)
        self.compare_scopes()

    @rule(writer=writers, door=doors, fence=fences, move=moves)
    def write_under_a_lock(self, writer: int, door: str, fence: str, move: DrawnMove) -> None:
        """Write under a lock: the write lands if the lock's row has this fence, even if the lock has expired."""
        name = self.name_of(door)
        lock = self.locks.get(name)
        guard = LockGuard(name, (lock or PlainLease(fence=1)).fence + FENCES[fence])
        ops = (op_of(move, self.paths, self.scopes, self.now_ms),)
        is_lost, before = lock is None or fence != "own", self.scopes
        answers, refusal = self.apply(ops)
        if is_lost:
            answers, self.scopes = (), before
        [outcome] = self.writers[writer].store.write([StateBatch(ops, (guard,))])
        self.compare_answers(self.check(outcome, refusal, LeaseLost if is_lost else None), answers)
        self.compare_scopes()

    def compare_answers(self, actual: Sequence[object], expected: Sequence[object]) -> None:
        """Compare the answers of a batch, one by one."""
        assert len(actual) == len(expected)
        for answer, plain in zip(actual, expected, strict=True):
            if isinstance(plain, PlainEntry):
                self.compare_entry(answer, plain)
            else:
                assert (answer, type(answer)) == (plain, type(plain))

    @rule(writer=writers, hours=st.sampled_from([0, 2]))
    def sweep(self, writer: int, hours: int) -> None:
        """Sweep expired keys, and tombstones of some hours ago."""
        age_ms = hours * HOUR_MS
        swept = sum(scope.sweep(self.now_ms, age_ms) for scope in self.scopes.values())
        for name in [name for name, lock in self.locks.items() if lock.until_ms <= self.now_ms - age_ms]:
            del self.locks[name]
        assert self.write(writer, Sweep(age_ms), None) == [swept]
        self.compare_scopes()

    @rule(hours=st.sampled_from([1, 2, 5]))
    def advance(self, hours: int) -> None:
        self.clock.advance(hours * HOUR)
        self.compare_scopes()
