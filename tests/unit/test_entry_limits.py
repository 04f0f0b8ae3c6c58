"""Scoped state: its limits, and that the totals of a scope say what is there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.entry_rows import OTHER, Rows, S, put

from stepwell.errors import LimitExceeded
from stepwell.model.limits import Limits
from stepwell.model.scoped_operations import ABSENT, Clear, Copy, Delete, Increment, StateOp, StoredEntry, Touch


def test_number_of_keys_of_a_scope_is_limited() -> None:
    """C5, T44."""
    rows = Rows(Limits(scope_keys=2))
    rows.do(put("a"), put("b"))
    for op in (put("c"), Increment(S, "c"), Copy(S, "a", S, "c")):
        with pytest.raises(LimitExceeded, match=r"'custom/default/s' is 3, over the limit scope_keys=2") as caught:
            rows.do(op)
        assert caught.value.limit == "scope_keys"
    rows.do(put("a", 2), Delete(S, "b"), put("c"))
    rows.do(put("d", scope=OTHER))


def test_size_of_a_scope_is_limited_and_keys_count() -> None:
    """C5."""
    rows = Rows(Limits(scope_bytes=10))
    rows.do(put("abcd", 12345))
    with pytest.raises(LimitExceeded, match="scope_bytes=10"):
        rows.do(put("x", 1))
    rows.do(put("abcd", 123456))
    with pytest.raises(LimitExceeded, match="scope_bytes=10"):
        rows.do(put("abcd", 1234567))


def test_scope_over_a_limit_that_was_lowered_may_shrink_but_not_grow() -> None:
    rows = Rows()
    rows.do(*(put(f"k{number}", "x" * 10) for number in range(5)))
    rows.limits = Limits(scope_keys=2, scope_bytes=20)
    rows.do(put("k0", "y" * 10), Delete(S, "k1"))
    with pytest.raises(LimitExceeded):
        rows.do(put("k1"))


def test_full_scope_is_swept_of_what_has_expired_before_it_is_refused() -> None:
    rows = Rows(Limits(scope_keys=2))
    rows.do(put("a", ttl_ms=10), put("b"))
    rows.now_ms += 10
    assert rows.do(put("c"), Delete(S, "never")) == [StoredEntry(b"1", 4), False]
    assert rows.entries[S, "a"].data is None
    rows.check_totals()
    with pytest.raises(LimitExceeded):
        rows.do(put("d"))


def test_full_scope_that_is_copied_to_is_swept_too() -> None:
    rows = Rows(Limits(scope_keys=1))
    rows.do(put("old", ttl_ms=10, scope=OTHER), put("a"))
    rows.now_ms += 10
    assert rows.do(Copy(S, "a", OTHER, "b")) == [True]
    assert rows.live("b", OTHER) == 1


keys = st.sampled_from("abc")
ops = st.one_of(
    st.builds(lambda key, value, ttl, slide: put(key, value, ttl_ms=ttl, sliding=slide and ttl is not None),
              keys, st.integers(0, 10**6), st.none() | st.just(20), st.booleans()),
    st.builds(lambda key: put(key, 7, expected=ABSENT, strict=False), keys),
    st.builds(Delete, st.just(S), keys),
    st.builds(Increment, st.just(S), keys, st.integers(-5, 5)),
    st.builds(Copy, st.just(S), keys, st.sampled_from([S, OTHER]), keys, st.booleans()),
    st.builds(Touch, st.just(S), keys),
    st.just(Clear(S)),
)  # fmt: skip


@given(st.lists(st.tuples(st.lists(ops, min_size=1, max_size=5), st.integers(0, 15)), max_size=8))
@settings(max_examples=150, deadline=None)
def test_a_list_does_what_its_operations_do_one_by_one(batches: list[tuple[list[StateOp], int]]) -> None:
    """And the totals always say what is there."""
    whole, single = Rows(), Rows()
    for batch, pause in batches:
        answers = whole.do(*batch)
        assert [single.do(op)[0] for op in batch] == answers
        assert {address: row for address, row in whole.entries.items() if row.data} == {
            address: row for address, row in single.entries.items() if row.data
        }
        assert whole.totals == single.totals
        whole.check_totals()
        whole.now_ms += pause
        single.now_ms += pause
