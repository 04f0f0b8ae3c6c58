"""Transactions: an atomic batch of changes to one execution, and its receipt."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from tests.acceptance.conftest import OpenWell

from stepwell import (
    AlreadyExists,
    AlreadyRecorded,
    CancelScope,
    Conflict,
    DataStore,
    EventTrigger,
    FakeClock,
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    Limits,
    LoopContext,
    NotFound,
    Status,
    StepOutput,
    Stepwell,
    Token,
    ValidationFailed,
)
from stepwell.testing.store_access import store_under

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def step(name: str, output: object = None) -> StepOutput:
    return StepOutput(f"node-{name}", name, "COMPLETED", output, AT, 12)


def test_everything_a_transaction_can_change_is_there_afterwards(well: Stepwell) -> None:
    well.create("order-7", workspace="acme", context={"cart": ["pen"], "n": 1})
    with well.transaction("order-7") as tx:
        tx.set_trigger(EventTrigger("created", {"id": 7}))
        tx.set_status("RUNNING")
        tx.set_context({"cart": ["pen", "ink"], "n": 1})
        tx.update_context(lambda context: {**context, "n": context["n"] + 1})
        tx.set_variable("paid", None)
        tx.record_step(step("charge", {"ok": True}))
        tx.set_loop_context(LoopContext("photos", 0, "a.png", 2))
        tx.enter_scope("s")
        tx.add_token("t", node="ship", scope="s", value=1)
        tx.update_token("t", lambda token: token.replace(value=token.value + 1))
        tx.add_token("gone", node="x")
        tx.remove_token("gone")
        tx.enter_scope("left")
        tx.exit_scope("left")
        tx.enter_scope("c")
        tx.cancel_scope("c")
        tx.increment_step_count()
        tx.set_metadata({"who": "me"})
        tx.state(well.state.custom("orders")).set("last", 7)
    state = well.load("order-7")
    assert state.trigger == EventTrigger("created", {"id": 7})
    assert state.status is Status.RUNNING
    assert state.context == {"cart": ["pen", "ink"], "n": 2}
    assert state.variables == {"paid": None}
    assert state.steps == {"charge": step("charge", {"ok": True})}
    assert state.loops == {"photos": LoopContext("photos", 0, "a.png", 2)}
    assert state.tokens == {"t": Token("t", "ship", "s", 2)}
    assert set(state.scopes) == {"root", "s", "c"}
    assert state.scopes["s"] == CancelScope("s", "root")
    assert state.scopes["c"].status == "cancelled"
    assert (state.step_count, state.metadata, state.revision) == (1, {"who": "me"}, 1)
    assert state.identity.workspace_id == "acme"
    assert well.state.custom("orders").get("last") == 7


def test_receipt_says_what_was_committed(well: Stepwell, clock: FakeClock) -> None:
    created = well.create("run")
    clock.advance(5)
    with well.transaction("run", commit_id="mine") as tx:
        tx.set_variable("a", 1)
        tx.record_step(step("s"))
    receipt = tx.receipt
    assert (receipt.execution_id, receipt.workspace_id, receipt.revision, receipt.commit_id) == ("run", "default", 1, "mine")
    assert receipt.committed_at == clock.now()
    assert [mutation["type"] for mutation in receipt.mutations] == ["set_variable", "record_step"]
    assert receipt.mutations[0] == {"type": "set_variable", "name": "a", "value": 1}
    assert (created.revision, created.previous, receipt.previous) == (0, "0" * 64, created.digest)
    assert receipt.before == created.after
    assert receipt.after == well.load("run").state_digest
    assert all(len(text) == 64 and int(text, 16) >= 0 for text in (receipt.before, receipt.after, receipt.previous, receipt.digest))
    assert well.receipts("run") == [created, receipt]
    assert well.receipt("run", "mine") == receipt
    assert well.receipt("run", "never") is None


def test_exception_in_the_block_rolls_everything_back(well: Stepwell) -> None:
    well.create("run")
    with pytest.raises(ZeroDivisionError), well.transaction("run") as tx:  # noqa: PT012 - leaving the block is what raises
        tx.set_variable("a", 1)
        tx.state(well.state.globals).set("g", 1)
        1 // 0  # noqa: B018 - that is the point
    assert tx.receipt is None
    assert well.load("run").revision == 0
    assert well.state.globals.get("g") is None


def test_refused_batch_changes_nothing_and_names_every_fault(well: Stepwell) -> None:
    well.create("run")
    before = well.load("run")
    with pytest.raises(ValidationFailed) as caught, well.transaction("run") as tx:  # noqa: PT012 - leaving the block is what raises
        tx.set_variable("fine", 1)
        tx.remove_token("nobody")
        tx.set_variable("", 1)
        tx.state(well.state.globals).set("g", 1)
    assert [problem.where for problem in caught.value.errors] == ["change 2 (remove_token)", "change 3 (set_variable)"]
    assert well.load("run") == before
    assert well.load("run").revision == 0
    assert well.state.globals.all() == {}


def test_explicit_commit_and_rollback(well: Stepwell) -> None:
    well.create("run")
    rolled_back = well.transaction("run")
    rolled_back.set_variable("a", 1)
    rolled_back.rollback()
    rolled_back.set_variable("a", 2)
    with pytest.raises(InvalidInput, match="was rolled back, and nothing of it is written; begin another"):
        rolled_back.commit()
    tx = well.transaction("run")
    tx.set_variable("b", 2)
    receipt = tx.commit()
    assert tx.receipt == receipt
    assert well.load("run").variables == {"b": 2}
    with pytest.raises(InvalidInput, match="begin another"):
        tx.commit()


def test_rolled_back_transaction_of_state_takes_no_commit(well: Stepwell) -> None:
    with well.state.transaction() as tx:
        tx.state(well.state.globals).set("k", 1)
        tx.rollback()
    tx.state(well.state.globals).set("k", 2)
    with pytest.raises(InvalidInput, match="was rolled back"):
        tx.commit()
    assert well.state.globals.all() == {}


def test_rollback_inside_the_block_commits_nothing(well: Stepwell) -> None:
    well.create("run")
    with well.transaction("run") as tx:
        tx.set_variable("a", 1)
        tx.rollback()
    assert tx.receipt is None
    assert well.load("run").revision == 0
    with pytest.raises(InvalidInput, match="rolled back"), well.transaction("run") as tx:  # noqa: PT012 - leaving raises
        tx.rollback()
        tx.set_variable("b", 2)
    assert well.load("run").variables == {}


def test_context_update_has_the_limit_of_set_context(well: Stepwell) -> None:
    most = Limits().value_bytes
    context = {"a": "x" * (most // 2), "b": "x" * (most // 2)}
    well.create("run", context={"a": context["a"]})
    for change in (lambda tx: tx.set_context(context), lambda tx: tx.update_context(lambda old: {**old, "b": context["b"]})):
        with pytest.raises(LimitExceeded, match="the context"), well.transaction("run") as tx:
            change(tx)
    assert well.load("run").context == {"a": context["a"]}
    assert well.load("run").revision == 0


def test_commit_inside_the_block_is_not_repeated_on_leaving(well: Stepwell) -> None:
    well.create("run")
    with well.transaction("run") as tx:
        tx.set_variable("a", 1)
        receipt = tx.commit()
    assert tx.receipt == receipt
    assert well.load("run").revision == 1


def test_refused_commit_leaves_the_transaction_open(well: Stepwell) -> None:
    well.create("run")
    tx = well.transaction("run")
    tx.remove_token("missing")
    with pytest.raises(ValidationFailed):
        tx.commit()
    with pytest.raises(ValidationFailed):
        tx.commit()
    tx.rollback()
    with well.transaction("run") as corrected:
        corrected.set_variable("a", 1)
    assert corrected.receipt.revision == 1


def test_nothing_is_visible_before_the_commit(well: Stepwell) -> None:
    well.create("run")
    with well.transaction("run") as tx:
        tx.set_variable("a", 1)
        tx.state(well.state.globals).set("g", 1)
        assert well.load("run").variables == {}
        assert not well.state.globals.exists("g")
    assert well.load("run").variables == {"a": 1}


def test_writer_that_is_late_gets_a_conflict(well: Stepwell) -> None:
    """T05."""
    well.create("run")
    with pytest.raises(Conflict) as caught, well.transaction("run") as late:  # noqa: PT012 - leaving the block is what raises
        late.set_variable("by", "late")
        with well.transaction("run") as first:
            first.set_variable("by", "first")
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    assert "begin again" in str(caught.value)
    assert well.load("run").variables == {"by": "first"}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("how", ["begun", "entered"])
def test_what_was_begun_is_late_if_another_well_was_first(open_well: OpenWell, url: str, how: str) -> None:
    """T05: whoever looks at an execution after the beginning must not be overtaken."""
    mine, other = open_well(url), open_well(url)
    mine.create("run")
    late = mine.transaction("run")
    late.begin() if how == "begun" else late.__enter__()
    _set(other, "by", "other")
    late.set_variable("by", "late")
    with pytest.raises(Conflict):
        late.commit()
    assert mine.load("run").variables == {"by": "other"}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_commit_that_was_not_begun_follows_the_newest_whatever_is_at_hand(open_well: OpenWell, url: str) -> None:
    """Two wells in turn: neither has what the other one wrote, until it is told."""
    wells = open_well(url), open_well(url)
    wells[0].create("run")
    for number in range(6):
        assert _set(wells[number % 2], f"v{number}", number) == number + 1
    assert wells[0].load("run").variables == {f"v{number}": number for number in range(6)}
    assert wells[1].verify("run").ok


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_commit_that_was_not_begun_is_refused_by_the_newest_state_alone(open_well: OpenWell, url: str) -> None:
    """A change that is invalid for the cached state is validated again on the newest one; an invalid one stays refused."""
    mine, other = open_well(url), open_well(url)
    mine.create("run")
    with other.transaction("run") as tx:
        tx.record_step(step("paid", 1))
    again = mine.transaction("run")
    again.record_step(step("paid", 2))
    with pytest.raises(ValidationFailed):
        again.commit()
    with other.transaction("run") as tx:
        tx.add_token("t", node="here")
    known = mine.transaction("run")
    known.remove_token("t")  # of which the state at hand knows nothing
    assert known.commit().revision == 3
    assert mine.load("run").steps["paid"].output == 1


def test_commit_that_was_not_begun_asks_the_store_nothing(open_well: OpenWell, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one write: a question before it would cost a round trip more."""
    well = open_well(url)
    well.create("run")
    asked: list[str] = []
    for name in ("head_digests", "load", "head"):
        monkeypatch.setattr(store_under(well), name, lambda *_, name=name, **__: asked.append(name))
    assert _set(well, "x", 1) == 1
    assert asked == []


