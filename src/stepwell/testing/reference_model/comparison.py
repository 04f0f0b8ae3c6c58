"""The two sides of the machine, a store and its plain model, and all comparisons of the two."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TypeVar

import pytest
from hypothesis.stateful import RuleBasedStateMachine
from msgspec import to_builtins

from stepwell.app.blocking import Transaction
from stepwell.clock import FakeClock
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import StepwellError
from stepwell.model.commit import Outcome, StateBatch, Sweep, Unit, Written
from stepwell.model.ids import new_id
from stepwell.model.limits import Limits
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Clear, StateOp, StoredEntry
from stepwell.model.value import Value, canonical
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.operations import Driver, Operation
from stepwell.state.copies import Copies
from stepwell.state.executions import CommitTerms, Executions
from stepwell.testing.conformance.samples import fresh_id
from stepwell.testing.reference_model.store import (
    PlainEntry,
    PlainExecution,
    PlainLease,
    PlainScope,
    PlainState,
    Refused,
    apply_op,
    view_of,
)

__all__ = ["ComparedWriter", "Comparison", "Expected", "assert_same", "has_executions", "has_room"]

T = TypeVar("T")

Expected = tuple[Sequence[Value | PlainEntry], type[StepwellError] | None]
"""The answers that a batch of operations must give, or the error that it must meet."""

# The time that may pass on a server's own clock while an example runs; far less than the half hours between the machine's times.
_DRIFT_MS = 10 * 60 * 1000
_KEY = b"a key that is kept outside the store"


class ComparedWriter:
    """One process that works with the store: with caches and a group committer of its own."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store, self._clock = store, clock
        self.executions = Executions(store, clock, Limits(), new_id, _KEY)
        self.copies = Copies(self.executions, store, clock, new_id, _KEY)
        self._driver = Driver(GroupCommit(store.write))

    def run(self, operation: Operation[T]) -> T:
        """Do what a user's call does."""
        return self._driver.run(operation)

    def transaction(self, execution_id: str, terms: CommitTerms | None = None) -> Transaction:
        """Begin a transaction as a user does."""
        return Transaction(self.executions, execution_id, terms or CommitTerms(), Limits(), self._driver)

    def anew(self) -> ComparedWriter:
        """Return the same process after a restart, which knows only what the store says."""
        return ComparedWriter(self.store, self._clock)


