"""The machine: drives a store and a plain model of it side by side with random rules, and compares them after each one.

Executions are written through the operations that users' calls come to, by two writers that know nothing of each other; where a
store can be shared, they have a store each. What a rule touched is then read by a reader that was just started: its state, every
receipt, the chain, the snapshot and the head; at the end of a run, everything is.
"""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, Conflict, LeaseLost, LockHeld, NotFound, StepwellError, ValidationFailed
from stepwell.model.commit import (
    Acquire,
    Archiving,
    Claim,
    Extension,
    Lease,
    LockGuard,
    Release,
    Renew,
    StateBatch,
    Sweep,
    Unit,
    Unlock,
)
from stepwell.model.entry import StateOp
from stepwell.model.ledger import rebuild
from stepwell.model.limits import Limits
from stepwell.model.receipt import Receipt
from stepwell.model.snapshot import store_snapshot
from stepwell.model.status import FINAL
from stepwell.model.value import Value
from stepwell.stores.memory import MemoryStore
from stepwell.testing.conformance.comparison import Comparison, Writer, assert_same
from stepwell.testing.conformance.draws import HOUR_MS, Move, changes, contexts, hours, moves, op_of, perform, values
from stepwell.testing.conformance.fixtures import OpenStore
from stepwell.testing.conformance.plain import Change, PlainEntry, PlainExecution, PlainLease, PlainState, view_of
from stepwell.testing.conformance.sample import fresh_id

picks = st.integers(0, 11)
writers = st.integers(0, 1)
holders = st.sampled_from(["a", "b"])
fences = st.sampled_from(["own", "own", "own", "lower", "higher"])
batches = st.lists(changes, min_size=1, max_size=5)


def has_executions(machine: StoreMachine) -> bool:
    """Whether there is anything to change."""
    return bool(machine.executions)


