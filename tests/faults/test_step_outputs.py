"""T07: a step's output is written once; the same commit again is fine, another value is not, and deletion wins over both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path

import pytest
from tests.faults.callers import CALLERS, Blocking, Caller
from tests.faults.hooks import at
from tests.faults.invariants import check_chain

from stepwell import AlreadyExists, AlreadyRecorded, Conflict, NotFound, Scope, StepOutput
from stepwell.fault_points import armed
from stepwell.state.transaction_buffer import Buffer

_COUNTER = Scope.globals()
_DONE_AT = datetime(2026, 1, 1, tzinfo=UTC)


def record(value: str) -> Callable[[Buffer], None]:
    def change(tx: Buffer) -> None:
        tx.record_step(StepOutput("charge", "charge", "COMPLETED", value, _DONE_AT, 1))
        tx.state(_COUNTER).increment(value)

    return change


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/well.db"


@pytest.fixture(params=list(CALLERS))
def caller(request: pytest.FixtureRequest, url: str) -> Iterator[Caller]:
    caller = CALLERS[request.param](url)
    yield caller
    caller.close()


# The actors: two tries of one commit, a writer of another value, and whoever deletes the execution.
_ACTORS = ("first try", "second try", "other value", "delete")
_BEGINNINGS = {
    "first try": ("same", record("right")),
    "second try": ("same", record("right")),
    "other value": ("other", record("wrong")),
}
_ERRORS = (AlreadyRecorded, Conflict, NotFound)


def interleavings() -> list[tuple[str, ...]]:
    """Every order of the actors' events: a writer begins, later it ends; a deletion is one event."""
    writers = [actor for actor in _ACTORS if actor != "delete"]
    events = [f"begin {actor}" for actor in writers] + [f"end {actor}" for actor in writers] + ["delete"]
    # Two tries of one commit are alike, so half of the orders say nothing new.
    return [
        order
        for order in permutations(events)
        if all(order.index(f"begin {actor}") < order.index(f"end {actor}") for actor in writers)
        and order.index("begin first try") < order.index("begin second try")
    ]


class Story:
    """Plays one order of events on an execution of its own and notes how each writer ended."""

    def __init__(self, caller: Caller, execution_id: str) -> None:
        self.caller, self.execution_id = caller, execution_id
        self.pending: dict[str, object] = {}
        self.endings: dict[str, object] = {}
        caller.create(execution_id, "creation")

    def play(self, event: str) -> None:
        if event == "delete":
            self.caller.delete(self.execution_id)
            return
        what, _, actor = event.partition(" ")
        if actor in self.endings:
            return
        try:
            if what == "begin":
                commit_id, change = _BEGINNINGS[actor]
                self.pending[actor] = self.caller.begin(self.execution_id, commit_id, change)
            else:
                self.endings[actor] = self.pending[actor].commit()  # type: ignore[attr-defined]
        except _ERRORS as error:
            self.endings[actor] = error


def expected_endings(order: tuple[str, ...]) -> tuple[dict[str, str], str | None]:
    """Return the winners and the errors of the others by the rules alone, and the commit that is recorded before the deletion."""
    recorded: str | None = None
    is_deleted, revision = False, 0
    begun: dict[str, int] = {}
    endings: dict[str, str] = {}
    for event in order:
        what, _, actor = event.partition(" ")
        if event == "delete":
            is_deleted = True
        elif actor in endings:
            continue
        elif what == "begin":
            if is_deleted:
                endings[actor] = "NotFound"
            else:
                begun[actor] = revision
        elif not is_deleted and recorded == _BEGINNINGS[actor][0]:
            endings[actor] = "receipt"
        elif begun[actor] < revision:
            endings[actor] = "Conflict"
        elif recorded is not None:
            endings[actor] = "AlreadyRecorded"
        elif is_deleted:
            endings[actor] = "NotFound"
        else:
            recorded, revision, endings[actor] = _BEGINNINGS[actor][0], revision + 1, "receipt"
    return endings, recorded


def name_of(ending: object) -> str:
    return type(ending).__name__ if isinstance(ending, Exception) else "receipt"


def test_in_every_interleaving_the_first_output_stays_and_a_deletion_is_final(caller: Caller) -> None:
    """T07: all orders of two tries of one commit, a writer of another value, and a deletion."""
    rights = wrongs = 0
    for number, order in enumerate(interleavings()):
        story = Story(caller, f"run-{number}")
        for event in order:
            story.play(event)
        endings, recorded = expected_endings(order)
        assert {actor: name_of(ending) for actor, ending in story.endings.items()} == endings, order
        rights, wrongs = rights + (recorded == "same"), wrongs + (recorded == "other")
        receipts = [ending for actor, ending in story.endings.items() if name_of(ending) == "receipt"]
        assert len({receipt.digest for receipt in receipts}) <= 1, order  # type: ignore[attr-defined]
        with pytest.raises(NotFound):
            caller.load(f"run-{number}")
        with pytest.raises(AlreadyExists):
            caller.create(f"run-{number}", "again")
    counted = caller.scopes()[_COUNTER.path][1]
    assert (counted.get("right", 0), counted.get("wrong", 0)) == (rights, wrongs)


def test_first_output_is_the_recorded_one_in_every_interleaving(caller: Caller) -> None:
    """T07, I4: the value that was recorded first is the one that is read, whoever tried later."""
    orders = {tuple(event for event in order if event != "delete") for order in interleavings()}
    for number, order in enumerate(sorted(orders)):
        story = Story(caller, f"run-{number}")
        for event in order:
            story.play(event)
        _, recorded = expected_endings(order)
        output = caller.load(f"run-{number}").step("charge").output
        assert output == {"same": "right", "other": "wrong"}[str(recorded)], order
        check_chain(caller, f"run-{number}")


@pytest.mark.parametrize("point", ["commit.validated", "commit.buffered"])
def test_a_deletion_in_the_middle_of_a_commit_wins_and_nothing_is_revived(url: str, point: str) -> None:
    """T07: the execution is deleted between validation and BEGIN; no row of the late commit stays."""
    caller = Blocking(url)
    caller.create("run", "creation")
    pending = caller.begin("run", "same", record("right"))
    with armed(at(point, 1, lambda: caller.delete("run"))), pytest.raises(NotFound):
        pending.commit()
    assert caller.whole("run") is None
    assert caller.receipt("run", "same") is None
    assert caller.well.state.globals.get("right") is None
    with pytest.raises(NotFound):
        pending.commit()
    caller.close()


def test_a_deletion_by_another_process_is_final_for_a_writer_that_knew_the_execution(tmp_path: Path) -> None:
    """T07: whatever the writer remembers of the execution, the tombstone in the file decides; a short commit and a long one."""
    url = f"sqlite:///{tmp_path}/well.db"
    writer, other = Blocking(url), Blocking(url)
    for execution_id, commit_id, change in (
        ("short", None, lambda tx: tx.set_variable("x", 1)),
        ("long", "same", record("right")),
    ):
        writer.create(execution_id, "creation")
        writer.begin(execution_id, None, lambda tx: tx.set_variable("x", 0)).commit()
        pending = writer.begin(execution_id, commit_id, change)
        other.delete(execution_id)
        with pytest.raises(NotFound):
            pending.commit()
        assert writer.whole(execution_id) is other.whole(execution_id) is None
        assert other.scopes() == {}
    writer.close()
    other.close()
