"""The names of Redis keys: no two things share one."""

from __future__ import annotations

import re
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from stepwell.stores.redis.keys import Keys, age_place, in_place, workspace_place

_NASTY = ("a", "a:head", "execution:a", "%", "%3A", "a%3Ahead", ":", "*", "[a]", "\n", "é", "x:a", "s", "…", "😀")
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)


def all_keys(keys: Keys, name: str) -> list[bytes]:
    return [*keys.execution(name), *keys.scope(name), keys.lock(name)]


def test_no_two_ids_share_a_key() -> None:
    """T46: also across kinds, and across prefixes that contain what separates them."""
    names = [key for prefix, name in product(("p", "p:execution", "p%3A"), _NASTY) for key in all_keys(Keys(prefix), name)]
    central = [getattr(Keys(prefix), name) for prefix in ("p", "p:execution") for name in ("store", "executions", "fence")]
    assert len(set(names) | set(central)) == len(names) + len(central)


@given(first=st.tuples(_TEXT, _TEXT), second=st.tuples(_TEXT, _TEXT))
def test_keys_are_equal_only_for_the_same_prefix_and_id(first: tuple[str, str], second: tuple[str, str]) -> None:
    """T46."""
    ours, others = all_keys(Keys(first[0]), first[1]), all_keys(Keys(second[0]), second[1])
    assert (set(ours) & set(others) != set()) == (first == second)


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


@given(name=_TEXT)
def test_scripts_build_the_same_key_of_a_head_as_this_process(name: str) -> None:
    """The script that looks for due executions builds names itself: what it leaves as it is, and what it encodes, is the same."""
    encoded = re.sub(rb"[^A-Za-z0-9_.~-]", lambda char: b"%%%02X" % char[0][0], name.encode())
    assert Keys("p").execution(name).head == b"p:execution:" + encoded + b":head"