class StoreMachine(Comparison):
    """The rules."""

    def __init__(self, stores: list[Store], clock: FakeClock) -> None:
        super().__init__(stores, clock)
        self.kept: list[tuple[str, bytes, PlainState]] = []
        self.highest_fence = 0

    @rule(pick=picks, writer=writers, context=contexts, is_used=st.sampled_from([False, False, False, True]))
    def create(self, pick: int, writer: int, context: dict[str, Value], is_used: bool) -> None:
        name = self.pick_used_id(pick) if is_used else fresh_id(self.workspace)
        by = self.writers[writer]
        refusals = (AlreadyExists,) if name in (*self.executions, *self.deleted) else ()
        receipt = self.expect(lambda: by.run(by.executions.create(name, self.workspace, copy.deepcopy(context))), *refusals)
        if receipt is not None:
            self.executions[name] = PlainExecution(0, [PlainState(context=context)], [receipt])
        self.compare_execution(name)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, batch=batches, state=st.lists(moves, max_size=2), is_named=st.booleans())
    def commit(self, pick: int, writer: int, batch: list[Change], state: list[Move], is_named: bool) -> None:
        self.commit_changes(pick, writer, batch, state, is_named=is_named)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, batch=batches, state=st.lists(moves, max_size=2), fence=fences)
    def commit_with_a_fence(self, pick: int, writer: int, batch: list[Change], state: list[Move], fence: str) -> None:
        self.commit_changes(pick, writer, batch, state, fence=fence)

    def commit_changes(
        self, pick: int, writer: int, batch: list[Change], state: list[Move], *, is_named: bool = False, fence: str | None = None
    ) -> None:
        """A transaction with changes to an execution and operations on state, in one commit."""
        name = self.pick_execution(pick)
        plain, before = self.executions[name], self.scopes
        after, faults = plain.state.changed(batch)
        ops = [op_of(move, self.paths, self.scopes, self.now_ms) for move in state]
        refusals: list[type[StepwellError]] = [LeaseLost] if fence in ("lower", "higher") else []
        _, refusal = self.apply(ops)
        refusals += [refusal] if refusal else []
        if faults or (ops and after.status in FINAL):
            refusals = [ValidationFailed]
        number = None if fence is None else plain.lease.fence + {"own": 0, "lower": -1, "higher": 1}[fence]
        commit_id = fresh_id("named") if is_named else None
        receipt = self.expect(lambda: self.transact(writer, name, batch, ops, commit_id, number), *refusals)
        if receipt is None:
            self.scopes = before
        else:
            plain.land(after, receipt)
        self.compare_execution(name)
        self.compare_scopes()

    def transact(
        self, writer: int, name: str, batch: list[Change], ops: list[StateOp], commit_id: str | None, fence: int | None = None
    ) -> Receipt:
        """Make and commit one transaction."""
        transaction = self.writers[writer].transaction(name, commit_id, fence)
        for change in batch:
            perform(copy.deepcopy(change), transaction)
        for op in ops:
            transaction.write_state(lambda op=op: op)
        return transaction.commit()

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, value=values)
    def commit_again(self, pick: int, writer: int, value: Value) -> None:
        """T03: a commit id that landed gives its first receipt back, whatever comes with it."""
        name = self.pick_execution(pick)
        receipts = self.executions[name].receipts
        if receipts:
            first = receipts[pick % len(receipts)]
            assert self.transact(writer, name, [("set_variable", ("a", value))], [], first.commit_id) == first
            self.compare_execution(name)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, value=values)
    def collide(self, pick: int, writer: int, value: Value) -> None:
        """T05: of two transactions that began on one revision, the first to commit wins."""
        name = self.pick_execution(pick)
        plain = self.executions[name]
        if plain.state.status in FINAL:
            return
        first, second = self.writers[writer].transaction(name), self.writers[1 - writer].transaction(name)
        first.set_variable("a", value)
        second.set_variable("b", value)
        plain.land(plain.state.changed([("set_variable", ("a", value))])[0], first.commit())
        self.expect(second.commit, Conflict)
        self.compare_execution(name)

    @precondition(has_executions)
    @rule(pick=picks, at=picks)
    def look_back(self, pick: int, at: int) -> None:
        name = self.pick_execution(pick)
        plain, reader = self.executions[name], self.writers[0].anew()
        revision = plain.base + at % len(plain.states)
        state = reader.run(reader.executions.load(name, revision))
        assert state.revision == revision
        assert_same(view_of(state), plain.at(revision))
        for beyond in (plain.base - 1, plain.revision + 1):
            if beyond >= 0:
                self.expect(lambda at=beyond: reader.run(reader.executions.load(name, at)), NotFound)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers)
    def keep_snapshot(self, pick: int, writer: int) -> None:
        name, by = self.pick_execution(pick), self.writers[writer]
        self.kept.append((name, by.run(by.executions.snapshot(name)), self.executions[name].state))

    @precondition(lambda self: bool(self.kept))
    @rule(pick=picks, writer=writers)
    def restore(self, pick: int, writer: int) -> None:
        """An execution goes back to a snapshot, by a new commit; one that was deleted does not come back."""
        name, data, state = self.kept[pick % len(self.kept)]
        by, plain = self.writers[writer], self.executions.get(name)
        refusals = (AlreadyExists,) if plain is None else ()
        restored = self.expect(lambda: by.run(by.executions.restore(name, data)), *refusals)
        if restored is not None and plain is not None:
            [receipt] = by.run(by.executions.receipts(name, plain.revision, 2))
            plain.land(state, receipt)
        self.compare_execution(name)

    @rule(writer=writers, batch=batches)
    def adopt(self, writer: int, batch: list[Change]) -> None:
        """An execution moves in from another store, as a snapshot."""
        elsewhere, by = Writer(MemoryStore(self.clock, Limits()), self.clock), self.writers[writer]
        name, (state, faults) = fresh_id(self.workspace), PlainState().changed(batch)
        elsewhere.run(elsewhere.executions.create(name, self.workspace, {}))
        if faults:
            state = PlainState()
        else:
            transaction = elsewhere.transaction(name)
            for change in batch:
                perform(copy.deepcopy(change), transaction)
            transaction.commit()
        restored = by.run(by.executions.restore(name, elsewhere.run(elsewhere.executions.snapshot(name))))
        self.executions[name] = PlainExecution(restored.revision, [state], is_based=True)
        self.compare_execution(name)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, at=picks, is_used=st.sampled_from([False, False, False, True]))
    def fork(self, pick: int, writer: int, at: int, is_used: bool) -> None:
        name, by = self.pick_execution(pick), self.writers[writer]
        plain, new = self.executions[name], self.pick_used_id(at) if is_used else fresh_id(self.workspace)
        revision = plain.base + at % len(plain.states)
        refusals = (AlreadyExists,) if is_used else ()
        receipt = self.expect(lambda: by.run(by.executions.fork(name, new, revision)), *refusals)
        if receipt is not None:
            state = copy.deepcopy(plain.at(revision))
            state.status = "PENDING"
            self.executions[new] = PlainExecution(0, [state], [receipt])
        self.compare_execution(new)
        self.compare_execution(name)

    @precondition(lambda self: has_executions(self) and self.stores[0].capabilities().has_archiving)
    @rule(pick=picks, at=picks)
    def archive(self, pick: int, at: int) -> None:
        name, store = self.pick_execution(pick), self.stores[0]
        plain = self.executions[name]
        through = plain.base + at % len(plain.states)
        loaded = store.load(name, through)
        assert loaded is not None
        [outcome] = store.write([Archiving(name, store_snapshot(rebuild(loaded, at=through)))])
        self.check(outcome, None)
        plain.archive(through)
        self.compare_execution(name)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, is_sure=st.sampled_from([True, False, False]))
    def delete(self, pick: int, writer: int, is_sure: bool) -> None:
        name, by = self.pick_execution(pick), self.writers[writer]
        if is_sure:
            by.run(by.executions.delete(name))
            del self.executions[name]
            self.deleted.append(name)
        for gone in self.deleted:
            self.expect(lambda name=gone: by.run(by.executions.delete(name)), NotFound)
            self.compare_execution(gone)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, holder=holders, hours=hours)
    def claim(self, pick: int, writer: int, holder: str, hours: float) -> None:
        name = self.pick_execution(pick)
        lease = self.executions[name].lease
        is_held = lease.holder not in ("", holder) and lease.until_ms > self.now_ms
        answers = self.write(writer, Claim(name, holder, hours * 3_600), LockHeld if is_held else None)
        if answers is not None:
            [granted] = answers
            assert isinstance(granted, Lease)
            assert granted.fence > lease.fence
            self.executions[name].lease = PlainLease(holder, granted.fence, self.ends_ms(hours))
        self.compare_execution(name)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, holder=holders, hours=hours, fence=fences)
    def extend(self, pick: int, writer: int, holder: str, hours: float, fence: str) -> None:
        name = self.pick_execution(pick)
        lease = self.executions[name].lease
        is_lost = lease.holder != holder or fence != "own" or lease.until_ms <= self.now_ms
        unit = Extension(name, holder, lease.fence + {"own": 0, "lower": -1, "higher": 1}[fence], hours * 3_600)
        if self.write(writer, unit, LeaseLost if is_lost else None) is not None:
            lease.until_ms = self.ends_ms(hours)
        self.compare_execution(name)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, holder=holders, fence=fences)
    def release(self, pick: int, writer: int, holder: str, fence: str) -> None:
        name = self.pick_execution(pick)
        lease = self.executions[name].lease
        is_lost = lease.holder != holder or fence != "own"
        unit = Release(name, holder, lease.fence + {"own": 0, "lower": -1, "higher": 1}[fence])
        if self.write(writer, unit, LeaseLost if is_lost else None) is not None:
            lease.holder = ""
        self.compare_execution(name)
