"""The read cache: from memory while nobody is known to have written, and never older than its bound."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support import store_urls
from tests.support.polling import until

from stepwell import AsyncStepwell, CommitUnknown, FakeClock, InvalidInput, Scope, Stepwell
from stepwell.fault_points import armed
from stepwell.pipeline.notifications import STATE
from stepwell.state import read_cache as cache_module
from stepwell.testing.store_access import parts_of, store_under

url = store_urls.url

LONG = 60
"""Seconds that a test waits for what must happen soon; reached only if it fails."""


class Reads:
    """Counts what is read from the store."""

    def __init__(self, well: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        # The store's own word may come late, twice, or for nothing; what this process writes is told without it.
        monkeypatch.setattr(store_under(well), "listen", lambda wake: lambda: None)
        entries = store_under(well).entries

        def counted(scope: str, keys: list[str]) -> object:
            self.count += 1
            return entries(scope, keys)

        monkeypatch.setattr(store_under(well), "entries", counted)


@pytest.fixture
def reads(well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(well, monkeypatch)


class Seconds:
    """Time as the cache counts it, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    seconds = Seconds()
    monkeypatch.setattr(cache_module, "monotonic", seconds)
    return seconds


def test_a_value_is_read_from_the_store_once(well: Stepwell, reads: Reads) -> None:
    well.state.globals.set("k", {"n": 1})
    cache = well.state.globals.cached()
    assert [cache.get("k") for _ in range(5)] == [{"n": 1}] * 5
    assert reads.count == 1


def test_a_key_that_is_not_there_is_remembered_as_well(well: Stepwell, reads: Reads) -> None:
    cache = well.state.globals.cached()
    assert cache.get("k") is None
    assert cache.get("k", default=7) == 7
    assert reads.count == 1


def test_what_a_reader_does_to_a_value_stays_with_that_reader(well: Stepwell) -> None:
    well.state.globals.set("k", [1])
    cache = well.state.globals.cached()
    for _ in range(3):
        value = cache.get("k")
        assert value == [1]
        value.append(2)


WRITES: dict[str, tuple[Callable[[Any], object], object]] = {
    "set": (lambda well: well.state.globals.set("k", 2), 2),
    "set_many": (lambda well: well.state.globals.set_many({"k": 2, "other": 3}), 2),
    "delete": (lambda well: well.state.globals.delete("k"), None),
    "delete_many": (lambda well: well.state.globals.delete_many(["k"]), None),
    "clear": (lambda well: well.state.globals.clear(), None),
    "increment": (lambda well: well.state.globals.increment("k", 4), 5),
    "merge": (lambda well: well.state.globals.merge("k", 9, "max"), 9),
    "compare_and_set": (lambda well: _compare_and_set(well.state.globals), 2),
    "move": (lambda well: well.state.globals.move("k", "elsewhere"), None),
    "transaction": (lambda well: _in_transaction(well.state.transaction()), 2),
    "commit of an execution": (lambda well: _in_transaction(well.transaction("run")), 2),
}


def _compare_and_set(scope: Any) -> None:
    scope.compare_and_set("k", 2, revision=scope.entry("k").revision)


def _in_transaction(transaction: Any) -> None:
    with transaction as tx:
        tx.state(Scope.globals()).set("k", 2)


def test_a_writer_reads_what_it_wrote(well: Stepwell) -> None:
    well.create("run")
    cache = well.state.globals.cached(max_age=3600)
    for name, (write, after) in WRITES.items():
        well.state.globals.set("k", 1)
        assert cache.get("k") == 1
        write(well)
        assert cache.get("k") == after, name


def test_threads_read_what_they_wrote(url: str) -> None:
    """Many threads write and read through one cache; nobody ever reads less than it wrote."""
    with Stepwell(url) as well, well.state.globals.cached(max_age=3600) as cache, ThreadPoolExecutor(4) as threads:

        def work(key: str) -> None:
            for number in range(40):
                well.state.globals.set(key, number)
                assert cache.get(key) == number
                cache.get("another")

        for done in [threads.submit(work, key) for key in "abcd"]:
            done.result(LONG)


