"""Scoped state: what each operation does, that a batch lands whole or not at all, and that revisions only grow."""

from __future__ import annotations

import msgspec
import pytest

from stepwell.contract.store import Store
from stepwell.errors import Conflict, InvalidInput, LimitExceeded, StateNewer
from stepwell.model.commit import StateBatch
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import (
    ABSENT,
    Clear,
    Copy,
    Delete,
    Increment,
    Merge,
    Migrate,
    Put,
    ScopeTotals,
    StateOp,
    StoredEntry,
    Touch,
)
from stepwell.model.value import Value, canonical
from stepwell.testing.conformance.samples import SCOPE, content, put, refused, write, write_state

Raw = msgspec.Raw
OTHER = Scope.custom("other", "acme").path


def entry(store: Store, key: str, scope: str = SCOPE) -> StoredEntry:
    """The live entry of a key, which must be there."""
    return store.entries(scope, [key])[key]


def test_put_gives_the_entry_that_readers_see(store: Store) -> None:
    [written] = write_state(store, put("k", {"a": [1]}))
    assert written == StoredEntry(b'{"a":[1]}', 1)
    assert store.entries(SCOPE, ["k"]) == {"k": written}
    assert store.scan(SCOPE) == [("k", written)]


def test_put_replaces_what_was_there(store: Store) -> None:
    write_state(store, put("k", "old"))
    write_state(store, put("k", "new"))
    assert content(store) == {"k": "new"}
    assert entry(store, "k").revision == 2


def test_entries_gives_only_the_keys_that_were_asked_for_and_are_there(store: Store) -> None:
    write_state(store, put("a"), put("b"), put("c"))
    assert store.entries(SCOPE, ["c", "missing", "a"]).keys() == {"a", "c"}
    assert store.entries(SCOPE, []) == {}
    assert store.entries(OTHER, ["a"]) == {}


def test_put_of_an_absent_key_must_not_find_one(store: Store) -> None:
    write_state(store, put("k", 1, expected=ABSENT))
    conflict = refused(write(store, StateBatch((put("k", 2, expected=ABSENT),))), Conflict)
    assert (conflict.expected, conflict.actual) == (ABSENT, 1)
    assert content(store) == {"k": 1}


def test_put_at_a_revision_must_find_that_one(store: Store) -> None:
    write_state(store, put("k", 1))
    write_state(store, put("k", 2, expected=1))
    conflict = refused(write(store, StateBatch((put("k", 3, expected=1),))), Conflict)
    assert (conflict.expected, conflict.actual) == (1, 2)
    assert content(store) == {"k": 2}


def test_put_at_a_revision_of_a_key_that_is_not_there_is_a_conflict(store: Store) -> None:
    assert refused(write(store, StateBatch((put("k", expected=3),))), Conflict).actual == ABSENT


def test_put_that_is_not_strict_leaves_the_key_as_it_is(store: Store) -> None:
    write_state(store, put("k", 1))
    assert write_state(store, put("k", 2, expected=ABSENT, strict=False), put("other"))[0] is None
    assert content(store) == {"k": 1, "other": 1}
    assert store.totals(SCOPE).revision == 2


def test_delete_says_whether_there_was_anything(store: Store) -> None:
    write_state(store, put("k"))
    assert write_state(store, Delete(SCOPE, "k"), Delete(SCOPE, "k"), Delete(SCOPE, "never")) == [True, False, False]
    assert content(store) == {}


def test_delete_at_a_revision_must_find_that_one(store: Store) -> None:
    write_state(store, put("k"))
    refused(write(store, StateBatch((Delete(SCOPE, "k", expected=2),))), Conflict)
    refused(write(store, StateBatch((Delete(SCOPE, "never", expected=1),))), Conflict)
    assert write_state(store, Delete(SCOPE, "k", expected=1)) == [True]


def test_deleting_nothing_changes_nothing(store: Store) -> None:
    write_state(store, Delete(SCOPE, "never"))
    assert store.totals(SCOPE) == ScopeTotals()
    assert store.changes(SCOPE, 0) == []


