"""T04: a batch is checked against the state as its own earlier mutations leave it, and is refused as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from tests.faults.callers import Blocking
from tests.faults.invariants import check_chain

from stepwell import Conflict, Problem, Scope, StepOutput, ValidationFailed
from stepwell.state.transaction_buffer import Buffer

_IDS, _SCOPES = ("a", "b", "c"), ("root", "s", "t")
_SHELF = Scope.globals()
_DONE_AT = datetime(2026, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"change (\d+) ")


@dataclass
class Model:
    """The rules of tokens, scopes, steps and the trigger in their plainest form; a refused operation changes nothing."""

    tokens: dict[str, str] = field(default_factory=dict)
    scopes: dict[str, str | None] = field(default_factory=lambda: {"root": None})
    cancelled: set[str] = field(default_factory=set)
    steps: set[str] = field(default_factory=set)
    has_trigger: bool = False

    def accepts(self, name: str, one: str, two: str) -> bool:
        """Whether an operation is fine now; if so, it is done."""
        return getattr(self, f"_{name}")(one, two)

    def _is_open(self, scope: str) -> bool:
        return scope in self.scopes and scope not in self.cancelled

    def _add_token(self, token: str, scope: str) -> bool:
        if token in self.tokens or not self._is_open(scope):
            return False
        self.tokens[token] = scope
        return True

    def _remove_token(self, token: str, _: str) -> bool:
        self.cancelled.discard(f"token {token}")
        return self.tokens.pop(token, None) is not None

    def _update_token(self, token: str, scope: str) -> bool:
        if token not in self.tokens or f"token {token}" in self.cancelled or not self._is_open(scope):
            return False
        self.tokens[token] = scope
        return True

    def _enter_scope(self, scope: str, parent: str) -> bool:
        if scope in self.scopes or not self._is_open(parent):
            return False
        self.scopes[scope] = parent
        return True

    def _exit_scope(self, scope: str, _: str) -> bool:
        if scope == "root" or scope not in self.scopes or scope in self.tokens.values() or scope in self.scopes.values():
            return False
        del self.scopes[scope]
        self.cancelled.discard(scope)
        return True

    def _cancel_scope(self, scope: str, _: str) -> bool:
        if scope not in self.scopes:
            return False
        self.cancelled.add(scope)
        self.cancelled.update(f"token {token}" for token, inside in self.tokens.items() if inside == scope)
        for inner in [inner for inner, parent in self.scopes.items() if parent == scope]:
            self._cancel_scope(inner, "")
        return True

    def _record_step(self, step: str, _: str) -> bool:
        if step in self.steps:
            return False
        self.steps.add(step)
        return True

    def _set_trigger(self, _: str, __: str) -> bool:
        was, self.has_trigger = self.has_trigger, True
        return not was


_CALLS: dict[str, Callable[[Buffer, str, str], None]] = {
    "add_token": lambda tx, one, two: tx.add_token(one, node="n", scope=two),
    "remove_token": lambda tx, one, two: tx.remove_token(one),
    "update_token": lambda tx, one, two: tx.update_token(one, lambda _: {"scope": two}),
    "enter_scope": lambda tx, one, two: tx.enter_scope(one, parent=two),
    "exit_scope": lambda tx, one, two: tx.exit_scope(one),
    "cancel_scope": lambda tx, one, two: tx.cancel_scope(one),
    "record_step": lambda tx, one, two: tx.record_step(StepOutput(one, one, "COMPLETED", two, _DONE_AT, 1)),
    "set_trigger": lambda tx, one, two: tx.set_trigger(one),
}
_ON_SCOPES = {"enter_scope", "exit_scope", "cancel_scope"}

Operation = tuple[str, str, str]


def operation(name: str) -> st.SearchStrategy[Operation]:
    return st.tuples(st.just(name), st.sampled_from(_SCOPES if name in _ON_SCOPES else _IDS), st.sampled_from(_SCOPES))


batches = st.lists(st.sampled_from(sorted(_CALLS)).flatmap(operation), min_size=1, max_size=12)


def numbers(errors: tuple[Problem, ...]) -> list[int]:
    return [int(match[1]) for match in (_NUMBER.match(problem.where) for problem in errors) if match]


def fill(tx: Buffer, operations: list[Operation]) -> None:
    for name, one, two in operations:
        _CALLS[name](tx, one, two)
    tx.state(_SHELF).increment("landed")


@settings(max_examples=300, deadline=None)
@given(history=batches, batch=batches)
@example(history=[("record_step", "c", "root")], batch=[("add_token", "a", "root"), ("add_token", "a", "root")])
@example(history=[("add_token", "a", "root")], batch=[("remove_token", "a", "root"), ("update_token", "a", "root")])
@example(history=[("enter_scope", "s", "root")], batch=[("add_token", "a", "s"), ("exit_scope", "s", "root")])
@example(history=[("set_trigger", "a", "root")], batch=[("cancel_scope", "root", "root"), ("add_token", "a", "root")])
def test_a_batch_with_any_conflict_is_refused_whole_and_every_conflict_is_named(
    history: list[Operation], batch: list[Operation]
) -> None:
    """T04: random batches beside a plain model that says which operations conflict; the execution has some history already."""
    caller, model = Blocking("memory://"), Model()
    caller.create("run", "creation")
    for each in history:
        if model.accepts(*each):
            caller.begin("run", None, partial(fill, operations=[each])).commit()
    before = caller.whole("run")
    wrong = [number for number, each in enumerate(batch, 1) if not model.accepts(*each)]
    event("refused" if wrong else "accepted")
    pending = caller.begin("run", "batch", partial(fill, operations=batch))
    if wrong:
        with pytest.raises(ValidationFailed) as refused:
            pending.commit()
        assert numbers(refused.value.errors) == wrong
        assert caller.whole("run") == before
    else:
        pending.commit()
        assert caller.load("run").tokens.keys() == model.tokens.keys()
        assert caller.load("run").scopes.keys() == model.scopes.keys()
    check_chain(caller, "run")


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_batch_that_the_store_refuses_changes_nothing_either(store: str, tmp_path: Path) -> None:
    """T04: a condition on scoped state is checked with the write; then the execution's part of the batch is not written."""
    caller = Blocking("memory://" if store == "memory" else f"sqlite:///{tmp_path}/well.db")
    caller.create("run", "creation")
    caller.begin("run", None, partial(fill, operations=[("add_token", "a", "root")])).commit()
    before = caller.whole("run")

    def twice_absent(tx: Buffer) -> None:
        tx.remove_token("a")
        tx.state(_SHELF).set_if_absent("new", 1)
        tx.state(_SHELF).set_if_absent("new", 2)

    with pytest.raises(Conflict):
        caller.begin("run", "batch", twice_absent).commit()
    assert caller.whole("run") == before
    assert caller.receipt("run", "batch") is None
    caller.close()