@store_urls.on_shared_stores
def test_a_write_of_another_well_drops_the_value(url: str, clock: FakeClock) -> None:
    with Stepwell(url, clock=clock) as one, Stepwell(url, clock=clock) as other:
        one.state.globals.set("k", 0)
        with one.state.globals.cached(max_age=3600) as cache:
            for number in range(1, 6):
                cache.get("k")
                other.state.globals.set("k", number)
                until(lambda: cache.get("k") == number)  # noqa: B023 - looked at inside the loop


@store_urls.on_shared_stores
def test_a_task_hears_of_a_write_of_another_well(url: str, clock: FakeClock) -> None:
    async def main() -> None:
        async with AsyncStepwell(url, clock=clock) as one, AsyncStepwell(url, clock=clock) as other:
            await one.state.globals.set("k", 1)
            cache = one.state.globals.cached(max_age=3600)
            assert await cache.get("k") == 1
            await other.state.globals.set("k", 2)
            async with asyncio.timeout(LONG):
                while await cache.get("k") == 1:  # noqa: ASYNC110 - there is no event for an invalidated cache
                    await asyncio.sleep(0.01)
            assert await cache.get("k") == 2
            cache.close()

    asyncio.run(main())


@store_urls.on_shared_stores
def test_a_value_is_never_served_beyond_its_age_even_if_the_news_was_lost(
    open_well: OpenWell, url: str, clock: FakeClock, seconds: Seconds
) -> None:
    one, other = open_well(url, clock=clock), open_well(url, clock=clock)
    one.state.globals.set("k", "old")
    cache = one.state.globals.cached(max_age=5)
    parts_of(one).notifications.close()  # from now on no word arrives
    assert cache.get("k") == "old"
    other.state.globals.set("k", "new")
    seconds.now += 4.9
    assert cache.get("k") == "old"
    seconds.now += 0.2
    assert cache.get("k") == "new"


def test_the_age_counts_from_the_question_and_not_from_the_answer(well: Stepwell, reads: Reads, seconds: Seconds) -> None:
    """The answer may be as old as the moment it was asked for."""
    well.state.globals.set("k", 1)
    cache = well.state.globals.cached(max_age=5)
    read = store_under(well).entries

    def slow(scope: str, keys: list[str]) -> object:
        found = read(scope, keys)
        seconds.now += 3
        return found

    store_under(well).entries = slow  # type: ignore[method-assign]
    cache.get("k")
    assert reads.count == 1
    seconds.now += 1.9
    cache.get("k")
    assert reads.count == 1
    seconds.now += 0.2
    cache.get("k")
    assert reads.count == 2


