"""Limits, keys and values of state: refused before any write, with the limit named (C5, C6)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.acceptance.conftest import OpenWell

from stepwell import FakeClock, InvalidInput, LimitExceeded, Limits, Stepwell, ValidationFailed


def test_limits_are_refused_before_any_write_and_named(open_well: OpenWell, url: str) -> None:
    """T43, T44."""
    limits = Limits(value_bytes=100, key_bytes=10, depth=3, scope_keys=3, scope_bytes=150, commit_mutations=5)
    well = open_well(url, limits=limits)
    scope = well.state.globals
    scope.set("ok", "x" * 98)
    for limit, use in {
        "value_bytes": lambda: scope.set("k", "x" * 99),
        "key_bytes": lambda: scope.set("k" * 11, 1),
        "depth": lambda: scope.set("k", [[[[1]]]]),
        "scope_bytes": lambda: scope.set("k", "x" * 90),
        "scope_keys": lambda: scope.set_many({"a": 1, "b": 1, "c": 1}),
    }.items():
        with pytest.raises(LimitExceeded, match=f"{limit}=") as caught:
            use()
        assert caught.value.code == "SW-102"
    assert scope.keys() == ["ok"]
    well.create("run")
    for limit, change in {
        "commit_mutations": lambda tx: [tx.set_variable("a", number) for number in range(6)],
        "value_bytes": lambda tx: tx.set_variable("a", "x" * 99),
        "scope_bytes": lambda tx: tx.state(scope).set("k", "x" * 90),
    }.items():
        with pytest.raises(LimitExceeded, match=f"{limit}="), well.transaction("run") as tx:
            change(tx)
    assert well.load("run").revision == 0
    with pytest.raises(LimitExceeded, match="key_bytes=10"):
        well.create("x" * 11)


def test_raised_limits_count_for_what_is_cached(open_well: OpenWell, url: str) -> None:
    scope = open_well(url, limits=Limits(value_bytes=1_000_000, depth=100)).state.globals
    deep: object = "x" * 300_000
    for _ in range(80):
        deep = [deep]
    scope.set("k", deep)
    cached = scope.cached()
    assert cached.get("k") == cached.get("k") == deep
    cached.close()


def test_raised_limits_count_for_what_is_merged(open_well: OpenWell, url: str) -> None:
    scope = open_well(url, limits=Limits(value_bytes=1_000_000)).state.globals
    large, larger = "x" * 300_000, "y" * 800_000
    scope.set("k", [large])
    assert scope.merge("k", ["y"], "union") == [large, "y"] == scope.get("k")
    with pytest.raises(LimitExceeded, match="over the limit value_bytes=1,000,000"):
        scope.merge("k", [larger], "union")
    assert scope.get("k") == [large, "y"]


def test_ids_and_names_stay_at_512_bytes_where_keys_may_be_longer(open_well: OpenWell, url: str) -> None:
    well = open_well(url, limits=Limits(key_bytes=1_000))
    name = "x" * 513
    well.state.globals.set(name, 1)
    assert well.state.globals.get(name) == 1
    for use in (
        lambda: well.create(name),
        lambda: well.load(name),
        lambda: well.verify(name),
        lambda: well.state.custom(name).set("k", 1),
        lambda: well.state.workspace(name).set("k", 1),
        lambda: well.lock(name).acquire(),
        lambda: well.conversations.set(name, {}),
        lambda: well.conversations.set("c", {}, user=name),
    ):
        with pytest.raises(LimitExceeded, match="is 513, over the limit key_bytes=512; make it smaller: more is not possible here"):
            use()


def test_full_scope_takes_new_keys_once_others_have_expired(open_well: OpenWell, url: str, clock: FakeClock) -> None:
    well = open_well(url, clock=clock, limits=Limits(scope_keys=3))
    scope = well.state.globals
    scope.set_many({"a": 1, "b": 1, "c": 1}, ttl=10)
    with pytest.raises(LimitExceeded):
        scope.set("d", 1)
    clock.advance(10)
    scope.set("d", 1)
    assert scope.all() == {"d": 1}


def test_execution_cannot_grow_over_its_limit(open_well: OpenWell, url: str) -> None:
    """C5."""
    well = open_well(url, limits=Limits(execution_bytes=2_000))
    well.create("run")
    with pytest.raises(LimitExceeded, match="execution_bytes=2,000"), well.transaction("run") as tx:
        tx.set_variable("a", "x" * 2_000)
    assert well.load("run").revision == 0


@pytest.mark.parametrize("key", ["", "a\0b", "\ud800", "x" * 513, "é" * 257, None, 5, b"k"])
def test_bad_keys_are_refused_by_every_operation(well: Stepwell, key: str) -> None:
    """C6, T46."""
    scope = well.state.globals
    for use in (
        lambda: scope.get(key),
        lambda: scope.get(key, type=int),
        lambda: scope.set(key, 1),
        lambda: scope.delete(key),
        lambda: scope.exists(key),
        lambda: scope.entry(key),
        lambda: scope.get_many(["a", key]),
        lambda: scope.set_many({"a": 1, key: 1}),
        lambda: scope.delete_many(["a", key]),
        lambda: scope.increment(key),
        lambda: scope.set_if_absent(key, 1),
        lambda: scope.compare_and_set(key, 1, revision=0),
        lambda: scope.copy(key, "b"),
        lambda: scope.move("a", key),
    ):
        with pytest.raises(ValidationFailed):
            use()
    assert scope.all() == {}


@pytest.mark.parametrize("bad", ["a\0", "\ud800", 5, b"x"])
def test_bad_prefixes_and_cursors_are_refused(well: Stepwell, bad: str) -> None:
    scope = well.state.globals
    for use in (lambda: scope.keys(bad), lambda: scope.all(bad), lambda: scope.keys(after=bad), lambda: well.state.scopes(bad)):
        with pytest.raises(InvalidInput):
            use()
    for limit in (-1, 1.5, "1"):
        with pytest.raises(InvalidInput):
            scope.keys(limit=limit)


@pytest.mark.parametrize("value", [float("nan"), (1, 2), {1: 2}, 2**63, "\ud800", b"x", object(), datetime(2026, 1, 1, tzinfo=UTC)])
def test_what_is_no_value_is_refused(well: Stepwell, value: object) -> None:
    """T45."""
    for use in (
        lambda: well.state.globals.set("k", value),
        lambda: well.state.globals.set_if_absent("k", value),
        lambda: well.state.globals.compare_and_set("k", value, revision=0),
        lambda: well.create("run", context={"k": value}),
    ):
        with pytest.raises(InvalidInput):
            use()
    assert well.state.globals.all() == {}
    assert well.executions.list() == []


@pytest.mark.parametrize(
    "value", [None, -0.0, 1.0, 5e-324, 2**53 + 1, 2**63 - 1, -(2**63), "a\0b", "é e\u0301", {"": 1}, "\u2028", [[[]]]]
)
def test_odd_values_come_back_as_they_were(well: Stepwell, value: object) -> None:
    """T45."""
    well.state.globals.set("k", value)
    well.create("run", context={"k": value})
    for back in (well.state.globals.get("k"), well.load("run").context["k"]):
        assert repr(back) == repr(value)
