"""The names of Redis keys: no two things share one, and what one script touches is on one node of a cluster."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import InvalidInput
from stepwell.model.commit import (
    Acquire,
    Adoption,
    Archiving,
    Claim,
    Commit,
    Creation,
    Deletion,
    Extension,
    LockGuard,
    Release,
    Renew,
    Rest,
    StateBatch,
    Unit,
    Unlock,
)
from stepwell.model.snapshot import StoredSnapshot
from stepwell.stores.redis.keys import Keys, age_place, in_place, slot_of, workspace_place
from stepwell.stores.redis.script_calls import ScriptCall, ScriptCaller
from stepwell.stores.redis.state_plan import ScopeWrite

_NASTY = ("a", "a:head", "{x:a}", "}", "{", "a}:head", "%", "%3A", "a%3Ahead", ":", "*", "[a]", "\n", "é", "x:a", "s", "…", "😀")
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
_SNAPSHOT = StoredSnapshot(3, b"data", b"sum", "digest")


def all_keys(keys: Keys, name: str) -> list[bytes]:
    return [*keys.execution(name), *keys.scope(name), *keys.lock(name)]


def test_no_two_ids_share_a_key() -> None:
    """T46: also across kinds, and across prefixes that contain what separates them."""
    names = [key for prefix, name in product(("p", "p:{i}", "p%3A"), _NASTY) for key in all_keys(Keys(prefix), name)]
    central = [getattr(Keys(prefix), name) for prefix in ("p", "p:{i}") for name in ("store", "executions", "fence")]
    assert len(set(names) | set(central)) == len(names) + len(central)


@given(first=st.tuples(_TEXT, _TEXT), second=st.tuples(_TEXT, _TEXT))
def test_keys_are_equal_only_for_the_same_prefix_and_id(first: tuple[str, str], second: tuple[str, str]) -> None:
    """T46."""
    ours, others = all_keys(Keys(first[0]), first[1]), all_keys(Keys(second[0]), second[1])
    assert (set(ours) & set(others) != set()) == (first == second)


@given(prefix=_TEXT, name=_TEXT)
def test_keys_of_one_thing_are_on_one_node(prefix: str, name: str) -> None:
    keys = Keys(prefix)
    for group in (keys.execution(name), keys.scope(name), keys.lock(name)):
        assert len({slot_of(key) for key in group}) == 1
    assert len({slot_of(key) for key in (keys.store, keys.executions, keys.scopes, keys.ends, keys.locks)}) == 1


@given(created_ms=st.integers(-(10**14), 10**15), workspace=_TEXT, name=_TEXT)
def test_place_in_the_index_says_which_execution_it_is(created_ms: int, workspace: str, name: str) -> None:
    place = age_place(created_ms, name)
    for start in (b"a/", b"s/RUNNING/", workspace_place(workspace)):
        assert in_place(start + place) == (created_ms, name)


@given(first=st.tuples(st.integers(-(10**14), 10**15), _TEXT), second=st.tuples(st.integers(-(10**14), 10**15), _TEXT))
def test_places_are_in_order_of_age_and_id(first: tuple[int, str], second: tuple[int, str]) -> None:
    assert (age_place(*first) < age_place(*second)) == (first < second)


@given(first=st.tuples(_TEXT, _TEXT), second=st.tuples(_TEXT, _TEXT))
def test_places_of_two_workspaces_never_meet(first: tuple[str, str], second: tuple[str, str]) -> None:
    """T47: workspace `1` and execution `0x` is not workspace `10` and execution `x`."""
    places = [workspace_place(workspace) + age_place(0, name) for workspace, name in (first, second)]
    assert (places[0] == places[1]) == (first == second)


def commit(**changes: object) -> Commit:
    fields: dict[str, object] = {"execution_id": "x", "workspace_id": "w", "commit_id": "c", "revision": 4, "previous": "p"}
    return Commit(**{**fields, "digest": "d", "header": b"h", "body": b"b", "committed_ms": 0, **changes})  # type: ignore[arg-type]


_UNITS: list[Unit] = [
    commit(snapshot=_SNAPSHOT, status="RUNNING", fence=3),
    commit(creation=Creation("flow", 1)),
    commit(rest=Rest(5)),
    Deletion("x"),
    Archiving("x", _SNAPSHOT),
    Adoption(
        execution_id="x",
        workspace_id="w",
        creation=Creation("f", 1),
        status="RUNNING",
        digest="d",
        snapshot=_SNAPSHOT,
        signature=None,
        adopted_ms=0,
    ),
    Claim("x", "h", 1),
    Extension("x", "h", 1, 1),
    Release("x", "h", 1),
    Acquire("x", "h", 1),
    Renew("x", "h", 1, 1),
    Unlock("x", "h", 1),
]


@given(name=_TEXT)
def test_scripts_build_the_same_key_of_a_head_as_this_process(name: str) -> None:
    """The script that looks for due executions builds names itself: what it leaves as it is, and what it encodes, is the same."""
    encoded = re.sub(rb"[^A-Za-z0-9_.~-]", lambda char: b"%%%02X" % char[0][0], name.encode())
    assert Keys("p").execution(name).head == b"p:{x:" + encoded + b"}:head"


def caller(*, is_cluster: bool) -> ScriptCaller:
    return ScriptCaller(Keys("p"), is_cluster=is_cluster, store_id=b"id", ttl_ms=0, ahead_ms=lambda: 0)


@pytest.mark.parametrize("unit", _UNITS, ids=lambda unit: type(unit).__name__)
def test_script_of_a_unit_touches_one_node_of_a_cluster(unit: Unit) -> None:
    call = caller(is_cluster=True).of(unit, (), 0)
    assert isinstance(call, ScriptCall)
    assert call.is_of_one_slot()


def test_state_of_one_scope_touches_one_node_of_a_cluster() -> None:
    call = caller(is_cluster=True).of(StateBatch(()), [ScopeWrite("global/", Keys("p").scope("global/"), b"", b"1 1 1 1")], 0)
    assert isinstance(call, ScriptCall)
    assert call.is_of_one_slot()


@pytest.mark.parametrize("other", [{}, {"guards": (LockGuard("door", 1),)}, {"nudges": ("y",)}])
def test_unit_that_needs_two_nodes_is_refused_on_a_cluster_and_not_on_a_single_server(other: dict[str, object]) -> None:
    unit = commit(**other)
    writes = [] if other else [ScopeWrite("global/", Keys("p").scope("global/"), b"", b"1 1 1 1")]
    assert isinstance(caller(is_cluster=True).of(unit, writes, 0), InvalidInput)
    assert isinstance(caller(is_cluster=False).of(unit, writes, 0), ScriptCall)
