"""Scoped state: the rules of TTL, compare-and-set, counters and limits, which every store shares."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.entry_rows import OTHER, Rows, S, put

from stepwell.errors import Conflict, InvalidInput, StepwellError
from stepwell.model.scoped_operations import (
    ABSENT,
    Clear,
    Copy,
    Delete,
    Entry,
    Increment,
    ScopeTotals,
    StateChange,
    StateOp,
    StoredEntry,
    Touch,
    prefix_end,
)

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


def test_put_sets_and_takes_the_next_revision() -> None:
    rows = Rows()
    (first,), (second,) = rows.do(put("a")), rows.do(put("a", 2))
    assert (first.revision, second.revision) == (1, 2)
    assert rows.live("a") == 2
    assert rows.totals[S] == ScopeTotals(2, 1, 2)


def test_revision_of_a_scope_only_grows() -> None:
    """A key that was deleted and set again never shows a revision it had before."""
    rows = Rows()
    rows.do(put("a"))
    rows.do(Delete(S, "a"))
    (entry,) = rows.do(put("a"))
    assert entry.revision == 3
    rows.do(Clear(S))
    (entry,) = rows.do(put("a"))
    assert entry.revision == 5


def test_compare_and_set() -> None:
    rows = Rows()
    rows.do(put("a"))
    with pytest.raises(Conflict, match="was expected at revision 9 but is at revision 1") as caught:
        rows.do(put("a", 2, expected=9))
    assert (caught.value.expected, caught.value.actual) == (9, 1)
    with pytest.raises(Conflict, match="was expected not to be there but is at revision 1"):
        rows.do(put("a", 2, expected=ABSENT))
    with pytest.raises(Conflict, match="was expected at revision 1 but is not there"):
        rows.do(put("b", 2, expected=1))
    rows.do(put("a", 2, expected=1), put("b", expected=ABSENT))
    assert (rows.live("a"), rows.live("b")) == (2, 1)


def test_set_if_absent_leaves_what_is_there() -> None:
    rows = Rows()
    assert rows.do(put("a", expected=ABSENT, strict=False))[0] is not None
    assert rows.do(put("a", 2, expected=ABSENT, strict=False)) == [None]
    assert rows.live("a") == 1
    assert rows.totals[S].revision == 1


def test_expired_or_deleted_counts_as_absent() -> None:
    """C4: expired is absent at once."""
    rows = Rows()
    rows.do(put("a", ttl_ms=10), put("b"), Delete(S, "b"))
    rows.now_ms += 10
    rows.do(put("a", 2, expected=ABSENT), put("b", 2, expected=ABSENT))
    assert (rows.live("a"), rows.live("b")) == (2, 2)


def test_refused_operation_refuses_the_whole_list() -> None:
    rows = Rows()
    rows.do(put("n", "text"))
    for bad in (put("n", expected=9), Delete(S, "n", expected=9), Increment(S, "n")):
        assert isinstance(rows.resolve([put("a"), bad, put("b")]), StepwellError)
    assert rows.live("a") is None


def test_delete_says_whether_it_was_there_and_leaves_a_tombstone() -> None:
    rows = Rows()
    rows.do(put("a"))
    assert rows.do(Delete(S, "a"), Delete(S, "a"), Delete(S, "never")) == [True, False, False]
    assert rows.entries[S, "a"] == StoredEntry(None, 2, rows.now_ms)
    assert (S, "never") not in rows.entries
    assert rows.totals[S] == ScopeTotals(2, 0, 0)


def test_delete_at_a_revision() -> None:
    rows = Rows()
    rows.do(put("a"))
    with pytest.raises(Conflict):
        rows.do(Delete(S, "a", expected=7))
    assert rows.do(Delete(S, "a", expected=1)) == [True]
    assert rows.do(Delete(S, "a", expected=ABSENT)) == [False]


def test_deleting_an_expired_key_gives_its_space_back() -> None:
    rows = Rows()
    rows.do(put("a", ttl_ms=5))
    rows.now_ms += 5
    assert rows.do(Delete(S, "a")) == [False]
    assert rows.totals[S].keys == 0


# Counters.


def test_increment_starts_at_zero_and_keeps_the_kind_of_number() -> None:
    rows = Rows()
    assert rows.do(Increment(S, "n"), Increment(S, "n", 4), Increment(S, "n", -2)) == [1, 5, 3]
    assert rows.do(Increment(S, "n", 0.5)) == [3.5]
    assert rows.live("n") == 3.5


@pytest.mark.parametrize("value", ["1", True, None, [1], {}])
def test_only_numbers_are_incremented(value: object) -> None:
    rows = Rows()
    rows.do(put("n", value))
    with pytest.raises(InvalidInput, match="'n' holds no number"):
        rows.do(Increment(S, "n"))
    assert rows.live("n") == value


@pytest.mark.parametrize(("start", "by"), [(2**63 - 1, 1), (-(2**63), -1), (1e308, 1e308), (2**63 - 1, 2**63 - 1)])
def test_counter_stays_in_its_range(start: float, by: float) -> None:
    rows = Rows()
    rows.do(put("n", start))
    with pytest.raises(InvalidInput, match="would leave the range"):
        rows.do(Increment(S, "n", by))
    assert rows.live("n") == start


# TTL.


def test_end_is_counted_from_now_and_is_exclusive() -> None:
    """C4."""
    rows = Rows()
    (entry,) = rows.do(put("a", ttl_ms=100))
    assert entry.expires_ms == 1_100
    rows.now_ms = 1_099
    assert rows.live("a") == 1
    rows.now_ms = 1_100
    assert rows.live("a") is None


def test_setting_again_without_a_ttl_takes_it_away() -> None:
    rows = Rows()
    rows.do(put("a", ttl_ms=100))
    rows.do(put("a", 2))
    rows.now_ms += 1_000
    assert rows.live("a") == 2


def test_touch_starts_a_sliding_ttl_anew_and_leaves_the_revision() -> None:
    """A reader must not break somebody's compare-and-set."""
    rows = Rows()
    rows.do(put("a", ttl_ms=100, sliding=True), put("fixed", ttl_ms=100))
    rows.now_ms += 60
    assert rows.do(Touch(S, "a"), Touch(S, "fixed"), Touch(S, "never")) == [True, False, False]
    assert rows.entries[S, "a"].expires_ms == 1_160
    assert rows.entries[S, "a"].revision == 1
    assert rows.entries[S, "fixed"].expires_ms == 1_100
    assert rows.totals[S].revision == 2
    rows.now_ms += 100
    assert rows.do(Touch(S, "a")) == [False]