def _set(well: Stepwell, name: str, value: int) -> int:
    """Set a variable without looking; the revision that came of it."""
    tx = well.transaction("run")
    tx.set_variable(name, value)
    return tx.commit().revision


def test_exactly_one_of_racing_writers_wins(open_well: OpenWell, url: str) -> None:
    """T05."""
    well = open_well(url)
    well.create("run")
    for turn in range(10):
        barrier = threading.Barrier(4)

        def write(number: int, turn: int = turn, barrier: threading.Barrier = barrier) -> str:
            with well.transaction("run") as tx:
                tx.set_variable("winner", [turn, number])
                barrier.wait(60)
            return "won"

        def outcome(number: int) -> str:
            try:
                return write(number)
            except Conflict:
                return "lost"

        with ThreadPoolExecutor(4) as pool:
            outcomes = sorted(pool.map(outcome, range(4)))
        assert outcomes == ["lost", "lost", "lost", "won"]
        assert well.load("run").revision == turn + 1
    assert well.verify("run").ok


def test_same_commit_id_lands_once_and_gives_back_its_first_receipt(well: Stepwell) -> None:
    """T01, T03: a retry after a lost reply."""
    first = well.create("run", commit_id="creation")
    assert well.create("run", commit_id="creation") == first
    receipts = []
    for _ in range(3):
        with well.transaction("run", commit_id="c1") as tx:
            tx.update_context(lambda context: {"n": context.get("n", 0) + 1})
        receipts.append(tx.receipt)
    assert receipts == [receipts[0]] * 3
    assert well.load("run").context == {"n": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda tx, well: tx.record_step(step("s", 1)),
        lambda tx, well: tx.set_trigger("t"),
        lambda tx, well: tx.add_token("t", node="n"),
        lambda tx, well: tx.set_status("CANCELLED"),
        lambda tx, well: tx.state(well.state.globals).set_if_absent("once", 1),
        lambda tx, well: tx.state(well.state.globals).compare_and_set("once", 1, revision=0),
        lambda tx, well: tx.state(well.state.globals).increment("count"),
    ],
    ids=["step", "trigger", "token", "status", "set_if_absent", "compare_and_set", "increment"],
)
def test_retry_of_what_can_only_be_done_once_gives_back_the_first_receipt(well: Stepwell, change: object) -> None:
    """T03, T07: the retry finds its own work done, and that is no refusal."""
    well.create("run")
    receipts = []
    for _ in range(2):
        with well.transaction("run", commit_id="c1") as tx:
            change(tx, well)
        receipts.append(tx.receipt)
    assert receipts[0] == receipts[1]
    assert well.load("run").revision == 1
    assert well.state.globals.get("count", 1) == 1