@pytest.mark.parametrize(
    ("before", "by", "after"),
    [
        (None, 1, 1),
        (5, -7, -2),
        (2**53, 1, 2**53 + 1),
        (2**63 - 2, 1, 2**63 - 1),
        (-(2**63) + 1, -1, -(2**63)),
        (1, 0.5, 1.5),
        (0.1, 0.2, 0.30000000000000004),
        (1.0, 1, 2.0),
        (1e308, 7e307, 1.7e308),
    ],
)
def test_increment_is_exact(store: Store, before: Value, by: float, after: float) -> None:
    """T45: no store may take a counter through a float, or a float through a decimal."""
    if before is not None:
        write_state(store, put("n", before))
    [answer] = write_state(store, Increment(SCOPE, "n", by))
    assert (answer, type(answer)) == (after, type(after))
    [stored] = content(store).values()
    assert (stored, type(stored)) == (after, type(after))


NO_RESULT = [("text", 1), (True, 1), ([1], 1), (None, 1), (2**63 - 1, 1), (-(2**63), -1), (1e308, 1e308)]


@pytest.mark.parametrize(("before", "by"), NO_RESULT)
def test_increment_that_has_no_result_is_refused(store: Store, before: Value, by: float) -> None:
    write_state(store, put("n", before))
    refused(write(store, StateBatch((put("other"), Increment(SCOPE, "n", by)))), InvalidInput)
    assert content(store) == {"n": before}


@pytest.mark.parametrize(
    ("how", "before", "given", "after"),
    [
        ("add", None, 5, 5),
        ("add", 2**53, 1, 2**53 + 1),
        ("max", None, -3, -3),
        ("max", 7, 3, 7),
        ("max", 1, 1.5, 1.5),
        ("min", 7, 3, 3),
        ("union", None, ["b", "a", "b"], ["a", "b"]),
        ("union", [1, "é"], [1.0, 1, None], [1, 1.0, None, "é"]),
    ],
)
def test_merge_puts_both_values_together(store: Store, how: str, before: Value, given: Value, after: Value) -> None:
    """Nodes that merge need not agree on who comes first."""
    if before is not None:
        write_state(store, put("k", before))
    [answer] = write_state(store, Merge(SCOPE, "k", Raw(canonical(given)), how))
    assert canonical(answer) == entry(store, "k").data
    assert sorted(map(canonical, answer)) == sorted(map(canonical, after)) if how == "union" else answer == after


@pytest.mark.parametrize(("how", "before", "given"), [("add", "text", 1), ("max", True, 1), ("union", 1, [1]), ("union", [1], 1)])
def test_merge_of_what_cannot_be_merged_is_refused(store: Store, how: str, before: Value, given: Value) -> None:
    write_state(store, put("k", before))
    refused(write(store, StateBatch((put("other"), Merge(SCOPE, "k", Raw(canonical(given)), how)))), InvalidInput)
    assert content(store) == {"k": before}


def test_copy_to_another_key_and_scope(store: Store) -> None:
    write_state(store, put("k", "v"))
    assert write_state(store, Copy(SCOPE, "k", SCOPE, "k2"), Copy(SCOPE, "k", OTHER, "k3")) == [True, True]
    assert content(store) == {"k": "v", "k2": "v"}
    assert content(store, OTHER) == {"k3": "v"}


def test_move_leaves_nothing_behind(store: Store) -> None:
    write_state(store, put("k", "v"))
    assert write_state(store, Copy(SCOPE, "k", OTHER, "k", move=True)) == [True]
    assert content(store) == {}
    assert content(store, OTHER) == {"k": "v"}


def test_move_onto_itself_keeps_the_key(store: Store) -> None:
    write_state(store, put("k", "v"))
    assert write_state(store, Copy(SCOPE, "k", SCOPE, "k", move=True)) == [True]
    assert content(store) == {"k": "v"}
    assert store.totals(SCOPE).keys == 1


def test_copying_nothing_changes_nothing(store: Store) -> None:
    write_state(store, put("to", "kept"))
    assert write_state(store, Copy(SCOPE, "never", SCOPE, "to", move=True)) == [False]
    assert content(store) == {"to": "kept"}


def test_clear_empties_one_scope_and_says_how_many_keys_it_had(store: Store) -> None:
    write_state(store, put("a"), put("b"), put("c", scope=OTHER))
    assert write_state(store, Clear(SCOPE)) == [2]
    assert content(store) == {}
    assert content(store, OTHER) == {"c": 1}
    totals = store.totals(SCOPE)
    assert (totals.keys, totals.bytes) == (0, 0)