@pytest.mark.parametrize("ttl_ms", [50, 1_000])
def test_touch_can_give_a_sliding_ttl_another_length(ttl_ms: int) -> None:
    rows = Rows()
    rows.do(put("a", ttl_ms=100, sliding=True), put("fixed", ttl_ms=100))
    assert rows.do(Touch(S, "a", ttl_ms), Touch(S, "fixed", ttl_ms)) == [True, False]
    assert rows.entries[S, "a"] == StoredEntry(b"1", 1, 1_000 + ttl_ms, ttl_ms, sliding=True)
    rows.now_ms += 10
    rows.do(Touch(S, "a"))
    assert rows.entries[S, "a"].expires_ms == 1_010 + ttl_ms, "the next one goes by the new length"
    assert rows.entries[S, "fixed"].expires_ms == 1_100


def test_increment_keeps_a_fixed_end_and_renews_a_sliding_one() -> None:
    rows = Rows()
    rows.do(put("fixed", ttl_ms=100), put("sliding", ttl_ms=100, sliding=True), put("none"))
    rows.now_ms += 40
    rows.do(Increment(S, "fixed"), Increment(S, "sliding"), Increment(S, "none"))
    assert rows.entries[S, "fixed"].expires_ms == 1_100
    assert rows.entries[S, "sliding"].expires_ms == 1_140
    assert rows.entries[S, "none"].expires_ms is None


def test_expired_counter_starts_again() -> None:
    rows = Rows()
    rows.do(put("n", 41, ttl_ms=10))
    rows.now_ms += 10
    assert rows.do(Increment(S, "n")) == [1]
    assert rows.entries[S, "n"].expires_ms is None


# Copy and move.


