"""The extra places of a tree: never more are held than there are, and none is left unused while somebody waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from stepwell.clock import SystemClock
from stepwell.model.child_places import ChildPlaces, Holding
from stepwell.model.limits import Limits
from stepwell.model.record import Metadata
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.child_places import ExtraPlaces, PlaceRecords, PlacesNeeded
from stepwell.stores.memory.store import MemoryStore

EXTRA = 3


def ask(places: ChildPlaces, name: str, wanted: int, *, used: int = 0, fence: int = 1, extra: int = EXTRA) -> ChildPlaces:
    return places.asked(name, wanted, used, fence, extra)[0]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5))))
def test_places_are_never_exceeded_and_never_idle(asked: list[tuple[str, int]]) -> None:
    places, last = ChildPlaces(), dict[str, int]()
    for name, wanted in asked:
        places, last[name] = ask(places, name, wanted), wanted
        held = {each: places.held_by(each, 1) for each in "abcd"}
        assert all(held[each] <= last.get(each, 0) for each in held)
        assert sum(held.values()) == min(EXTRA, sum(last.values()))
        assert set(places.waiting) == {each for each, most in last.items() if held[each] < most}


def test_place_that_is_given_back_goes_to_the_one_that_has_waited_longest() -> None:
    places = ask(ask(ask(ChildPlaces(), "a", 3), "b", 2), "c", 1)
    assert places.waiting == ("b", "c")
    places, served = places.asked("a", 1, 1, 1, EXTRA)
    assert (places.held_by("b", 1), places.held_by("c", 1), served) == (1, 1, {"b", "c"})
    assert places.waiting == ("b",)


def test_one_that_asks_again_keeps_its_turn() -> None:
    places = ask(ask(ask(ChildPlaces(), "a", 3), "b", 1), "c", 1)
    assert ask(places, "b", 2).waiting == ("b", "c")


def test_repeated_request_changes_nothing() -> None:
    places = ask(ask(ChildPlaces(), "a", 2), "b", 2)
    assert ask(places, "a", 2, used=2) == places


def test_late_request_of_an_earlier_lease_is_not_heard() -> None:
    places = ask(ChildPlaces(), "a", 3, fence=2)
    assert places.asked("a", 0, 0, 1, EXTRA) == (places, set())
    assert (places.held_by("a", 1), places.held_by("a", 2)) == (0, 3)


def test_lowered_limit_takes_what_no_child_uses() -> None:
    places = ask(ChildPlaces(), "a", 3)
    assert ask(places, "a", 3, used=2, extra=1).holdings == {"a": Holding(2, 3, 1)}
    assert ask(places, "a", 3, used=0, extra=1).holdings == {"a": Holding(1, 3, 1)}


def test_places_of_ended_executions_are_free() -> None:
    places = ask(ask(ChildPlaces(), "a", 3), "b", 1).without({"a"})
    assert ask(places, "b", 1).holdings == {"b": Holding(1, 1, 1)}


def test_nobody_is_kept_who_wants_nothing() -> None:
    assert ask(ask(ChildPlaces(), "a", 3), "a", 0) == ChildPlaces()


def test_place_is_not_held_any_more_while_it_is_given_back() -> None:
    """Else a child that is started meanwhile would take a place that another execution gets."""
    store, wanted, held = MemoryStore(SystemClock(), Limits()), 2, list[int]()

    async def main() -> None:
        nonlocal wanted
        loop, group = asyncio.get_running_loop(), GroupCommit(store.write)
        driver = AsyncDriver(group, store, is_open=True)

        def needed() -> PlacesNeeded:
            loop.call_soon(lambda: held.append(places.held))  # before the store can have answered
            return PlacesNeeded(wanted, wanted)

        identity = Metadata("a", "acme", "w", 1, datetime.now(UTC))
        places = ExtraPlaces(PlaceRecords(store, driver), identity, 1, needed, lambda: None, set(), is_new=True)
        await places.settle(EXTRA)
        wanted = 1
        held.clear()
        await places.settle(EXTRA)
        held.append(places.held)
        group.close()

    asyncio.run(main())
    assert set(held) == {1}
