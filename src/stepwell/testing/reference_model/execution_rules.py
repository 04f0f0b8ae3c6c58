"""Rules for executions: create, load at a revision, restore, fork, archive, delete."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hypothesis.stateful import precondition, rule

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, NotFound
from stepwell.model.commit import Archiving, Claim
from stepwell.model.limits import Limits
from stepwell.model.receipt_chain import rebuild
from stepwell.model.snapshot import store_snapshot
from stepwell.model.value import Value
from stepwell.stores.memory import MemoryStore
from stepwell.testing.conformance.samples import HOUR, fresh_id
from stepwell.testing.reference_model.comparison import ComparedWriter, Comparison, assert_same, has_executions, has_room
from stepwell.testing.reference_model.generators import batches, contexts, perform, picks, writers
from stepwell.testing.reference_model.store import Change, PlainExecution, PlainState, view_of

__all__ = ["ExecutionRules"]


class ExecutionRules(Comparison):
    """Rules for the life of executions."""

    def __init__(self, stores: Sequence[Store], clock: FakeClock) -> None:
        super().__init__(stores, clock)
        self.kept: list[tuple[str, bytes, PlainState]] = []

    @precondition(has_room)
    @rule(writer=writers, context=contexts)
    def create(self, writer: int, context: dict[str, Value]) -> None:
        name, by = fresh_id(self.workspace), self.writers[writer]
        receipt = by.run(by.executions.create(name, self.workspace, copy.deepcopy(context)))
        self.executions[name] = PlainExecution(0, [PlainState(context=context)], [receipt])
        self.compare_execution(name)

    @precondition(lambda self: bool(self.executions or self.deleted))
    @rule(pick=picks, writer=writers)
    def create_again(self, pick: int, writer: int) -> None:
        """Create an execution under a used id, which must be refused."""
        name, by = self.pick_used_id(pick), self.writers[writer]
        self.expect(lambda: by.run(by.executions.create(name, self.workspace, {})), AlreadyExists)
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
        self.kept.append((name, by.run(by.copies.snapshot(name)), self.executions[name].state))

    @precondition(lambda self: bool(self.kept))
    @rule(pick=picks, writer=writers)
    def restore(self, pick: int, writer: int) -> None:
        """Restore an execution from a snapshot by a new commit; a deleted one must be refused."""
        name, data, state = self.kept[pick % len(self.kept)]
        by, plain = self.writers[writer], self.executions.get(name)
        refusals = (AlreadyExists,) if plain is None else ()
        restored = self.expect(lambda: by.run(by.copies.restore(name, data)), *refusals)
        if restored is not None and plain is not None:
            [receipt] = by.run(by.executions.receipts(name, plain.revision, 2))
            plain.land(state, receipt)
        self.compare_execution(name)

    @precondition(has_room)
    @rule(writer=writers, batch=batches)
    def adopt(self, writer: int, batch: list[Change]) -> None:
        """Adopt an execution from another store, as a snapshot."""
        elsewhere, by = ComparedWriter(MemoryStore(self.clock, Limits()), self.clock), self.writers[writer]
        name, (state, faults) = fresh_id(self.workspace), PlainState().changed(batch)
        elsewhere.run(elsewhere.executions.create(name, self.workspace, {}))
        if faults:
            state = PlainState()
        else:
            transaction = elsewhere.transaction(name)
            for change in batch:
                perform(copy.deepcopy(change), transaction)
            transaction.commit()
        restored = by.run(by.copies.restore(name, elsewhere.run(elsewhere.copies.snapshot(name))))
        self.executions[name] = PlainExecution(restored.revision, [state], is_based=True)
        self.compare_execution(name)

    @precondition(lambda self: has_executions(self) and has_room(self))
    @rule(pick=picks, writer=writers, at=picks)
    def fork(self, pick: int, writer: int, at: int) -> None:
        name, new, by = self.pick_execution(pick), fresh_id(self.workspace), self.writers[writer]
        plain = self.executions[name]
        revision = plain.base + at % len(plain.states)
        receipt = by.run(by.copies.fork(name, new, revision))
        state = copy.deepcopy(plain.at(revision))
        state.status = "PENDING"
        self.executions[new] = PlainExecution(0, [state], [receipt])
        self.expect(lambda: by.run(by.copies.fork(name, self.pick_used_id(at), revision)), AlreadyExists)
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
    @rule(pick=picks, writer=writers)
    def delete(self, pick: int, writer: int) -> None:
        name, by = self.pick_execution(pick), self.writers[writer]
        by.run(by.executions.delete(name))
        del self.executions[name]
        self.deleted.append(name)
        self.compare_execution(name)

    @precondition(lambda self: bool(self.deleted))
    @rule(pick=picks, writer=writers)
    def write_to_the_deleted(self, pick: int, writer: int) -> None:
        """Write to a deleted execution (T07), which must not revive it."""
        name, by = self.deleted[pick % len(self.deleted)], self.writers[writer]
        self.expect(lambda: by.transaction(name).commit(), NotFound)
        self.expect(lambda: by.run(by.executions.delete(name)), NotFound)
        self.write(writer, Claim(name, "a", HOUR), NotFound)
        self.compare_execution(name)
