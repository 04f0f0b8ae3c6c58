"""The writes that crash tests interrupt, and what the world looks like before and after them.

Together they write everything a commit can write: an execution, its head, its commit row, an automatic snapshot, scoped entries
and their totals. Clock and commit ids are fixed, so every store must come to the same receipts, and old or new can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.callers import Blocking, Caller, Whole
from tests.faults.hooks import Trace

from stepwell import Receipt, Scope, StepOutput
from stepwell.fault_points import armed
from stepwell.state.transaction_buffer import Buffer

__all__ = ["ACTS", "FRESH", "ORDER", "Act", "Picture", "change", "follow_up", "pack", "picture", "prepare", "world"]

ORDER, FRESH = "order-7", "order-8"
_COUNTER, _SHELF = Scope.globals(), Scope.of_workflow("checkout")
_DONE_AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Act:
    """A write under test: ``begin`` does all that comes before the commit and gives back what makes it, again and again."""

    name: str
    execution_id: str
    commit_id: str
    begin: Callable[[Caller], Callable[[], Receipt]]


def _begin_ordinary(caller: Caller) -> Callable[[], Receipt]:
    """A commit of one step, under an id of its user's; without one it takes the store's fast path (see ``pack``)."""
    caller.begin(ORDER, "r2." + "a" * 32, lambda tx: tx.set_variable("is_warm", True)).commit()
    return caller.begin(ORDER, "r3." + "b" * 32, lambda tx: tx.record_step(_step("pack", "packed"))).commit


def prepare(caller: Caller) -> None:
    """An execution with some history, large enough that its next commit carries an automatic snapshot."""
    caller.create(ORDER, "first")
    caller.begin(ORDER, "second", _ballast).commit()


def _ballast(tx: Buffer) -> None:
    tx.set_variable("ballast", "x" * 70_000)
    tx.record_step(_step("reserve", {"shelf": 4}))
    tx.add_token("old", node="reserve")
    tx.state(_SHELF).set("left", 10)
    tx.state(_SHELF).set("note", "old")


def change(tx: Buffer) -> None:
    """The changes of the commit under test: many sections, two scopes, and counters that show if it is applied twice."""
    tx.record_step(_step("charge", {"paid": 12}))
    tx.set_status("RUNNING")
    tx.remove_token("old")
    tx.add_token("new", node="ship")
    tx.increment_step_count()
    tx.state(_COUNTER).increment("orders")
    tx.state(_SHELF).increment("left", -1)
    tx.state(_SHELF).delete("note")


def pack(tx: Buffer) -> None:
    """One step, and nothing else: what a store's fast path writes, if its execution was written to before."""
    tx.record_step(_step("pack", "packed"))


def follow_up(tx: Buffer) -> None:
    """A later commit, to see that work goes on."""
    tx.record_step(_step("ship", "sent"))
    tx.state(_COUNTER).increment("shipped")


def world(caller: Caller) -> tuple[Whole | None, Whole | None]:
    """Everything there is to see."""
    return caller.whole(ORDER), caller.whole(FRESH)


ACTS = {
    act.name: act
    for act in (
        Act("create", FRESH, "creation", lambda caller: lambda: caller.create(FRESH, "creation")),
        Act("ordinary", ORDER, "r3." + "b" * 32, _begin_ordinary),
        Act("commit", ORDER, "third", lambda caller: caller.begin(ORDER, "third", change).commit),
    )
}


@dataclass(frozen=True)
class Picture:
    """An act without faults: the world before and after it, its receipt, and the points it reaches."""

    act: Act
    old: tuple[Whole | None, Whole | None]
    new: tuple[Whole | None, Whole | None]
    receipt: Receipt
    trace: Trace

    def has_landed_at(self, point: str) -> bool:
        """Whether the write is past its point of no return when it first reaches this point."""
        return self.trace.points.index(point) >= self.trace.points.index("store.committed")

    def is_unknown_at(self, point: str) -> bool:
        """Whether an error there is a lost reply: it has landed, and the store's caller has not been told."""
        return self.has_landed_at(point) and self.trace.points.index(point) <= self.trace.points.index("store.committed")


def picture(act: Act, store: str, folder: Path) -> Picture:
    """Make the act once on a store of this kind."""
    caller, trace = Blocking("memory://" if store == "memory" else f"sqlite:///{folder}/picture-{act.name}.db"), Trace()
    prepare(caller)
    commit = act.begin(caller)
    old = world(caller)
    with armed(trace):
        receipt = commit()
    new = world(caller)
    caller.close()
    assert old != new
    return Picture(act, old, new, receipt, trace)


def _step(name: str, output: object) -> StepOutput:
    return StepOutput(name, name, "COMPLETED", output, _DONE_AT, 5)
