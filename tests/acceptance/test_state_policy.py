"""Conflict policies: what ``set`` does when somebody else has written: win, be refused, or merge in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.acceptance.conftest import OpenWell
from tests.support import store_urls

from stepwell import Conflict, FakeClock, InvalidInput, Stepwell
from stepwell.clock import SystemClock
from stepwell.model.limits import Limits
from stepwell.model.scoped_operations import Merge, Resolution, ScopeTotals, resolve
from stepwell.model.value import canonical

url = store_urls.url

LONG = 60


@pytest.fixture
def others(well: Stepwell, open_well: OpenWell, url: str, clock: FakeClock) -> Any:
    """Somebody else on the same store: another well where one can be opened, else another object."""
    return well if url.startswith("memory:") else open_well(url, clock=clock)


def test_the_last_writer_wins_unless_told_otherwise(well: Stepwell, others: Stepwell) -> None:
    mine, theirs = well.state.globals, others.state.globals.with_policy("last")
    mine.set("k", 1)
    theirs.set("k", 2)
    mine.set("k", 3)
    assert theirs.get("k") == 3


def test_reject_refuses_who_has_not_seen_the_newest_value(well: Stepwell, others: Stepwell) -> None:
    mine, theirs = (each.state.globals.with_policy("reject") for each in (well, others))
    mine.set("k", "mine")
    assert theirs.get("k") == "mine"
    theirs.set("k", "theirs")
    with pytest.raises(Conflict, match="read it again and decide"):
        mine.set("k", "blind")
    assert mine.get("k") == "theirs"
    mine.set("k", "seen")
    assert theirs.get("k") == "seen"


def test_reject_takes_a_key_that_was_never_read_for_a_new_one(well: Stepwell, others: Stepwell) -> None:
    others.state.globals.set("k", "theirs")
    mine = well.state.globals.with_policy("reject")
    with pytest.raises(Conflict):
        mine.set("k", "blind")
    with pytest.raises(Conflict):
        mine.set_many({"new": 1, "k": "blind"})
    assert others.state.globals.all() == {"k": "theirs"}


def test_reject_lets_a_writer_go_on_by_itself(well: Stepwell) -> None:
    mine = well.state.globals.with_policy("reject")
    for number in range(5):
        mine.set("k", number)
    assert mine.get("k") == 4


LOOKS: dict[str, Callable[[Any], object]] = {
    "get": lambda scope: scope.get("k"),
    "get with a type": lambda scope: scope.get("k", type=int),
    "entry": lambda scope: scope.entry("k"),
    "get_many": lambda scope: scope.get_many(["k", "absent"]),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_reject_counts_every_way_of_reading(well: Stepwell, others: Stepwell, look: Callable[[Any], object]) -> None:
    others.state.globals.set("k", 1)
    mine = well.state.globals.with_policy("reject")
    look(mine)
    mine.set("k", 2)
    others.state.globals.set("k", 3)
    with pytest.raises(Conflict):
        mine.set("k", 4)


def test_reject_does_not_count_a_look_that_shows_no_value(well: Stepwell, others: Stepwell) -> None:
    others.state.globals.set("k", 1)
    mine = well.state.globals.with_policy("reject")
    assert mine.exists("k")
    with pytest.raises(Conflict):
        mine.set("k", 2)


OWN_WRITES: dict[str, Callable[[Any], object]] = {
    "set_many": lambda scope: scope.set_many({"k": 1, "other": 2}),
    "set_if_absent": lambda scope: scope.set_if_absent("k", 1),
    "compare_and_set": lambda scope: scope.compare_and_set("k", 1, revision=0),
    "delete": lambda scope: (scope.set("k", 1), scope.delete("k")),
    "delete_many": lambda scope: (scope.set("k", 1), scope.delete_many(["k"])),
    "clear": lambda scope: (scope.set("k", 1), scope.clear()),
}


@pytest.mark.parametrize("write", OWN_WRITES.values(), ids=OWN_WRITES)
def test_reject_does_not_refuse_a_writer_for_its_own_writes(
    well: Stepwell, others: Stepwell, write: Callable[[Any], object]
) -> None:
    mine = well.state.globals.with_policy("reject")
    write(mine)
    mine.set("k", 2)
    others.state.globals.set("k", 3)
    with pytest.raises(Conflict):
        mine.set("k", 4)


def test_reject_notices_a_deletion(well: Stepwell, others: Stepwell) -> None:
    mine = well.state.globals.with_policy("reject")
    mine.set("k", 1)
    others.state.globals.delete("k")
    with pytest.raises(Conflict):
        mine.set("k", 2)
    assert mine.get("k") is None
    mine.set("k", 3)


def test_reject_notices_a_key_that_was_deleted_and_set_again(well: Stepwell, others: Stepwell) -> None:
    """The value is the same, the revision is not."""
    mine = well.state.globals.with_policy("reject")
    mine.set("k", 1)
    others.state.globals.delete("k")
    others.state.globals.set("k", 1)
    with pytest.raises(Conflict):
        mine.set("k", 2)


def test_objects_that_share_a_scope_do_not_share_what_they_saw(well: Stepwell) -> None:
    one, other = (well.state.globals.with_policy("reject") for _ in range(2))
    one.set("k", 1)
    with pytest.raises(Conflict):
        other.set("k", 2)


def test_nothing_is_remembered_of_keys_unless_it_is_needed(well: Stepwell) -> None:
    scope = well.state.globals
    for number in range(20):
        scope.set(f"k{number}", number)
        scope.get(f"k{number}")
    assert scope._do._seen == {}


MERGED: dict[str, tuple[list[Any], Any]] = {
    "add": ([5, -2, 4], 7),
    "max": ([5, -2, 8, 4], 8),
    "min": ([5, -2, 8, 4], -2),
    "union": ([["b", "a"], ["c"], ["a", "c"]], ["a", "b", "c"]),
}


@pytest.mark.parametrize("policy", MERGED)
def test_a_merge_comes_to_the_same_in_any_order(well: Stepwell, others: Stepwell, policy: str) -> None:
    values, outcome = MERGED[policy]
    for number, order in enumerate(list(itertools.permutations(values))[::3]):
        for each, writer in zip(order, itertools.cycle((well, others)), strict=False):
            writer.state.globals.with_policy(policy).set(f"k{number}", each)
        assert well.state.globals.get(f"k{number}") == outcome


@pytest.mark.parametrize("policy", MERGED)
def test_merge_says_what_it_came_to(well: Stepwell, policy: str) -> None:
    values, outcome = MERGED[policy]
    assert [well.state.globals.merge("k", value, policy) for value in values][-1] == outcome
    assert well.state.globals.with_policy(policy).set("k", values[0]) == well.state.globals.revision()


@pytest.mark.parametrize("policy", MERGED)
def test_set_many_merges_each_key(well: Stepwell, policy: str) -> None:
    values, outcome = MERGED[policy]
    scope = well.state.globals.with_policy(policy)
    for value in values:
        scope.set_many({"a": value, "b": value})
    assert scope.all() == {"a": outcome, "b": outcome}


def test_writers_on_two_wells_lose_nothing(url: str, clock: FakeClock) -> None:
    """Four threads, two wells, no lock: every addition counts, every member is there."""
    with Stepwell(url, clock=clock) as one, Stepwell(url, clock=clock) as two, ThreadPoolExecutor(4) as threads:
        wells = [one, one] if url.startswith("memory:") else [one, two]

        def work(number: int) -> None:
            scope = wells[number % 2].state.globals
            for step in range(15):
                scope.with_policy("add").set("sum", 1)
                scope.with_policy("max").set("max", number * 100 + step)
                scope.with_policy("min").set("min", -number * 100 - step)
                scope.with_policy("union").set("members", [[number, step]])

        for done in [threads.submit(work, number) for number in range(4)]:
            done.result(LONG)
        state = one.state.globals.all()
        assert (state["sum"], state["max"], state["min"]) == (60, 314, -314)
        assert sorted(state["members"]) == [[number, step] for number in range(4) for step in range(15)]


def test_reject_on_two_wells_has_exactly_one_winner_each_time(url: str, clock: FakeClock) -> None:
    """A counter that is read and written back: each writer tries again until it was first; none is lost."""
    with Stepwell(url, clock=clock) as one, Stepwell(url, clock=clock) as two, ThreadPoolExecutor(4) as threads:
        wells = [one, one] if url.startswith("memory:") else [one, two]

        def work(number: int) -> None:
            scope = wells[number % 2].state.globals.with_policy("reject")
            done = 0
            while done < 10:
                try:
                    scope.set("n", scope.get("n", 0) + 1)
                    done += 1
                except Conflict:
                    continue

        for done in [threads.submit(work, number) for number in range(4)]:
            done.result(LONG)
        assert one.state.globals.get("n") == 40


def together(how: str, values: list[Any]) -> Any:
    """Return the result of merging values in turn into an absent key."""
    outcome = resolve(
        [Merge("global/", "k", _raw(value), how) for value in values],
        lambda scope, key: None,
        lambda scope: ScopeTotals(),
        SystemClock().now_ms(),
        Limits(),
        lambda scope: [],
    )
    assert isinstance(outcome, Resolution), outcome
    return outcome.answers[-1]


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(canonical(value))


numbers = st.integers(-(2**40), 2**40) | st.integers(-3, 3)
mixed = numbers | st.floats(-4, 4, allow_nan=False).map(lambda number: round(number * 2) / 2)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
atoms = st.none() | st.booleans() | numbers | st.floats(-1e6, 1e6, allow_nan=False) | text
MERGEABLE: dict[str, st.SearchStrategy[Any]] = {
    "add": numbers,
    "max": mixed,
    "min": mixed,
    "union": st.lists(atoms | st.lists(atoms, max_size=2), max_size=4),
}


@st.composite
def merges(draw: st.DrawFn) -> tuple[str, list[Any], list[Any], int]:
    how = draw(st.sampled_from(sorted(MERGEABLE)))
    values = draw(st.lists(MERGEABLE[how], min_size=2, max_size=6))
    return how, values, draw(st.permutations(values)), draw(st.integers(1, len(values) - 1))


@settings(max_examples=300, deadline=None)
@given(merges())
def test_merges_are_commutative_and_associative(drawn: tuple[str, list[Any], list[Any], int]) -> None:
    """In any order, and with any of them merged elsewhere before: the same bytes."""
    how, values, shuffled, cut = drawn
    whole = canonical(together(how, values))
    assert canonical(together(how, shuffled)) == whole
    left, right = together(how, values[:cut]), together(how, values[cut:])
    assert canonical(together(how, [left, right])) == canonical(together(how, [right, left])) == whole


@settings(max_examples=100, deadline=None)
@given(merges())
def test_merging_again_changes_nothing_but_a_sum(drawn: tuple[str, list[Any], list[Any], int]) -> None:
    how, values, _, _ = drawn
    if how != "add":
        assert canonical(together(how, [*values, *values])) == canonical(together(how, values))
    else:
        assert together(how, values) == reduce(lambda one, other: one + other, values)


BAD_MERGES: list[tuple[str, Any, Any]] = [
    ("add", "text", 1),
    ("add", 1, "text"),
    ("add", 1, True),
    ("add", True, 1),
    ("add", 2**63 - 1, 1),
    ("add", 1e308, 1e308),
    ("max", [1], 1),
    ("max", None, 1),
    ("min", 1, None),
    ("union", 1, [1]),
    ("union", [1], 1),
    ("union", {"a": 1}, [1]),
    ("union", [1], "ab"),
]


def test_what_cannot_be_merged_is_refused_and_stays_as_it_was(well: Stepwell) -> None:
    for how, before, given_ in BAD_MERGES:
        well.state.globals.set("k", before)
        with pytest.raises(InvalidInput):
            well.state.globals.merge("k", given_, how)
        with pytest.raises(InvalidInput):
            well.state.globals.with_policy(how).set("k", given_)
        assert well.state.globals.get("k") == before


def test_a_value_that_can_never_be_merged_is_refused_on_a_new_key(well: Stepwell) -> None:
    for how, value in (("add", "text"), ("max", [1]), ("union", 1)):
        with pytest.raises(InvalidInput):
            well.state.globals.merge("k", value, how)
    assert well.state.globals.all() == {}


def test_a_merge_keeps_the_end_of_its_key(well: Stepwell, clock: FakeClock) -> None:
    scope = well.state.globals
    scope.set("fixed", 1, ttl=60)
    scope.set("sliding", 1, ttl=60, sliding=True)
    clock.advance(40)
    for key in ("fixed", "sliding"):
        scope.with_policy("add").set(key, 1)
    clock.advance(40)
    assert scope.all() == {"sliding": 2}


def test_a_merge_takes_no_end_of_its_own(well: Stepwell) -> None:
    """It would have to be merged, too; so it is refused and not quietly dropped."""
    scope = well.state.globals.with_policy("max")
    with pytest.raises(InvalidInput, match="keeps the time to live"):
        scope.set("k", 1, ttl=60)
    with pytest.raises(InvalidInput, match="keeps the time to live"):
        scope.set_many({"k": 1}, ttl=60, sliding=True)
    assert scope.all() == {}


def test_an_unknown_policy_is_refused(well: Stepwell) -> None:
    for policy in ("", "LAST", "concat", None, 7):
        with pytest.raises(InvalidInput, match="is no conflict policy; use one of last, reject, add, max, min, union"):
            well.state.globals.with_policy(policy)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="is no way to merge; use one of add, max, min, union"):
            well.state.globals.merge("k", 1, policy)  # type: ignore[arg-type]