class Comparison(RuleBasedStateMachine):
    """A store and its plain model. Each run has a workspace of its own, so that all runs can share one store."""

    def __init__(self, stores: Sequence[Store], clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.stores = clock, stores
        self.writers = [ComparedWriter(stores[0], clock), ComparedWriter(stores[-1], clock)]
        self.workspace = fresh_id("run")
        self.executions: dict[str, PlainExecution] = {}
        self.deleted: list[str] = []
        self.paths = [Scope.custom(name, self.workspace).path for name in ("one", "two")]
        self.scopes = {path: PlainScope() for path in self.paths}
        self.locks: dict[str, PlainLease] = {}
        self._epoch_ms = stores[0].now_ms() - clock.ahead_ms()

    @property
    def now_ms(self) -> int:
        """Return the time of the plain model: how far the clock was moved."""
        return self.clock.ahead_ms()

    def pick_execution(self, pick: int) -> str:
        """Return one of the existing executions; without any, an unused id."""
        names = list(self.executions)
        return names[pick % len(names)] if names else f"{self.workspace}-nobody"

    def pick_used_id(self, pick: int) -> str:
        """Return an id that is or was an execution's; without any, an unused id."""
        names = [*self.executions, *self.deleted]
        return names[pick % len(names)] if names else f"{self.workspace}-nobody"

    def expect(self, call: Callable[[], T], *refusals: type[StepwellError]) -> T | None:
        """Return the result of a call, or None if it was refused, as expected, with one of these errors or a subclass."""
        if not refusals:
            return call()
        with pytest.raises(refusals):
            call()
        return None

    def check(self, outcome: Outcome, *refusals: type[StepwellError] | None) -> list[object]:
        """Return the answers of a unit that had to land; none for one that had to be refused with exactly one of these errors."""
        expected = [refusal for refusal in refusals if refusal is not None]
        if not expected:
            assert isinstance(outcome, Written), f"refused without a reason: {outcome!r}"
            return list(outcome.answers)
        assert type(outcome) in expected, f"not refused with {expected}: {outcome!r}"
        return []

    def write(self, writer: int, unit: Unit, refusal: type[StepwellError] | None) -> list[object] | None:
        """Write one unit; its answers, or None if it was refused as it had to be."""
        [outcome] = self.writers[writer].store.write([unit])
        answers = self.check(outcome, refusal)
        return answers if refusal is None else None

    def name_of(self, door: str) -> str:
        """Return the name of one of this run's locks."""
        return f"{self.workspace}-{door}"

    def apply(self, ops: Sequence[StateOp]) -> Expected:
        """Apply operations to the plain scopes, all or none; return their answers, or the error that they must raise."""
        scopes, answers = copy.deepcopy(self.scopes), list[Value | PlainEntry]()
        for scope in scopes.values():
            scope.begin()
        try:
            answers += (copy.copy(apply_op(scopes, op, self.now_ms)) for op in ops)
        except Refused as refused:
            return [], refused.kind
        self.scopes = scopes
        return answers, None

    # Comparisons

    def compare_execution(self, name: str) -> None:
        """Compare the execution in every store, read anew, with the plain one."""
        for writer in self.writers:
            plain, reader = self.executions.get(name), writer.anew()
            if plain is None:
                assert (reader.store.head(name), reader.store.load(name), reader.store.history(name, -1, 1)) == (None, None, [])
                continue
            state = reader.run(reader.executions.load(name))
            assert_same(view_of(state), plain.state)
            assert state.revision == plain.revision
            assert reader.run(reader.executions.receipts(name, -1, None)) == plain.receipts
            verification = reader.run(reader.executions.verify(name, plain.receipts))
            assert verification.ok, verification.problems
            assert writer.run(writer.copies.snapshot(name)) == reader.run(reader.copies.snapshot(name))
            self._compare_head(reader.store, name, plain)

    def _compare_head(self, store: Store, name: str, plain: PlainExecution) -> None:
        head, lease = store.head(name), plain.lease
        assert head is not None
        assert (head.workspace_id, head.revision, head.status) == (self.workspace, plain.revision, plain.state.status)
        assert head.base_revision == (plain.base if plain.is_based else -1)
        assert (head.fence, head.holder or "") == (lease.fence, lease.holder)
        assert not plain.receipts or head.digest == plain.receipts[-1].digest
        assert store.head_digests([name]) == [head.digest]
        self.compare_time(head.lease_until_ms, lease.until_ms if lease.holder else None)

    def compare_scopes(self) -> None:
        """Compare both scopes in every store with the plain ones."""
        for store in self.stores:
            for path, plain in self.scopes.items():
                live = {key: entry for key in plain.entries if (entry := plain.live(key, self.now_ms))}
                rows = dict(store.scan(path))
                assert list(rows) == sorted(live)
                assert store.entries(path, sorted(plain.entries.keys() | plain.tombs)) == rows
                for key, entry in live.items():
                    self.compare_entry(rows[key], entry)
                self._compare_changes(store, path, rows, plain)

    def _compare_changes(self, store: Store, path: str, rows: dict[str, StoredEntry], plain: PlainScope) -> None:
        changes, totals = store.changes(path, 0), store.totals(path)
        assert {key for key, row in changes if row.data is None} == plain.tombs.keys()
        assert {key: row for key, row in changes if key in rows} == rows
        assert [row.revision for _, row in changes] == sorted(row.revision for _, row in changes)
        size = sum(len(key.encode()) + len(canonical(entry.value)) for key, entry in plain.entries.items())
        assert (totals.revision, totals.keys, totals.bytes) == (plain.revision, len(plain.entries), size)

    def compare_entry(self, stored: object, plain: PlainEntry) -> None:
        """Compare a stored entry with the plain one."""
        assert isinstance(stored, StoredEntry)
        assert (stored.data, stored.revision, stored.sliding) == (canonical(plain.value), plain.revision, plain.sliding)
        self.compare_time(stored.expires_ms, plain.ends_ms)

    def compare_time(self, stored_ms: int | None, plain_ms: int | None) -> None:
        """Compare a time of the store's clock with one of the plain model's."""
        if stored_ms is None or plain_ms is None:
            assert stored_ms == plain_ms
        else:
            assert abs(stored_ms - self._epoch_ms - plain_ms) < _DRIFT_MS

    def teardown(self) -> None:
        """Compare everything once more, unless a rule failed; leave nothing that the sweeps of the next run would find."""
        try:
            if sys.exception() is None:
                self._compare_everything()
        finally:
            self.stores[0].write([StateBatch(tuple(Clear(path) for path in self.paths)), Sweep(0)])

    def _compare_everything(self) -> None:
        for name in (*self.executions, *self.deleted):
            self.compare_execution(name)
        self.compare_scopes()
        for store in self.stores:
            heads = store.find(ExecutionQuery(workspace_id=self.workspace, limit=1_000))
            assert {head.execution_id for head in heads} == self.executions.keys()
            assert {path for path, scope in self.scopes.items() if scope.entries} == set(store.scopes(self.workspace))


def has_executions(machine: Comparison) -> bool:
    """Return whether there is an execution."""
    return bool(machine.executions)


def has_room(machine: Comparison) -> bool:
    """Return whether another execution may be created: rules meet more often on few executions."""
    return len(machine.executions) < 4


def assert_same(actual: PlainState, expected: PlainState) -> None:
    """Assert equality as canonical JSON: 1, 1.0 and True are three values."""
    assert canonical(to_builtins(asdict(actual))) == canonical(to_builtins(asdict(expected)))