def test_a_value_that_was_overtaken_while_it_was_read_is_not_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer is first, after the read and before the reader has the answer."""
    with Stepwell(url) as well:
        well.state.globals.set("k", "old")
        cache, read = well.state.globals.cached(3600), store_under(well).entries

        def overtaken(scope: str, keys: list[str]) -> object:
            found = read(scope, keys)
            monkeypatch.undo()
            well.state.globals.set("k", "new")
            return found

        monkeypatch.setattr(store_under(well), "entries", overtaken)
        assert cache.get("k") == "old"
        assert cache.get("k") == "new"


def test_a_value_is_not_served_past_its_ttl(well: Stepwell, clock: FakeClock) -> None:
    well.state.globals.set("k", 1, ttl=10)
    cache = well.state.globals.cached(max_age=3600)
    assert cache.get("k") == 1
    clock.advance(9)
    assert cache.get("k") == 1
    clock.advance(1)
    assert cache.get("k") is None


def test_a_ttl_ends_a_cached_value_as_time_passes(well: Stepwell, reads: Reads, seconds: Seconds) -> None:
    well.state.globals.set("k", 1, ttl=10)
    cache = well.state.globals.cached(max_age=3600)
    cache.get("k")
    seconds.now += 9.9
    cache.get("k")
    assert reads.count == 1
    seconds.now += 0.2
    cache.get("k")
    assert reads.count == 2


def test_a_sliding_ttl_goes_on_while_its_key_is_read_from_the_cache(well: Stepwell, clock: FakeClock) -> None:
    well.state.globals.set("k", 1, ttl=100, sliding=True)
    cache = well.state.globals.cached(max_age=3600)
    for _ in range(4):
        assert cache.get("k") == 1
        clock.advance(50)
    assert cache.get("k") == 1


def test_a_closed_cache_asks_the_store_each_time(well: Stepwell, reads: Reads) -> None:
    well.state.globals.set("k", 1)
    cache = well.state.globals.cached(max_age=3600)
    cache.get("k")
    cache.close()
    assert [cache.get("k"), cache.get("k")] == [1, 1]
    assert reads.count == 3


def test_news_between_a_read_and_its_keeping_are_not_missed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read after the notification never returns an older value, not even for a moment."""
    with Stepwell(url) as well:
        well.state.globals.set("k", "old")
        monkeypatch.setattr(store_under(well), "listen", lambda wake: lambda: None)
        cache = well.state.globals.cached(3600)
        encode = cache_module.recode

        def interrupted(value: object) -> bytes:
            monkeypatch.setattr(cache_module, "recode", encode)
            well.state.globals.set("k", "new")
            return encode(value)

        monkeypatch.setattr(cache_module, "recode", interrupted)
        assert cache.get("k") == "old"
        assert cache.get("k") == "new"


def test_a_write_whose_reply_was_lost_drops_the_value(open_well: OpenWell, url: str) -> None:
    """T03: it may have landed."""
    well = open_well(url, worker=False)

    def lose_reply(point: str) -> None:
        if point == "store.committed":
            raise OSError

    well.state.globals.set("k", "old")
    cache = well.state.globals.cached(max_age=3600)
    assert cache.get("k") == "old"
    with armed(lose_reply), pytest.raises(CommitUnknown):
        well.state.globals.set("k", "new")
    assert cache.get("k") == "new"


def test_a_closed_cache_keeps_nothing_and_listens_no_more(open_well: OpenWell, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    well = open_well(url, worker=False)
    reads = Reads(well, monkeypatch)
    well.state.globals.set("k", 1)
    cache = well.state.globals.cached()
    assert parts_of(well).notifications.is_listening
    cache.get("k")
    cache.close()
    assert not parts_of(well).notifications.is_listening
    assert [cache.get("k") for _ in range(3)] == [1, 1, 1]
    assert reads.count == 4


def test_a_cache_ends_with_its_well(open_well: OpenWell, url: str, clock: FakeClock) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "stepwell-listener"}
    well = open_well(url, clock=clock)
    well.state.globals.cached()
    well.close()
    for thread in threading.enumerate():
        if thread.name == "stepwell-listener" and thread not in before:
            thread.join(LONG)
            assert not thread.is_alive()


def test_scopes_have_caches_of_their_own(well: Stepwell) -> None:
    well.state.custom("a").set("k", "a")
    well.state.custom("b").set("k", "b")
    assert [well.state.custom(name).cached().get("k") for name in "ab"] == ["a", "b"]


def test_keys_that_are_not_there_do_not_fill_the_memory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_MOST_KEYS", 10)
    with Stepwell(url) as well, well.state.globals.cached() as cache:
        for number in range(100):
            cache.get(f"k{number}")
            assert len(cache._values) <= 10


def test_an_age_that_is_none_is_refused(well: Stepwell) -> None:
    """T22."""
    for age in (0, -1, float("nan"), float("inf"), 1e300, True, "5", None):
        with pytest.raises(InvalidInput, match="max_age must be"):
            well.state.globals.cached(age)  # type: ignore[arg-type]
    assert STATE not in parts_of(well).notifications.topics