def test_operations_of_a_batch_see_those_before_them(store: Store) -> None:
    write_state(store, put("old"))
    ops: list[StateOp] = [
        put("n", 1),
        Increment(SCOPE, "n", 2),
        put("n", 4, expected=3),
        Copy(SCOPE, "n", SCOPE, "m"),
        Delete(SCOPE, "n"),
        put("n", 5, expected=ABSENT),
        Clear(SCOPE),
        put("last", 6, expected=ABSENT),
        Increment(SCOPE, "m"),
        Delete(SCOPE, "old"),
    ]
    assert write_state(store, *ops)[6:] == [3, StoredEntry(b"6", 9), 1, False]
    assert content(store) == {"last": 6, "m": 1}


def test_batch_is_written_whole_or_not_at_all(store: Store) -> None:
    write_state(store, put("k", 1))
    before = (store.totals(SCOPE), store.changes(SCOPE, 0), store.totals(OTHER))
    ops = (put("k", 2), put("new", scope=OTHER), Delete(SCOPE, "k"), Clear(SCOPE), put("x", expected=7))
    refused(write(store, StateBatch(ops)), Conflict)
    assert (store.totals(SCOPE), store.changes(SCOPE, 0), store.totals(OTHER)) == before
    assert content(store) == {"k": 1}


def test_batch_of_nothing_lands(store: Store) -> None:
    assert write_state(store) == []


def test_totals_follow_every_write(store: Store) -> None:
    assert store.totals(SCOPE) == ScopeTotals(0, 0, 0)
    write_state(store, put("k", "v"))
    assert store.totals(SCOPE) == ScopeTotals(1, 1, 4)
    write_state(store, put("é", 10))
    assert store.totals(SCOPE) == ScopeTotals(2, 2, 8)
    write_state(store, put("k", "longer"))
    assert store.totals(SCOPE) == ScopeTotals(3, 2, 13)
    write_state(store, Delete(SCOPE, "k"))
    assert store.totals(SCOPE) == ScopeTotals(4, 1, 4)
    write_state(store, Copy(SCOPE, "é", OTHER, "e", move=True))
    assert (store.totals(SCOPE), store.totals(OTHER)) == (ScopeTotals(5, 0, 0), ScopeTotals(1, 1, 3))


def test_revision_of_a_scope_only_grows(store: Store) -> None:
    """Over deleting, clearing and setting again: no key ever shows a revision that it had before."""
    seen = list[int]()
    for _ in range(3):
        seen.append(write_state(store, put("k"))[0].revision)
        write_state(store, Delete(SCOPE, "k"))
        seen.append(write_state(store, put("k"))[0].revision)
        write_state(store, Clear(SCOPE))
    assert seen == sorted(set(seen))


def test_scopes_count_their_revisions_apart(store: Store) -> None:
    write_state(store, put("k"), put("k"), put("k", scope=OTHER))
    assert (store.totals(SCOPE).revision, store.totals(OTHER).revision) == (2, 1)


def test_changes_are_what_is_newer_than_a_revision_in_its_order(store: Store) -> None:
    write_state(store, put("b", 1), put("a", 2), put("c", 3))
    write_state(store, put("b", 4))
    everything = store.changes(SCOPE, 0)
    assert [(key, row.revision) for key, row in everything] == [("a", 2), ("c", 3), ("b", 4)]
    assert store.changes(SCOPE, 2) == everything[1:]
    assert store.changes(SCOPE, 4) == []
    assert store.changes(OTHER, 0) == []


def test_changes_show_what_was_deleted(store: Store) -> None:
    write_state(store, put("a"), put("b"), put("c"))
    write_state(store, Delete(SCOPE, "a"))
    write_state(store, Copy(SCOPE, "b", SCOPE, "d", move=True))
    rows = [(key, row.data, row.revision) for key, row in store.changes(SCOPE, 3)]
    assert rows == [("a", None, 4), ("d", b"1", 5), ("b", None, 6)]


def test_changes_show_what_was_cleared(store: Store) -> None:
    write_state(store, put("a"), put("b"), put("c"))
    write_state(store, Delete(SCOPE, "c"), Clear(SCOPE), put("b", 2))
    rows = [(key, row.data) for key, row in store.changes(SCOPE, 3)]
    assert sorted(rows[:-1]) == [("a", None), ("c", None)]
    assert rows[-1] == ("b", b"2")


def test_touch_of_a_key_without_an_end_does_nothing(store: Store) -> None:
    write_state(store, put("k"))
    assert write_state(store, Touch(SCOPE, "k"), Touch(SCOPE, "never")) == [False, False]
    assert entry(store, "k") == StoredEntry(b"1", 1)