def test_retry_that_began_before_the_first_try_landed(well: Stepwell) -> None:
    """T03."""
    well.create("run")
    with well.transaction("run", commit_id="c1") as second:
        second.record_step(step("s"))
        with well.transaction("run", commit_id="c1") as first:
            first.record_step(step("s"))
    assert first.receipt == second.receipt


def test_step_is_recorded_once_across_transactions(well: Stepwell) -> None:
    """T07, I4."""
    well.create("run")
    with well.transaction("run") as tx:
        tx.record_step(step("s", "first"))
    with pytest.raises(AlreadyRecorded), well.transaction("run") as tx:
        tx.record_step(step("s", "second"))
    assert well.load("run").step("s").output == "first"
    with pytest.raises(NotFound):
        well.load("run").step("other")


def test_writes_to_state_land_with_the_commit_or_not_at_all(well: Stepwell) -> None:
    """C3."""
    well.create("run")
    counters = well.state.custom("counters")
    counters.set("text", "no number")
    with pytest.raises(InvalidInput), well.transaction("run") as tx:  # noqa: PT012 - leaving the block is what raises
        tx.set_variable("a", 1)
        tx.state(counters).increment("n")
        tx.state(counters).increment("text")
    assert counters.get("n") is None
    assert well.load("run").revision == 0
    with pytest.raises(Conflict), well.transaction("run") as tx:  # noqa: PT012 - leaving the block is what raises
        tx.set_variable("a", 1)
        tx.state(counters).set_if_absent("text", 1)
    assert well.load("run").revision == 0
    with well.transaction("run") as tx:
        tx.state(counters).increment("n", 2)
        tx.state(counters).delete("text")
        tx.state(well.state.globals).set("g", {"x": 1}, ttl=60)
        tx.state(well.state.globals).set_many({"h": 1, "i": 2})
    assert counters.all() == {"n": 2}
    assert well.state.globals.get_many(["g", "h", "i"]) == {"g": {"x": 1}, "h": 1, "i": 2}
    assert [mutation["op"]["op"] for mutation in tx.receipt.mutations] == ["increment", "delete", "put", "put", "put"]
    with pytest.raises(ValidationFailed) as refused, well.transaction("run") as tx:
        tx.state(counters).set_many({"a": 1, "b": object(), "c": object()})  # pyright: ignore[reportArgumentType] - that is the point
    assert len(refused.value.errors) == 2
    assert counters.all() == {"n": 2}


