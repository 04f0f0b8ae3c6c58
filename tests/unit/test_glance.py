"""Glances: a moment's look for a reply, and how often it is worth it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from stepwell.stores import glance as module
from stepwell.stores.glance import Glance


class Watch:
    """A clock that goes on by itself with every look at a connection, and the looks that were taken."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, 0

    def reply_after(self, seconds: float, step: float = 0.00001) -> Callable[[], bool]:
        """A connection whose reply is there so long from now; a look at it takes a step."""
        there_at = self.now + seconds

        def look() -> bool:
            self.looks += 1
            self.now += step
            return self.now >= there_at

        return look


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(module, "perf_counter", lambda: watch.now)
    return watch


def looked(watch: Watch, glance: Glance, seconds: float, times: int) -> list[bool]:
    """For each of some replies, whether anybody looked for it."""
    found = []
    for _ in range(times):
        before = watch.looks
        glance.take(watch.reply_after(seconds))
        found.append(watch.looks > before)
    return found


def test_reply_that_comes_soon_is_found_every_time(watch: Watch) -> None:
    glance = Glance()
    assert all(glance.take(watch.reply_after(0.00005)) for _ in range(50))


def test_reply_that_takes_long_is_left_to_whoever_waits_for_it(watch: Watch) -> None:
    began = watch.now
    assert not Glance().take(watch.reply_after(1.0))
    assert watch.now - began < 0.0002


def test_fruitless_looks_become_ever_rarer(watch: Watch) -> None:
    taken = looked(watch, Glance(), 1.0, 10_000)
    places = [number for number, each in enumerate(taken) if each]
    skipped = [later - earlier - 1 for earlier, later in pairwise(places)]
    assert skipped[:9] == [8, 16, 32, 64, 128, 256, 512, 1024, 1024]


def test_fruitful_look_after_a_bad_time_makes_them_common_again(watch: Watch) -> None:
    glance = Glance()
    looked(watch, glance, 1.0, 500)
    assert any(looked(watch, glance, 0.00005, 600)[-50:])
    assert all(looked(watch, glance, 0.00005, 50))


def test_look_that_took_long_itself_counts_as_fruitless_but_its_reply_is_not_lost(watch: Watch) -> None:
    """Another thread had the interpreter meanwhile: whoever looks gives it away each time."""
    glance = Glance()
    assert glance.take(watch.reply_after(0.0, step=0.005))
    assert looked(watch, glance, 0.00005, 9) == [False] * 8 + [True]


def test_failure_of_a_look_reaches_the_caller(watch: Watch) -> None:
    def broken() -> bool:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        Glance().take(broken)
