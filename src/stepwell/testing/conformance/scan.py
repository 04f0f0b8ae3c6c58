"""Scans and listings: every key in order and in its own scope, with hostile names, too."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.contract.store import Store
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Clear, Delete
from stepwell.testing.conformance.samples import SCOPE, content, fresh_id, pages_of, put, write_state

# Keys that break range scans and patterns: prefixes of each other, wildcards, separators, cases, order of UTF-8 against UTF-16.
KEYS = [
    *("1", "10", "2", "a", "A", "ab", "a%", "a_", "a*", "a?", "[a]", "{a}", "a\\", "a'", 'a"', "a`", "a/b", "a:b", "a.b"),
    *(".", "..", " ", "a ", " a", "\t", "a\nb", "\x01", "\x7f", "é", "e\u0301", "ß", "ss", "İ", "\u07ff", "\u0800", "\ud7ff"),
    *("\ue000", "\uffff", "\U00010000", "\U0010ffff", "a\U0010ffff", "\ud7ff\U0010ffff", "k" * 512, "é" * 256),
]
PREFIXES = ["a", "1", "%", "_", "*", "[", "\\", " ", "é", "\ud7ff", "\U0010ffff", "a\U0010ffff", "k" * 511, "none"]

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)


def fill(store: Store) -> list[str]:
    """Fill the scope with nasty keys; they, in order of their UTF-8 bytes."""
    write_state(store, *(put(key, key) for key in KEYS))
    return sorted(KEYS, key=str.encode)


def keys_of(store: Store, prefix: str = "", after: str | None = None, limit: int = 1_000, scope: str = SCOPE) -> list[str]:
    """The keys of one page."""
    return [key for key, _ in store.scan(scope, prefix=prefix, after=after, limit=limit)]


def test_scan_gives_keys_in_order_of_their_bytes(store: Store) -> None:
    nasty = fill(store)
    assert keys_of(store) == nasty
    assert content(store) == {key: key for key in KEYS}


def test_scan_pages_show_every_key_once(store: Store) -> None:
    nasty = fill(store)
    pages = pages_of(lambda after: keys_of(store, after=after, limit=7), None, lambda key: key)
    assert all(len(page) <= 7 for page in pages)
    assert [key for page in pages for key in page] == nasty


@pytest.mark.parametrize("prefix", PREFIXES)
def test_scan_with_a_prefix_gives_the_keys_that_begin_with_it(store: Store, prefix: str) -> None:
    """T46: by range, never by pattern."""
    nasty = fill(store)
    assert keys_of(store, prefix) == [key for key in nasty if key.startswith(prefix)]


def test_scan_with_a_prefix_comes_in_pages_too(store: Store) -> None:
    nasty = fill(store)
    expected = [key for key in nasty if key.startswith("a")]
    for after in (*expected, "", "A", "b", "a"):
        assert keys_of(store, "a", after or None, 4) == [key for key in expected if key > after][:4]


def test_scan_passes_over_what_was_deleted_without_shortening_the_page(store: Store) -> None:
    nasty = fill(store)
    write_state(store, *(Delete(SCOPE, key) for key in nasty[:10]))
    assert keys_of(store, limit=5) == nasty[10:15]


@given(keys=st.sets(texts, min_size=1, max_size=12), prefix=texts | st.just(""), after=texts | st.none(), limit=st.integers(1, 5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scan_is_a_sorted_list_cut_out(store: Store, keys: set[str], prefix: str, after: str | None, limit: int) -> None:
    scope = Scope.custom(fresh_id("scan"), "acme").path
    write_state(store, *(put(key, scope=scope) for key in keys))
    start = b"" if after is None else after.encode()
    wanted = [key for key in sorted(keys, key=str.encode) if key.startswith(prefix) and key.encode() > start]
    assert keys_of(store, prefix, after, limit, scope) == wanted[:limit]


# T46, T47: scopes whose addresses would meet if they were ever joined without care.
SCOPES = [
    Scope.globals(),
    Scope.of_workspace("1"),
    Scope.of_workspace("10"),
    Scope.of_workflow("1", "1"),
    Scope.of_workflow("10", "1"),
    Scope.of_workflow("1", "10"),
    Scope.of_workflow("1%", "1"),
    Scope.of_workflow("1_", "1"),
    Scope.of_workflow("a/b", "1"),
    Scope.of_workflow("a", "1"),
    Scope.of_step("a", "b", "1"),
    Scope.of_step("a/b", "c", "1"),
    Scope.of_step("a", "b/c", "1"),
    Scope.of_step("1", "0", "1"),
    Scope.of_conversation("al", "1"),
    Scope.of_conversation("alice_1", "1"),
    Scope.custom("workflow:1", "1"),
    Scope.custom("workflow/1/1", "1"),
    Scope.custom("1", "1"),
    Scope.custom("10", "1"),
    Scope.custom("%31", "1"),
    Scope.custom("*", "1"),
    Scope.custom("[1]", "1"),
    Scope.custom("{1}", "1"),
    Scope.custom("..", "1"),
    Scope.custom("a\nb'\"", "1"),
    Scope.custom("É", "1"),
    Scope.custom("é", "1"),
]


def test_scopes_never_show_keys_of_each_other(store: Store) -> None:
    """T47: ids 1 and 10, a custom scope that spells a workflow's, al and alice_1."""
    write_state(store, *(put("step:b:x", scope.path, scope=scope.path) for scope in SCOPES))
    for scope in SCOPES:
        assert content(store, scope.path) == {"step:b:x": scope.path}
        assert store.totals(scope.path).keys == 1
        assert len(store.changes(scope.path, 0)) == 1
    write_state(store, Clear(Scope.of_workflow("1", "1").path))
    assert [scope for scope in SCOPES if not content(store, scope.path)] == [Scope.of_workflow("1", "1")]


def test_scopes_are_listed_by_workspace(store: Store) -> None:
    write_state(store, *(put("k", scope=scope.path) for scope in SCOPES))
    assert sorted(store.scopes()) == sorted(scope.path for scope in SCOPES)
    for workspace in ("1", "10", "2", "%", "*"):
        expected = sorted(scope.path for scope in SCOPES if scope.workspace == workspace)
        assert sorted(store.scopes(workspace)) == expected


def test_scope_is_listed_while_it_holds_anything(store: Store) -> None:
    assert list(store.scopes()) == []
    write_state(store, put("a"), put("b"))
    assert list(store.scopes()) == [SCOPE]
    write_state(store, Delete(SCOPE, "a"))
    assert list(store.scopes("acme")) == [SCOPE]
    write_state(store, Delete(SCOPE, "b"))
    assert list(store.scopes()) == []
    write_state(store, put("a"))
    write_state(store, Clear(SCOPE))
    assert list(store.scopes("acme")) == []