def test_fence_that_is_not_the_current_one_is_refused(well: Stepwell) -> None:
    """T06."""
    well.create("run")
    with pytest.raises(LeaseLost), well.transaction("run", fence=3) as tx:
        tx.set_variable("a", 1)
    with well.transaction("run", fence=0) as tx:
        tx.set_variable("a", 1)
    assert well.load("run").variables == {"a": 1}


def test_error_of_an_update_function_comes_through_and_nothing_is_written(well: Stepwell) -> None:
    well.create("run")
    with pytest.raises(ZeroDivisionError), well.transaction("run") as tx:  # noqa: PT012 - leaving the block is what raises
        tx.set_variable("a", 1)
        tx.update_context(lambda context: 1 // 0)
    assert well.load("run").revision == 0
    with well.transaction("run") as tx:
        tx.set_variable("a", 2)
    assert well.load("run").variables == {"a": 2}


def test_commit_of_nothing_is_a_commit(well: Stepwell) -> None:
    well.create("run")
    receipt = well.transaction("run").commit()
    assert (receipt.revision, receipt.mutations, receipt.before) == (1, (), receipt.after)
    assert well.verify("run").ok


def test_id_is_never_used_twice(well: Stepwell) -> None:
    well.create("run", context={"by": "first"})
    with pytest.raises(AlreadyExists, match="'run' exists already") as caught:
        well.create("run", context={"by": "second"})
    assert caught.value.code == "SW-202"
    assert well.load("run").context == {"by": "first"}


def test_state_of_an_execution_as_a_data_store(well: Stepwell) -> None:
    well.create("run", workspace="acme")
    with well.transaction("run") as tx:
        tx.set_variable("a", [1])
        tx.record_step(step("s", 1))
    data = DataStore.of(well.load("run"))
    assert data.metadata.workspace_id == "acme"
    assert data.get_all_variables() == {"a": [1]}
    with pytest.raises(InvalidInput):
        data.set_variable("a", 2)


def test_what_was_loaded_does_not_follow_and_cannot_reach_the_store(well: Stepwell) -> None:
    well.create("run", context={"list": [1]})
    state = well.load("run")
    state.context["list"].append(2)
    with well.transaction("run") as tx:
        tx.set_variable("a", 1)
    assert state.variables == {}
    assert state.revision == 0
    assert well.load("run").context == {"list": [1]}


@pytest.mark.parametrize("trace_id", ["", "0" * 32, "A" * 32, "1" * 31, b"1" * 32, 7])
def test_trace_id_that_no_traceparent_can_have_is_refused(well: Stepwell, trace_id: str) -> None:
    with pytest.raises(InvalidInput, match="trace_id must be 32 hexadecimal digits"):
        well.create("run", trace_id=trace_id)
    assert well.executions.list() == []


def test_execution_belongs_to_the_trace_that_it_was_created_with(well: Stepwell) -> None:
    well.create("run", trace_id="7" * 32)
    assert well.load("run").identity.trace_id == "7" * 32


def test_digests_are_the_same_on_every_store_and_face(tmp_path: object) -> None:
    """T51: the same commits, the same digests, wherever they are kept."""
    found = []
    for url in ("memory://", f"sqlite:///{tmp_path}/a.db"):
        with Stepwell(url, clock=FakeClock(), signing_key=b"k") as well:
            well.create("run", context={"b": 1, "a": -0.0}, commit_id="0", trace_id="1" * 32)
            with well.transaction("run", commit_id="1") as tx:
                tx.record_step(step("s", {"z": "é", "a": [1.0, 2**53 + 1, "\0"]}))
                tx.state(well.state.globals).set("g", 1)
            found.append((well.receipts("run"), well.snapshot("run"), well.export("run"), well.verify("run")))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["update_context", "update_token"])
@pytest.mark.parametrize("change", [{"paid": True}, None, 7])
def test_what_is_no_function_is_refused_by_name_with_the_other_faults(well: Stepwell, name: str, change: object) -> None:
    well.create("run")
    tx = well.transaction("run")
    tx.set_variable("", 1)
    getattr(tx, name)(*(("t",) if name == "update_token" else ()), change)
    with pytest.raises(ValidationFailed, match=f"{name} takes a function") as caught:
        tx.commit()
    assert [problem.where for problem in caught.value.errors] == ["change 1 (set_variable)", f"change 2 ({name})"]
    assert well.load("run").revision == 0
