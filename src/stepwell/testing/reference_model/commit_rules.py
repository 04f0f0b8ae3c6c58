"""Rules for commits: changes of an execution and operations on state that land together or not at all."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec import Raw

from stepwell.errors import Conflict, LeaseLost, StepwellError, ValidationFailed
from stepwell.model.commit import LockGuard
from stepwell.model.mutation import SetVariable, encode_mutations
from stepwell.model.receipt import Receipt
from stepwell.model.status import FINAL
from stepwell.model.value import Value, canonical
from stepwell.state.executions import CommitTerms
from stepwell.testing.conformance.samples import fresh_id
from stepwell.testing.reference_model.comparison import Comparison, has_executions
from stepwell.testing.reference_model.generators import (
    FENCES,
    DrawnMove,
    batches,
    doors,
    fences,
    moves,
    op_of,
    perform,
    picks,
    values,
    writers,
)
from stepwell.testing.reference_model.store import Change, PlainLease

__all__ = ["CommitRules"]

few_moves = st.lists(moves, max_size=2)


class CommitRules(Comparison):
    """Rules for commits of writers to executions."""

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, batch=batches, state=few_moves, is_named=st.booleans())
    def commit(self, pick: int, writer: int, batch: list[Change], state: list[DrawnMove], is_named: bool) -> None:
        terms = CommitTerms(fresh_id("named") if is_named else None)
        self.transact(self.pick_execution(pick), writer, batch, state, terms, ())

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, value=values, state=few_moves, fence=fences)
    def commit_with_a_fence(self, pick: int, writer: int, value: Value, state: list[DrawnMove], fence: str) -> None:
        name = self.pick_execution(pick)
        terms = CommitTerms(fence=self.executions[name].lease.fence + FENCES[fence])
        refusals = () if fence == "own" else (LeaseLost,)
        self.transact(name, writer, [("set_variable", ("a", value))], state, terms, refusals)

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, value=values, state=few_moves, door=doors, fence=fences)
    def commit_under_a_lock(self, pick: int, writer: int, value: Value, state: list[DrawnMove], door: str, fence: str) -> None:
        name = self.name_of(door)
        lock = self.locks.get(name)
        terms = CommitTerms(guards=(LockGuard(name, (lock or PlainLease(fence=1)).fence + FENCES[fence]),))
        refusals = (LeaseLost,) if lock is None or fence != "own" else ()
        self.transact(self.pick_execution(pick), writer, [("set_variable", ("a", value))], state, terms, refusals)

    def transact(
        self,
        name: str,
        writer: int,
        batch: list[Change],
        state: list[DrawnMove],
        terms: CommitTerms,
        refusals: Sequence[type[StepwellError]],
    ) -> None:
        """Run a transaction on both sides; it is refused for these reasons and for those of its changes and operations."""
        plain, before = self.executions[name], self.scopes
        after, faults = plain.state.changed(batch)
        ops = [op_of(move, self.paths, self.scopes, self.now_ms) for move in state]
        _, refusal = self.apply(ops)
        reasons = [*refusals, *([refusal] if refusal else [])]
        if faults or (ops and after.status in FINAL):
            reasons = [ValidationFailed]
        transaction = self.writers[writer].transaction(name, terms)
        for change in batch:
            perform(copy.deepcopy(change), transaction)
        for op in ops:
            transaction.write_state(lambda op=op: op)
        receipt = self.expect(transaction.commit, *reasons)
        if receipt is None:
            self.scopes = before
        else:
            plain.land(after, receipt)
        if receipt is not None and terms.commit_id is not None and not ops:
            again = self.writers[writer].transaction(name, terms)
            for change in batch:
                perform(copy.deepcopy(change), again)
            assert again.commit() == receipt
        self.compare_execution(name)
        self.compare_scopes()

    @precondition(has_executions)
    @rule(pick=picks, which=picks, writer=writers, value=values)
    def commit_again(self, pick: int, which: int, writer: int, value: Value) -> None:
        """Repeat a commit id (T03): the same change returns the first receipt, any other is refused."""
        name = self.pick_execution(pick)
        receipts = self.executions[name].receipts
        if receipts:
            first = receipts[which % len(receipts)]
            is_same = first.body == encode_mutations([SetVariable("a", Raw(canonical(value)))])
            terms, refusals = CommitTerms(first.commit_id), () if is_same else (Conflict,)
            assert self.expect(lambda: self.set_variable(name, writer, value, terms), *refusals) == (first if is_same else None)
            self.compare_execution(name)

    def set_variable(self, name: str, writer: int, value: Value, terms: CommitTerms) -> Receipt:
        """Run the smallest transaction."""
        transaction = self.writers[writer].transaction(name, terms)
        transaction.set_variable("a", value)
        return transaction.commit()

    @precondition(has_executions)
    @rule(pick=picks, writer=writers, value=values, is_begun=st.booleans())
    def collide(self, pick: int, writer: int, value: Value, is_begun: bool) -> None:
        """T05: of two transactions that began on one revision, the first to commit wins; those that were not begun follow each
        other, whatever either writer has at hand."""
        name = self.pick_execution(pick)
        plain = self.executions[name]
        if plain.state.status in FINAL:
            return
        first, second = (self.writers[each].transaction(name) for each in (writer, 1 - writer))
        for variable, transaction in (("a", first), ("b", second)):
            if is_begun:
                transaction.begin()
            transaction.set_variable(variable, value)
        plain.land(plain.state.changed([("set_variable", ("a", value))])[0], first.commit())
        if is_begun:
            self.expect(second.commit, Conflict)
        else:
            plain.land(plain.state.changed([("set_variable", ("b", value))])[0], second.commit())
        self.compare_execution(name)