def test_scope_takes_no_more_keys_than_its_limit(small_store: Store) -> None:
    """T44: refused before anything is written; what is there can still be changed."""
    write_state(small_store, put("a"), put("b"), put("c"))
    limit = refused(write(small_store, StateBatch((put("a", 2), put("d")))), LimitExceeded)
    assert (limit.limit, limit.maximum, limit.actual) == ("scope_keys", 3, 4)
    assert content(small_store) == {"a": 1, "b": 1, "c": 1}
    write_state(small_store, put("a", 2), Increment(SCOPE, "b"))
    write_state(small_store, put("d", scope=OTHER))
    write_state(small_store, Delete(SCOPE, "a"), put("d"))
    assert content(small_store) == {"b": 2, "c": 1, "d": 1}


@pytest.mark.parametrize("op", [Increment(SCOPE, "new"), Copy(OTHER, "k", SCOPE, "new"), Copy(OTHER, "k", SCOPE, "new", move=True)])
def test_no_operation_gets_around_the_limit_of_keys(small_store: Store, op: StateOp) -> None:
    write_state(small_store, put("a"), put("b"), put("c"), put("k", scope=OTHER))
    refused(write(small_store, StateBatch((op,))), LimitExceeded)
    assert content(small_store) == {"a": 1, "b": 1, "c": 1}
    assert content(small_store, OTHER) == {"k": 1}


def test_scope_takes_no_more_bytes_than_its_limit(small_store: Store) -> None:
    """T43, T44: keys and values together, counted as they are stored."""
    write_state(small_store, put("k", "x" * 97))
    limit = refused(write(small_store, StateBatch((put("k", "x" * 98),))), LimitExceeded)
    assert (limit.limit, limit.maximum, limit.actual) == ("scope_bytes", 100, 101)
    refused(write(small_store, StateBatch((put("j", 1),))), LimitExceeded)
    write_state(small_store, put("k", "é" * 40), put("j", "x" * 14))
    assert small_store.totals(SCOPE).bytes == 100


def test_batch_may_go_through_a_clear_to_stay_within_the_limit(small_store: Store) -> None:
    write_state(small_store, put("a"), put("b"), put("c"))
    write_state(small_store, Clear(SCOPE), put("d"), put("e"), put("f"))
    assert content(small_store).keys() == {"d", "e", "f"}


def test_version_of_a_value_comes_back_with_it(store: Store) -> None:
    """T48."""
    write_state(store, Put(SCOPE, "k", Raw(b'"v"'), version=300), put("plain"))
    assert entry(store, "k") == StoredEntry(b'"v"', 1, version=300)
    assert [(key, row.version) for key, row in store.scan(SCOPE)] == [("k", 300), ("plain", 1)]
    assert [row.version for _, row in store.changes(SCOPE, 0)] == [300, 1]


def test_migrated_value_keeps_its_revision_and_its_end(store: Store) -> None:
    write_state(store, put("k", "old", ttl=60))
    before, totals = entry(store, "k"), store.totals(SCOPE)
    assert write_state(store, Migrate(SCOPE, "k", Raw(b'"longer"'), 2, before.revision, 1)) == [True]
    after = entry(store, "k")
    assert (after.data, after.version) == (b'"longer"', 2)
    assert (after.revision, after.expires_ms, after.ttl_ms) == (before.revision, before.expires_ms, before.ttl_ms)
    assert store.totals(SCOPE) == ScopeTotals(totals.revision, totals.keys, totals.bytes + 3)


def test_value_is_migrated_once_and_not_after_another_write(store: Store) -> None:
    """T49: one winner."""
    write_state(store, put("k", 1), put("j", 1))
    again = Migrate(SCOPE, "k", Raw(b"2"), 2, 1, 1)
    late = Migrate(SCOPE, "j", Raw(b"2"), 2, 2, 1)
    write_state(store, put("j", 7))
    assert write_state(store, again, again, late, Migrate(SCOPE, "never", Raw(b"2"), 2, 1, 1)) == [True, False, False, False]
    assert content(store) == {"k": 2, "j": 7}


@pytest.mark.parametrize("op", [put("k", 1), Delete(SCOPE, "k"), Increment(SCOPE, "k"), Copy(SCOPE, "k", SCOPE, "j")])
def test_value_of_newer_code_is_not_overwritten(store: Store, op: StateOp) -> None:
    """T48."""
    write_state(store, Put(SCOPE, "k", Raw(b"5"), version=2))
    newer = refused(write(store, StateBatch((put("other"), op))), StateNewer)
    assert (newer.stored, newer.known) == (2, 1)
    assert content(store) == {"k": 5}
