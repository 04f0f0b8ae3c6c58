"""Scoped state: addresses that never meet, operations, TTL and limits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell

from stepwell import Conflict, Entry, FakeClock, InvalidInput, Scope, StateChange, Stepwell, ValidationFailed

# Ids that an encoding, a pattern or a path could trip over.
ODD = [" ", ".", "..", "/", "a/b", "a:step:b", "*", "[a]", "{x}", "%", "%2F", "_", "'", '"', "\n", "é", "e\u0301", "😀", "1",
       "10", "A", "a", "health", "x" * 512]  # fmt: skip


# C1 scopes.


def test_every_scope_has_state_of_its_own(well: Stepwell) -> None:
    scopes = [
        well.state.globals,
        well.state.workspace("w"),
        well.state.workspace("default"),
        well.state.workflow("w"),
        well.state.workspace("w").workflow("w"),
        well.state.workflow("w").step("w"),
        well.state.workspace("w").workflow("w").step("w"),
        well.state.conversation("w"),
        well.state.workspace("w").conversation("w"),
        well.state.custom("w"),
        well.state.workspace("w").custom("w"),
        well.state.at(Scope.custom("other")),
    ]
    for number, scope in enumerate(scopes):
        scope.set("key", number)
    assert [scope.all() for scope in scopes] == [{"key": number} for number in range(len(scopes))]
    assert sorted(scope.path for scope in well.state.scopes()) == sorted(scope.scope.path for scope in scopes)


def test_key_of_a_workflow_does_not_meet_the_state_of_its_step(well: Stepwell) -> None:
    """T46."""
    well.state.workflow("a").set("step:b:x", "workflow")
    well.state.workflow("a").step("b").set("x", "step")
    well.state.custom("workflow:a").set("step:b:x", "custom")
    assert well.state.workflow("a").all() == {"step:b:x": "workflow"}
    assert well.state.workflow("a").step("b").all() == {"x": "step"}
    assert well.state.workflow("a:step:b").all() == {}


def test_listing_one_never_shows_ten(well: Stepwell) -> None:
    """T47."""
    for name in ("1", "10", "1_", "1%", "11"):
        well.state.workflow(name).set("k", name)
        well.state.workspace(name).set("k", name)
    assert well.state.workflow("1").keys() == ["k"]
    assert well.state.workflow("1").all() == {"k": "1"}
    assert {scope.path for scope in well.state.scopes("1")} == {Scope.of_workspace("1").path}
    assert well.state.workflow("1").clear() == 1
    assert well.state.workflow("10").all() == {"k": "10"}


def test_odd_ids_are_ids(well: Stepwell) -> None:
    """T46: as execution, workspace, workflow, step, key."""
    for number, name in enumerate(ODD):
        well.create(name, workspace=name, workflow=name)
        with well.transaction(name) as tx:
            tx.set_variable(name, number)
        well.state.workspace(name).workflow(name).step(name).set(name, number)
        well.state.custom("all").set(name, number)
    for number, name in enumerate(ODD):
        assert well.load(name).variables == {name: number}
        assert well.state.workspace(name).workflow(name).step(name).all() == {name: number}
        assert [summary.execution_id for summary in well.executions.list(workspace=name)] == [name]
        assert [scope.names for scope in well.state.scopes(name)] == [(name, name)]
    assert well.state.custom("all").keys() == sorted(ODD)


def test_scopes_below_a_scope_are_those_that_make_sense(well: Stepwell) -> None:
    for make in (
        lambda: well.state.globals.workflow("w"),
        lambda: well.state.workflow("w").workflow("v"),
        lambda: well.state.workspace("w").step("s"),
        lambda: well.state.custom("c").step("s"),
    ):
        with pytest.raises(InvalidInput, match=r"has no .* scope below it"):
            make()


# C2 operations.


def test_set_get_exists_delete(well: Stepwell) -> None:
    scope = well.state.globals
    assert scope.get("k") is None
    assert scope.get("k", "default") == "default"
    assert scope.set("k", {"a": [1]}) == 1
    assert scope.set("k", None) == 2
    assert scope.get("k", "default") is None
    assert scope.exists("k")
    assert scope.delete("k")
    assert not scope.delete("k")
    assert not scope.exists("k")


def test_keys_are_in_order_and_come_in_pages(well: Stepwell) -> None:
    scope = well.state.globals
    names = ["b", "a", "ab", "a%", "a_", "é", "😀", "\ue000", "Z"]
    scope.set_many(dict.fromkeys(names, 0))
    assert scope.keys() == sorted(names)
    assert scope.keys("a") == ["a", "a%", "a_", "ab"]
    assert scope.keys("a_") == ["a_"]
    assert scope.keys("zzz") == []
    assert scope.keys(limit=3) == sorted(names)[:3]
    assert scope.keys(limit=3, after=sorted(names)[2]) == sorted(names)[3:6]
    assert scope.keys("a", after="a%", limit=1) == ["a_"]
    assert list(scope.all("a")) == ["a", "a%", "a_", "ab"]


def test_more_keys_than_a_page(well: Stepwell) -> None:
    scope = well.state.globals
    scope.set_many({f"{number:05}": number for number in range(2_100)})
    assert scope.keys() == [f"{number:05}" for number in range(2_100)]
    assert len(scope.keys(limit=1_500)) == 1_500
    assert len(scope.all()) == 2_100
    assert scope.clear() == 2_100


def test_many_at_once(well: Stepwell) -> None:
    scope = well.state.globals
    scope.set_many({"a": 1, "b": [2], "c": None})
    assert scope.get_many(["c", "a", "missing"]) == {"c": None, "a": 1}
    assert scope.delete_many(["a", "b", "missing"]) == 2
    assert scope.all() == {"c": None}
    scope.set_many({})
    assert scope.delete_many([]) == 0
    assert scope.get_many([]) == {}


def test_set_many_is_all_or_nothing(well: Stepwell) -> None:
    scope = well.state.globals
    with pytest.raises(InvalidInput):
        scope.set_many({"a": 1, "b": float("nan")})
    assert scope.all() == {}


@dataclass
class Point:
    x: int
    at: datetime


def test_typed_get(well: Stepwell) -> None:
    scope = well.state.globals
    scope.set("p", {"x": 1, "at": "2026-01-01T00:00:00Z"})
    scope.set("bad", {"x": "one"})
    assert scope.get("p", type=Point) == Point(1, datetime(2026, 1, 1, tzinfo=UTC))
    assert scope.get("missing", type=Point) is None
    with pytest.raises(InvalidInput, match="not a Point"):
        scope.get("bad", type=Point)


def test_increment(well: Stepwell) -> None:
    scope = well.state.globals
    assert scope.increment("n") == 1
    assert scope.increment("n", 5) == 6
    assert scope.increment("n", -0.5) == 5.5
    scope.set("text", "x")
    with pytest.raises(InvalidInput, match="holds no number"):
        scope.increment("text")
    for bad in (float("nan"), True, "1", 10**400, 2**63):
        with pytest.raises(InvalidInput):
            scope.increment("n", bad)
    assert scope.get("n") == 5.5


def test_increments_of_many_threads_all_count(open_well: OpenWell, url: str) -> None:
    well = open_well(url)
    scope = well.state.globals
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: scope.increment("n"), range(80)))
    assert sorted(answers) == list(range(1, 81))
    assert scope.get("n") == 80


def test_set_if_absent(well: Stepwell) -> None:
    scope = well.state.globals
    assert scope.set_if_absent("k", 1)
    assert not scope.set_if_absent("k", 2)
    assert scope.get("k") == 1


def test_exactly_one_of_racing_writers_sets_an_absent_key(open_well: OpenWell, url: str) -> None:
    well = open_well(url)
    for turn in range(10):
        barrier = threading.Barrier(4)

        def act(number: int, turn: int = turn, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait(60)
            return well.state.globals.set_if_absent(f"k{turn}", number)

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(act, range(4))) == [False, False, False, True]


def test_compare_and_set_by_revision(well: Stepwell) -> None:
    scope = well.state.globals
    first = scope.compare_and_set("k", "a", revision=0)
    assert scope.entry("k") == Entry("a", first, None)
    second = scope.compare_and_set("k", "b", revision=first)
    assert second > first
    with pytest.raises(Conflict, match="read it again") as caught:
        scope.compare_and_set("k", "c", revision=first)
    assert (caught.value.expected, caught.value.actual) == (first, second)
    with pytest.raises(Conflict):
        scope.compare_and_set("k", "c", revision=0)
    scope.delete("k")
    with pytest.raises(Conflict):
        scope.compare_and_set("k", "c", revision=second)
    scope.set("k", "again")
    assert scope.entry("k").revision > second
    assert scope.entry("missing") is None


def test_copy_and_move(well: Stepwell) -> None:
    one, two = well.state.custom("one"), well.state.custom("two")
    one.set("a", {"x": 1})
    assert one.copy("a", "b")
    assert one.copy("a", "a", two)
    assert one.move("b", "c", Scope.custom("two"))
    assert not one.copy("missing", "d")
    assert not one.move("missing", "d")
    assert (one.all(), two.all()) == ({"a": {"x": 1}}, {"a": {"x": 1}, "c": {"x": 1}})


def test_transaction_over_many_keys_and_scopes(well: Stepwell) -> None:
    one, two = well.state.custom("one"), well.state.custom("two")
    with well.state.transaction() as tx:
        tx.state(one).set("a", 1)
        tx.state(two).increment("n", 5)
        tx.state(two).set("b", 1, ttl=5)
    assert (one.all(), two.all()) == ({"a": 1}, {"b": 1, "n": 5})
    with pytest.raises(Conflict), well.state.transaction() as tx:  # noqa: PT012 - leaving the block is what raises
        tx.state(one).set("a", 2)
        tx.state(two).delete("b")
        tx.state(two).set_if_absent("n", 0)
    with pytest.raises(ZeroDivisionError), well.state.transaction() as tx:  # noqa: PT012 - leaving the block is what raises
        tx.state(one).set("a", 3)
        1 // 0  # noqa: B018 - that is the point
    with pytest.raises(ValidationFailed) as caught, well.state.transaction() as tx:  # noqa: PT012 - leaving the block is what raises
        tx.state(one).set("a", 4)
        tx.state(one).set("", 4)
        tx.state(one).set("b", object())
    assert len(caught.value.errors) == 2
    tx = well.state.transaction()
    tx.state(one).set("a", 5)
    tx.rollback()
    with pytest.raises(InvalidInput, match="was rolled back"):
        tx.commit()
    assert (one.all(), two.all()) == ({"a": 1}, {"b": 1, "n": 5})


def test_clear_empties_one_scope(well: Stepwell) -> None:
    one, two = well.state.custom("one"), well.state.custom("two")
    one.set_many({"a": 1, "b": 2})
    two.set("a", 1)
    assert one.clear() == 2
    assert one.clear() == 0
    assert (one.all(), two.all()) == ({}, {"a": 1})
    assert [scope.path for scope in well.state.scopes()] == [two.scope.path]


def test_what_is_read_is_a_copy(well: Stepwell) -> None:
    scope, value = well.state.globals, {"a": [1]}
    scope.set("k", value)
    value["a"].append(2)
    scope.get("k")["a"].append(3)
    scope.entry("k").value["a"].append(4)
    assert scope.get("k") == {"a": [1]}


# Watching keys that exist already; later changes are in test_watch.


def test_changes_since_a_revision(well: Stepwell) -> None:
    scope = well.state.globals
    scope.set("a", 1)
    scope.set("b", None)
    scope.delete("a")
    assert scope.revision() == 3
    assert list(scope.watch(since=0, idle_seconds=0)) == [StateChange("b", None, 2), StateChange("a", None, 3, is_deleted=True)]
    assert list(scope.watch(since=2, idle_seconds=0)) == [StateChange("a", None, 3, is_deleted=True)]
    assert list(scope.watch(since=3, idle_seconds=0)) == []
    for bad in (-1, "x", 2**70):
        with pytest.raises(InvalidInput):
            list(scope.watch(since=bad, idle_seconds=0))


def test_set_many_names_every_bad_value_and_writes_none(well: Stepwell) -> None:
    scope = well.state.globals
    values: dict[Any, Any] = {"fine": 1, "nan": float("nan"), "": 2, "object": object(), "text": "\ud800", 7: 1}
    with pytest.raises(InvalidInput) as caught:
        scope.set_many(values)
    told = [str(problem) for problem in caught.value.errors]
    assert len(told) == 5
    assert all(any(part in each for each in told) for part in ("'nan'", "'object'", "'text'", "empty", "not int"))
    assert scope.all() == {}


@pytest.mark.parametrize("call", ["get_many", "delete_many"])
def test_get_many_and_delete_many_name_every_bad_key(well: Stepwell, call: str) -> None:
    well.state.globals.set("fine", 1)
    keys: list[Any] = ["fine", "", "a\0b", 7]
    with pytest.raises(InvalidInput) as caught:
        getattr(well.state.globals, call)(keys)
    assert len(caught.value.errors) == 3
    assert well.state.globals.get("fine") == 1


def test_set_many_tells_a_bad_ttl_once(well: Stepwell) -> None:
    with pytest.raises(InvalidInput) as caught:
        well.state.globals.set_many({"a": 1, "b": 2}, ttl=-1)
    assert len(caught.value.errors) == 1


def test_compare_and_set_in_a_transaction_honours_its_ttl(well: Stepwell, clock: FakeClock) -> None:
    scope = well.state.globals
    scope.set("kept", 1)
    for number, transaction in enumerate((well.state.transaction(), well.transaction(well.create("run").execution_id))):
        with transaction as tx:
            at = tx.state(scope)
            at.compare_and_set(f"new {number}", 1, revision=0, ttl=60)
            at.compare_and_set("kept", 2, revision=scope.entry("kept").revision, ttl=60)
    clock.advance(59)
    assert scope.all() == {"kept": 2, "new 0": 1, "new 1": 1}
    clock.advance(1.5)
    assert scope.all() == {}
