"""Rules for executions: created, changed, looked back at, restored, forked, archived, deleted."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, Conflict, LeaseLost, NotFound, StepwellError, ValidationFailed
from stepwell.model.commit import Archiving
from stepwell.model.entry import StateOp
from stepwell.model.ledger import rebuild
from stepwell.model.limits import Limits
from stepwell.model.receipt import Receipt
from stepwell.model.snapshot import store_snapshot
from stepwell.model.status import FINAL
from stepwell.model.value import Value
from stepwell.stores.memory import MemoryStore
from stepwell.testing.conformance.sample import fresh_id
from stepwell.testing.machine.comparison import Comparison, Writer, assert_same, has_executions
from stepwell.testing.machine.draws import FENCES, Move, changes, contexts, fences, moves, op_of, perform, picks, values, writers
from stepwell.testing.machine.plain import Change, PlainExecution, PlainState, view_of

__all__ = ["ExecutionRules"]

batches = st.lists(changes, min_size=1, max_size=5)


class ExecutionRules(Comparison):
    """What happens to executions."""

    def __init__(self, stores: Sequence[Store], clock: FakeClock) -> None:
        super().__init__(stores, clock)
        self.kept: list[tuple[str, bytes, PlainState]] = []

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
        number = None if fence is None else plain.lease.fence + FENCES[fence]
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
