"""Generators of changes to executions and operations on state, small enough to collide often."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from stepwell.app.blocking import Transaction
from stepwell.model.record import LoopContext
from stepwell.model.scoped_operations import ABSENT, Clear, Copy, Delete, Increment, Merge, Migrate, Put, StateOp, Touch
from stepwell.model.status import Status
from stepwell.model.value import Value, canonical
from stepwell.testing.conformance.samples import HOUR, executed
from stepwell.testing.reference_model.store import Change, PlainScope

__all__ = [
    "FENCES",
    "HOUR_MS",
    "DrawnMove",
    "batches",
    "changes",
    "contexts",
    "doors",
    "fences",
    "hours",
    "moves",
    "op_of",
    "perform",
    "picks",
    "values",
    "writers",
]

HOUR_MS = HOUR * 1000

picks = st.integers(0, 11)
"""Which of the things that are there; taken modulo their number."""
writers = st.integers(0, 1)

FENCES = {"own": 0, "lower": -1, "higher": 1}
"""How far a fence is from the true one."""
fences = st.sampled_from(["own", "own", "own", "lower", "higher"])

# The clock is moved by whole hours and everything ends at half hours, so nothing ends while a server's clock goes on by itself.
hours = st.sampled_from([0.5, 1.5, 4.5])

values: st.SearchStrategy[Value] = st.sampled_from(
    [None, True, 0, 1, 1.0, -0.0, 2**53 + 1, "", "text", "a\0b é 😀", [], {}, [1, [2.5, None]], {"k": {"é": [True]}, "": 0}]
)
numbers = st.sampled_from([1, -2, 0.5, 2**60])
names = st.sampled_from(["a", "B", "é"])
scopes = st.sampled_from(["root", "x", "y"])
contexts = st.dictionaries(names, values, max_size=2)


def _change(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Change]:
    return st.tuples(st.just(name), st.tuples(*arguments))


changes: st.SearchStrategy[Change] = st.one_of(
    _change("set_context", contexts),
    _change("set_variable", names, values),
    _change("set_trigger", st.sampled_from([1, "cron", {"by": "hand"}])),
    _change("record_step", names, values),
    _change("set_loop_context", names, st.integers(0, 3), values),
    _change("add_token", names, scopes, values),
    _change("update_token", names, scopes, values),
    _change("remove_token", names),
    _change("enter_scope", st.sampled_from(["x", "y"]), scopes),
    _change("exit_scope", st.sampled_from(["x", "y"])),
    _change("cancel_scope", st.sampled_from(["x", "y"])),
    _change("increment_step_count"),
    _change("set_metadata", contexts),
    _change("set_status", st.sampled_from([Status.RUNNING, Status.RUNNING, Status.WAITING, Status.FAILED, Status.PENDING])),
)


batches = st.lists(changes, min_size=1, max_size=4)
doors = st.sampled_from(["front", "back"])


def perform(change: Change, transaction: Transaction) -> None:
    """Make a change of the plain model in a transaction."""
    match change:
        case "record_step", (name, output):
            transaction.record_step(executed(name, output))
        case "set_loop_context", (loop_id, index, item):
            transaction.set_loop_context(LoopContext(loop_id, index, item, None))
        case "add_token", (token_id, scope, value):
            transaction.add_token(token_id, node="n", scope=scope, value=value)
        case "update_token", (token_id, scope, value):
            transaction.update_token(token_id, lambda _: {"scope": scope, "value": value})
        case name, arguments:
            getattr(transaction, name)(*arguments)


class DrawnMove(NamedTuple):
    """An operation on state before it is known which scopes there are, and which revisions they have."""

    kind: str
    scope: int
    key: str
    value: Value
    by: float
    ttl_hours: float | None
    sliding: bool
    expected: str
    to_key: str
    how: str


moves: st.SearchStrategy[DrawnMove] = st.builds(
    DrawnMove,
    kind=st.sampled_from(["put", "put", "put", "try", "delete", "increment", "merge", "copy", "move", "touch", "clear", "migrate"]),
    scope=st.integers(0, 1),
    key=names,
    value=values,
    by=numbers,
    ttl_hours=st.none() | hours,
    sliding=st.booleans(),
    expected=st.sampled_from(["any", "any", "absent", "current", "other"]),
    to_key=names,
    how=st.sampled_from(["add", "max", "min", "union"]),
)


def op_of(move: DrawnMove, paths: list[str], plain: dict[str, PlainScope], now_ms: int) -> StateOp:
    """Return the operation of a move."""
    path, other = paths[move.scope], paths[1 - move.scope]
    found = plain[path].live(move.key, now_ms)
    current = ABSENT if found is None else found.revision
    expected = {"any": None, "absent": ABSENT, "current": current, "other": current + 1_000}[move.expected]
    ttl_ms = None if move.ttl_hours is None else round(move.ttl_hours * HOUR_MS)
    match move.kind:
        case "put" | "try":
            value = msgspec.Raw(canonical(move.value))
            sliding = move.sliding and ttl_ms is not None
            return Put(path, move.key, value, ttl_ms=ttl_ms, sliding=sliding, expected=expected, strict=move.kind == "put")
        case "delete":
            return Delete(path, move.key, expected)
        case "increment":
            return Increment(path, move.key, move.by)
        case "merge":
            return Merge(path, move.key, msgspec.Raw(canonical([move.by, "a"] if move.how == "union" else move.by)), move.how)
        case "copy" | "move":
            return Copy(path, move.key, other if move.sliding else path, move.to_key, move=move.kind == "move")
        case "touch":
            return Touch(path, move.key)
        case "migrate":
            at = current + 1_000 if move.expected == "other" else current
            # Version 1 stays: this process has no migrations, so it could not read another one.
            return Migrate(path, move.key, msgspec.Raw(canonical(move.value)), version=1, expected=at, before=1)
        case _:
            return Clear(path)