def test_copy_takes_value_and_ttl_along() -> None:
    rows = Rows()
    rows.do(put("a", "x", ttl_ms=100), put("s", "y", ttl_ms=100, sliding=True))
    rows.now_ms += 30
    assert rows.do(Copy(S, "a", OTHER, "b"), Copy(S, "s", S, "t"), Copy(S, "never", S, "z")) == [True, True, False]
    assert (rows.live("b", OTHER), rows.live("a"), rows.live("t"), rows.live("z")) == ("x", "x", "y", None)
    assert rows.entries[OTHER, "b"].expires_ms == 1_100
    assert (rows.entries[S, "t"].expires_ms, rows.entries[S, "t"].sliding) == (1_130, True)
    rows.check_totals()


def test_move_leaves_nothing_behind_but_never_loses_what_it_moves() -> None:
    rows = Rows()
    rows.do(put("a", "x"))
    assert rows.do(Copy(S, "a", OTHER, "a", move=True)) == [True]
    assert (rows.live("a"), rows.live("a", OTHER)) == (None, "x")
    assert rows.do(Copy(OTHER, "a", OTHER, "a", move=True)) == [True]
    assert rows.live("a", OTHER) == "x"
    rows.check_totals()


# Clear.


def test_clear_empties_one_scope_and_counts_what_was_there() -> None:
    rows = Rows()
    rows.do(put("a"), put("b"), Delete(S, "b"), put("c"), put("a", scope=OTHER))
    assert rows.do(Clear(S)) == [2]
    assert (rows.live("a"), rows.live("c"), rows.live("a", OTHER)) == (None, None, 1)
    rows.check_totals()


def test_clear_inside_a_list_takes_what_came_before_and_leaves_what_comes_after() -> None:
    rows = Rows()
    rows.do(put("old"))
    answers = rows.do(put("before"), Clear(S), put("after"), put("old", 2, expected=ABSENT), Increment(S, "n"))
    assert answers[1] == 2
    assert (rows.live("before"), rows.live("after"), rows.live("old"), rows.live("n")) == (None, 1, 2, 1)
    revisions = [row.revision for row in rows.entries.values()]
    assert len(set(revisions)) == len(revisions)
    rows.check_totals()


# Prefixes.


@given(text, text)
@settings(max_examples=500, deadline=None)
def test_a_key_has_a_prefix_exactly_if_it_is_in_the_range(prefix: str, key: str) -> None:
    """T46: prefix scans by range, never by pattern."""
    end = prefix_end(prefix)
    for candidate in (key, prefix + key):
        assert candidate.startswith(prefix) == (candidate >= prefix and (end is None or candidate < end))
        assert end is None or (candidate < end) == (candidate.encode() < end.encode())


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("", None),
        ("a", "b"),
        ("ab%", "ab&"),
        ("a\ud7ff", "a\ue000"),
        (chr(sys.maxunicode), None),
        ("a" + chr(sys.maxunicode), "b"),
        ("_", "`"),
    ],
)
def test_end_of_a_prefix(prefix: str, end: str | None) -> None:
    assert prefix_end(prefix) == end


# What users see.


def test_entry_says_value_revision_and_end() -> None:
    stored = StoredEntry(b'{"a":1}', 3, 1_767_225_600_000)
    assert Entry.of(stored) == Entry({"a": 1}, 3, datetime(2026, 1, 1, tzinfo=UTC))
    assert Entry.of(StoredEntry(b"null", 1)) == Entry(None, 1, None)


def test_change_tells_a_deletion_from_none() -> None:
    assert StateChange.of("k", StoredEntry(b"null", 2)) == StateChange("k", None, 2, is_deleted=False)
    assert StateChange.of("k", StoredEntry(None, 3, 5)) == StateChange("k", None, 3, is_deleted=True)


def test_operations_come_back_from_their_stored_form() -> None:
    every = [put("a", [1], ttl_ms=5, sliding=True, expected=0, strict=False), Delete(S, "a", 3), Increment(S, "a", 1.5),
             Copy(S, "a", OTHER, "b", move=True), Touch(S, "a"), Clear(S)]  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(every), type=list[StateOp]) == every
