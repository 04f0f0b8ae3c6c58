"""The opening of a run comes to what its mutations come to, one after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.sample import LIMITS, metadata

from stepwell.errors import LimitExceeded, ValidationFailed
from stepwell.model.draft import Draft, Opening, opening_of
from stepwell.model.execution_state import State
from stepwell.model.limits import Limits
from stepwell.model.mutation import Mutation, SetStatus, SetTrigger, SetVariable
from stepwell.model.record import encode_plain_trigger, encode_record
from stepwell.model.validation import plan
from stepwell.model.value import canonical

ENDING = [SetStatus("COMPLETED")]


def opening(value: object = 1, execution_id: str = "order-7") -> Opening:
    return opening_of(encode_record(metadata(execution_id, "acme")), encode_plain_trigger(canonical(value)))


def came_to(draft: Draft) -> tuple[object, ...]:
    state = draft.apply()
    tree = state.tree.scopes, state.tree.tokens
    return state.sections, state.digest, state.size, draft.status, draft.is_over, draft.mutations, tree


@given(value=st.integers() | st.text(st.characters(codec="utf-8")), batch=st.sampled_from([[], ENDING]))
def test_opening_comes_to_what_its_mutations_come_to(value: object, batch: list[Mutation]) -> None:
    begun = opening(str(value))
    at_once = plan(State(), batch, LIMITS, begun)
    one_by_one = plan(State(), [*begun.mutations, *batch], LIMITS)
    assert came_to(at_once) == came_to(one_by_one)


def test_opening_is_validated_like_any_batch_where_something_is_already() -> None:
    state = plan(State(), [], LIMITS, opening()).apply()
    state.revision = 0
    with pytest.raises(ValidationFailed, match="trigger is recorded"):
        plan(state, [], LIMITS, opening())


def test_what_follows_an_opening_is_validated() -> None:
    with pytest.raises(ValidationFailed, match="trigger is recorded"):
        plan(State(), [SetTrigger(opening().mutations[1].trigger)], LIMITS, opening())  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(LimitExceeded):
        plan(State(), [], Limits(execution_bytes=10), opening())


def test_drafts_do_not_share_their_openings() -> None:
    begun = opening()
    plan(State(), [SetVariable("a", canonical(1)), *ENDING], LIMITS, begun)  # pyright: ignore[reportArgumentType]
    assert ("variables", "a") not in begun.entries
    assert len(begun.mutations) == 3
