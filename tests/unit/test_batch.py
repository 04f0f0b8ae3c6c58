"""A batch as a whole: validated step by step, every fault told, and nothing changed unless all of it can be."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from tests.unit.sample import Chain, draft_of, refused, step, story
from tests.unit.test_cancel_scope import nested

from stepwell.errors import AlreadyRecorded, InvalidInput, LimitExceeded, ValidationFailed
from stepwell.model.execution_state import State
from stepwell.model.limits import Limits
from stepwell.model.mutation import (
    EnterScope,
    Mutation,
    SetContext,
    SetMetadata,
    SetStatus,
    decode_mutations,
    encode_mutations,
)
from stepwell.model.record import (
    LoopContext,
    StepOutput,
    Token,
)
from stepwell.model.scope import Scope
from stepwell.model.status import Status

# Finished executions.


@pytest.mark.parametrize("end", ["COMPLETED", "PARTIALLY_COMPLETED", "FAILED", "CANCELLED"])
def test_finished_execution_changes_no_more(end: str) -> None:
    chain = Chain()
    chain.change(lambda tx: (tx.set_status("RUNNING"), tx.add_token("t", node="n"), tx.enter_scope("s")))
    chain.change(lambda tx: tx.set_status(end))
    for change in (
        lambda tx: tx.set_context({}),
        lambda tx: tx.update_context(lambda c: c),
        lambda tx: tx.set_variable("a", 1),
        lambda tx: tx.set_trigger(1),
        lambda tx: tx.record_step(step()),
        lambda tx: tx.set_loop_context(LoopContext("l", 0, None, 1)),
        lambda tx: tx.add_token("u", node="n"),
        lambda tx: tx.remove_token("t"),
        lambda tx: tx.update_token("t", lambda token: token),
        lambda tx: tx.enter_scope("u"),
        lambda tx: tx.exit_scope("s"),
        lambda tx: tx.cancel_scope("s"),
        lambda tx: tx.increment_step_count(),
        lambda tx: tx.set_metadata({}),
        lambda tx: tx.state(Scope.globals()).set("a", 1),
    ):
        assert f"is {end} and changes no more" in str(refused(chain, change))


def test_last_word_and_the_end_may_be_in_one_batch_but_nothing_after() -> None:
    chain = Chain()
    chain.change(lambda tx: (tx.set_status("RUNNING"), tx.set_variable("a", 1), tx.set_status("COMPLETED")))
    other = Chain()
    refused(other, lambda tx: (tx.set_status("RUNNING"), tx.set_status("COMPLETED"), tx.set_variable("a", 1)))


def test_failed_execution_can_be_retried_and_then_changes_again() -> None:
    chain = Chain()
    chain.change(lambda tx: tx.set_status("FAILED"))
    chain.change(lambda tx: (tx.set_status("PENDING"), tx.set_variable("a", 1)))
    assert chain.view.status is Status.PENDING


# The batch as a whole.


def test_validation_follows_the_batch_step_by_step() -> None:
    """T04."""
    chain = Chain()
    chain.change(lambda tx: tx.add_token("t", node="n"))
    refused(chain, lambda tx: (tx.add_token("u", node="n"), tx.add_token("u", node="n")))
    refused(chain, lambda tx: (tx.remove_token("t"), tx.update_token("t", lambda token: token)))
    refused(chain, lambda tx: (tx.remove_token("t"), tx.remove_token("t")))
    refused(chain, lambda tx: (tx.enter_scope("s"), tx.cancel_scope("s"), tx.add_token("u", node="n", scope="s")))
    chain.change(lambda tx: (tx.remove_token("t"), tx.add_token("t", node="m")))
    assert chain.view.tokens == {"t": Token("t", "m")}


def test_every_fault_of_a_batch_is_reported_with_its_place() -> None:
    chain = Chain()
    error = refused(
        chain,
        lambda tx: (
            tx.set_variable("", 1),
            tx.set_variable("fine", 1),
            tx.set_variable("v", float("nan")),
            tx.remove_token("t"),
            tx.set_status("COMPLETED"),
            tx.update_context(lambda _: None),
            tx.record_step("no step"),
            tx.state(Scope.globals()).set("k", object()),
        ),
    )
    assert [problem.where for problem in error.errors] == [
        "change 1 (set_variable)",
        "change 3 (set_variable)",
        "change 4 (remove_token)",
        "change 5 (set_status)",
        "change 6 (update_context)",
        "change 7 (record_step)",
        "change 8 (state)",
    ]
    assert all(problem.code.startswith("SW-1") and problem.message for problem in error.errors)
    assert "change 4 (remove_token): there is no token 't'; add it first" in str(error)


def test_error_has_the_class_of_its_faults_if_they_are_of_one_kind() -> None:
    chain = Chain()
    chain.change(lambda tx: (tx.set_trigger(1), tx.record_step(step("a"))))
    assert type(refused(chain, lambda tx: (tx.set_trigger(2), tx.record_step(step("a"))))) is AlreadyRecorded
    assert type(refused(chain, lambda tx: (tx.set_variable("", 1), tx.set_context(5)))) is InvalidInput
    assert type(refused(chain, lambda tx: tx.set_variable("v", "x" * 300_000))) is LimitExceeded
    assert type(refused(chain, lambda tx: (tx.set_trigger(2), tx.set_context(5)))) is ValidationFailed


def test_number_of_mutations_is_limited() -> None:
    limits = Limits(commit_mutations=2)
    state = Chain().state
    draft_of(state, lambda tx: (tx.set_variable("a", 1), tx.set_variable("b", 1)), limits)
    with pytest.raises(LimitExceeded, match="commit_mutations=2"):
        draft_of(state, lambda tx: [tx.set_variable(name, 1) for name in "abc"], limits)


def test_size_of_the_state_is_limited_but_it_may_always_shrink() -> None:
    """T43."""
    chain = Chain()
    chain.set("a", "x" * 1000)
    limits = Limits(execution_bytes=500)
    with pytest.raises(LimitExceeded, match="execution_bytes=500"):
        draft_of(chain.state, lambda tx: tx.set_variable("b", "x" * 10), limits)
    assert draft_of(chain.state, lambda tx: tx.set_variable("a", "x" * 900), limits).size < chain.state.size


def test_a_draft_that_is_not_applied_changes_nothing() -> None:
    chain = Chain()
    before = chain.view
    draft_of(chain.state, lambda tx: (tx.set_variable("a", 1), tx.enter_scope("s"), tx.set_status("RUNNING")))
    assert chain.view == before
    assert chain.state.digest == before.state_digest


def test_stored_mutations_are_pure_data_that_comes_back() -> None:
    for receipt in story().receipts:
        mutations = decode_mutations(receipt.body)
        assert encode_mutations(mutations) == receipt.body
        assert all(isinstance(mutation, Mutation) for mutation in mutations)


def test_stored_mutations_are_held_to_the_rules_too() -> None:
    """Replay of a stored commit cannot rely on the checks of the buffer."""
    for mutation in (SetContext(msgspec.Raw(b"[]")), SetMetadata(msgspec.Raw(b"[]")), SetStatus("ROCKET"), EnterScope("")):
        with pytest.raises(InvalidInput):
            Chain().commit([mutation])


def test_unknown_mutation_is_refused() -> None:
    """T48."""
    with pytest.raises(msgspec.ValidationError):
        decode_mutations(b'[{"type":"launch_rocket"}]')


def test_a_change_in_place_of_what_was_read_reaches_nobody() -> None:
    chain = Chain(context={"a": [1]})
    chain.change(lambda tx: (tx.set_variable("v", [1]), tx.record_step(step("s", [1])), tx.add_token("t", node="n", value=[1])))
    view = chain.view
    view.context["a"].append(2)
    view.variables["v"].append(2)
    view.steps["s"].output.append(2)
    view.tokens["t"].value.append(2)
    view.entries()["variables"].clear()
    assert view == chain.view
    assert view.variables == {"v": [1]}


def test_state_built_from_entries_knows_its_tree() -> None:
    chain = nested()
    again = State.of(chain.state.copy_entries(), chain.state.revision, chain.state.receipt, None)
    assert again.digest == chain.state.digest
    assert again.size == chain.state.size
    draft = draft_of(again, lambda tx: tx.cancel_scope("a"))
    assert draft.digest == draft_of(chain.state, lambda tx: tx.cancel_scope("a")).digest


def test_times_are_kept_to_the_microsecond() -> None:
    at = datetime(2026, 3, 29, 1, 30, 0, 123457, tzinfo=UTC)
    chain = Chain()
    chain.change(lambda tx: tx.record_step(StepOutput("n", "a", "COMPLETED", None, at, 0)))
    assert chain.view.step("a").executed_at == at
