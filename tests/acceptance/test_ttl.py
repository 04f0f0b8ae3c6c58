"""Time to live: expired is absent at once, sliding lives while it is used (C4)."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from tests.acceptance.conftest import OpenWell

from stepwell import AsyncStepwell, FakeClock, InvalidInput, Stepwell
from stepwell.testing.store_access import store_under


def test_expired_is_absent_at_once(well: Stepwell, clock: FakeClock) -> None:
    scope = well.state.globals
    scope.set("k", 1, ttl=10)
    scope.set("d", 1, ttl=timedelta(minutes=1))
    assert scope.entry("k").expires_at == clock.now() + timedelta(seconds=10)
    clock.advance(9.999)
    assert scope.get("k") == 1
    clock.advance(0.001)
    assert scope.get("k") is None
    assert not scope.exists("k")
    assert scope.entry("k") is None
    assert scope.keys() == ["d"]
    assert scope.all() == {"d": 1}
    assert scope.get_many(["k", "d"]) == {"d": 1}
    assert not scope.delete("k")
    assert scope.set_if_absent("k", 2)
    assert scope.increment("x") == 1


def test_setting_anew_without_ttl_takes_it_away(well: Stepwell, clock: FakeClock) -> None:
    scope = well.state.globals
    scope.set("k", 1, ttl=10)
    scope.set("k", 2)
    clock.advance(100)
    assert scope.get("k") == 2


def test_sliding_ttl_lives_while_it_is_used(well: Stepwell, clock: FakeClock) -> None:
    scope = well.state.globals
    scope.set("s", 1, ttl=10, sliding=True)
    scope.set("m", 1, ttl=10, sliding=True)
    scope.set("f", 1, ttl=10)
    revision = scope.revision()
    for _ in range(5):
        clock.advance(6)
        assert scope.get("s") == 1
        assert scope.get_many(["m"]) == {"m": 1}
    assert scope.get("f") is None
    assert scope.entry("s").revision < revision
    assert scope.revision() == revision
    clock.advance(10)
    assert scope.get("s") is None


def test_increment_copy_and_move_take_the_ttl_along(well: Stepwell, clock: FakeClock) -> None:
    scope = well.state.globals
    scope.set("n", 1, ttl=10)
    clock.advance(4)
    scope.increment("n")
    scope.copy("n", "c")
    assert scope.entry("n").expires_at == scope.entry("c").expires_at == clock.now() + timedelta(seconds=6)
    clock.advance(6)
    assert scope.all() == {}


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "5", 0.0001, True])
def test_ttl_that_is_no_time_is_refused(well: Stepwell, ttl: float) -> None:
    """T22."""
    scope = well.state.globals
    for use in (
        lambda: scope.set("k", 1, ttl=ttl),
        lambda: scope.set_many({"k": 1}, ttl=ttl),
        lambda: scope.set_if_absent("k", 1, ttl=ttl),
        lambda: scope.compare_and_set("k", 1, revision=0, ttl=ttl),
    ):
        with pytest.raises(InvalidInput, match="ttl must be"):
            use()
    with pytest.raises(InvalidInput, match="needs a ttl"):
        scope.set("k", 1, sliding=True)
    assert scope.all() == {}


def test_sweep_gives_the_space_of_expired_keys_back(well: Stepwell, clock: FakeClock) -> None:
    scope = well.state.globals
    scope.set_many({f"k{number}": number for number in range(5)}, ttl=10)
    scope.set("stays", 1)
    assert well.state.sweep() == 0
    clock.advance(10)
    assert well.state.sweep() == 5
    assert well.state.sweep() == 0
    assert scope.all() == {"stays": 1}
    clock.advance(3600 * 24)
    well.state.sweep()
    assert [change.key for change in scope.watch(since=0, idle_seconds=0)] == ["stays"]


def test_keys_with_an_end_are_swept_by_themselves(open_well: OpenWell, clock: FakeClock) -> None:
    well = open_well("memory://", clock=clock)
    for number in range(1_200):
        well.state.globals.set(f"k{number % 300}", number, ttl=1)
        clock.advance(0.1)
    assert sum(not change.is_deleted for change in well.state.globals.watch(since=0, idle_seconds=0)) < 300


def test_reads_of_sliding_keys_ask_a_store_nothing_from_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may wait for its disk or network, and everything else on the loop with it."""
    askers: list[threading.Thread] = []

    async def main() -> None:
        async with AsyncStepwell(f"sqlite:///{tmp_path / 'well.db'}", worker=False) as well:
            scope, store = well.state.globals, store_under(well)
            await scope.set("k", 1, ttl=3600, sliding=True)
            await well.conversations.set("c", {"n": 1})
            monkeypatch.setattr(store, "now_ms", lambda: askers.append(threading.current_thread()) or 0)
            await scope.get("k")
            await scope.get_many(["k"])
            await anext(aiter(scope.watch(since=0)))
            await well.conversations.get("c")

    asyncio.run(main())
    assert threading.current_thread() not in askers
