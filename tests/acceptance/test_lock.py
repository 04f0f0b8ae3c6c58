"""Locks: one holder at a time, who is unique, gives back only what is its own, and hears of a loss."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support import store_urls

from stepwell import FakeClock, HeldLock, InvalidInput, LeaseLost, LimitExceeded, LockHeld, Stepwell
from stepwell.model.lock import conversation_lock, scheduled_lock, user_lock
from stepwell.testing.store_access import store_under

url = store_urls.url


def lock_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "stepwell.state.locks"]


def is_free(well: Stepwell, name: str) -> bool:
    """Whether the lock can be had right now; it is given back at once."""
    lock = well.lock(name)
    try:
        lock.acquire()
    except LockHeld:
        return False
    return lock.release()


def test_a_lock_that_is_held_is_refused_at_once(well: Stepwell, clock: FakeClock) -> None:
    with well.lock("door", seconds=30), pytest.raises(LockHeld, match="'door' is held by another") as refusal:
        well.lock("door").acquire()
    assert refusal.value.until_ms is not None
    assert refusal.value.until_ms > 0


def test_a_lock_can_be_had_again_after_the_block(well: Stepwell) -> None:
    with well.lock("door"):
        assert not is_free(well, "door")
    assert is_free(well, "door")


def test_a_lock_can_be_had_again_after_an_exception_in_the_block(well: Stepwell) -> None:
    with pytest.raises(ZeroDivisionError), well.lock("door"):
        raise ZeroDivisionError
    assert is_free(well, "door")


def test_acquire_and_release_do_what_the_block_does(well: Stepwell) -> None:
    lock = well.lock("door")
    held = lock.acquire()
    assert not is_free(well, "door")
    assert lock.release() is True
    assert held.is_lost is False
    assert is_free(well, "door")


def test_a_lock_is_given_back_once(well: Stepwell, caplog: pytest.LogCaptureFixture) -> None:
    lock = well.lock("door")
    lock.acquire()
    lock.release()
    with well.lock("door"):
        assert lock.release() is False
        assert not is_free(well, "door")
    assert lock_warnings(caplog) == []


def test_every_holder_is_another_and_has_a_higher_fence(well: Stepwell) -> None:
    held: list[HeldLock] = []
    for number in range(20):
        with well.lock(f"door-{number % 3}") as one:
            held.append(one)
    assert len({one.holder for one in held}) == 20
    fences = [one.fence for one in held]
    assert fences == sorted(set(fences))


def test_a_held_lock_says_what_it_is(well: Stepwell) -> None:
    with well.lock("front door", seconds=timedelta(minutes=2)) as held:
        assert (held.label, held.seconds, held.is_lost) == ("front door", 120, False)
        held.check()
        assert (held.guard.name, held.guard.fence) == (held.name, held.fence)


@store_urls.on_shared_stores
def test_locks_hold_between_wells(open_well: OpenWell, url: str, clock: FakeClock) -> None:
    one, other = open_well(url, clock=clock), open_well(url, clock=clock)
    with one.lock("door") as first:
        assert not is_free(other, "door")
    with other.lock("door") as second:
        assert not is_free(one, "door")
    assert second.fence > first.fence


def test_a_lock_ends_by_itself_when_its_holder_is_gone(well: Stepwell, clock: FakeClock) -> None:
    well.lock("door", seconds=300).acquire()
    clock.advance(200)
    assert not is_free(well, "door")
    clock.advance(101)
    assert is_free(well, "door")


def test_release_of_a_lost_lock_warns_and_leaves_the_new_holder_alone(
    well: Stepwell, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """T20."""
    slow, quick = well.lock("door", seconds=30), well.lock("door", seconds=30)
    lost = slow.acquire()
    clock.advance(31)
    present = quick.acquire()
    with caplog.at_level(logging.WARNING):
        assert slow.release() is False
    assert [text for text in lock_warnings(caplog) if "'door' had expired before it was given back" in text]
    assert lost.is_lost
    with pytest.raises(LeaseLost) as loss:
        lost.check()
    assert loss.value.fence == lost.fence
    assert not present.is_lost
    assert not is_free(well, "door")
    assert quick.release() is True


def test_a_block_that_outlived_its_lock_ends_with_a_warning_and_no_error(
    well: Stepwell, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with well.lock("door", seconds=30) as held:
        clock.advance(31)
        other = well.lock("door", seconds=30)
        other.acquire()
    assert held.is_lost
    assert len(lock_warnings(caplog)) == 1
    assert other.release() is True


def test_a_lock_that_expired_while_nobody_came_warns_as_well(
    well: Stepwell, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with well.lock("door", seconds=30):
        clock.advance(31)
    assert len(lock_warnings(caplog)) == 1
    assert is_free(well, "door")


def test_threads_that_share_a_lock_object_give_back_their_own_hold_only(url: str, clock: FakeClock) -> None:
    """T20: one thread slept over its lease; the other took the same object's lock meanwhile and keeps it."""
    with Stepwell(url, clock=clock) as well, ThreadPoolExecutor(1) as thread:
        shared = well.lock("door", seconds=30)
        slept = thread.submit(shared.acquire).result(60)
        clock.advance(31)
        present = shared.acquire()
        assert present.fence > slept.fence
        assert thread.submit(shared.release).result(60) is False
        assert slept.is_lost
        assert not is_free(well, "door")
        assert shared.release() is True


def test_a_lock_taken_in_one_thread_can_be_given_back_in_another(url: str, clock: FakeClock) -> None:
    with Stepwell(url, clock=clock) as well, ThreadPoolExecutor(1) as thread:
        lock = well.lock("door")
        thread.submit(lock.acquire).result(60)
        assert lock.release() is True
        assert is_free(well, "door")


def test_only_one_of_many_threads_gets_the_lock(url: str, clock: FakeClock) -> None:
    with Stepwell(url, clock=clock) as well, ThreadPoolExecutor(8) as threads:
        gate = threading.Barrier(8, timeout=60)

        def grab(_: int) -> bool:
            gate.wait()
            try:
                well.lock("door").acquire()
            except LockHeld:
                return False
            return True

        assert sorted(threads.map(grab, range(8))) == [False] * 7 + [True]


NO_SPANS: list[Any] = [
    0,
    0.0,
    -1,
    -0.001,
    float("nan"),
    float("inf"),
    float("-inf"),
    1e300,
    10**400,
    367 * 24 * 3600,
    0.0004,
    5e-324,
    True,
    False,
    "30",
    None,
    [30],
    timedelta(0),
    timedelta(seconds=-1),
    timedelta(microseconds=400),
    timedelta.max,
]
NO_TIMEOUTS: list[Any] = [-1, -0.001, float("nan"), float("inf"), 1e300, 10**400, True, "1", [1], timedelta(-1), timedelta.max]


def refuse_every_call(well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*_: object, **__: object) -> None:
        raise AssertionError("the store was reached")

    for verb in ("write", "entries", "scan", "totals", "listen", "now_ms"):
        monkeypatch.setattr(store_under(well), verb, reached)


SPANS: dict[str, Callable[[Any, Any], object]] = {
    "lock": lambda well, span: well.lock("door", seconds=span),
    "scheduled at_most": lambda well, span: well.scheduled_lock("job", at_most=span),
    "conversation": lambda well, span: well.conversations.lock("c", seconds=span),
    "turn": lambda well, span: well.conversations.turn("c", print, seconds=span),
    "lasting": lambda well, span: well.conversations.lasting(span),
}
TIMEOUTS: dict[str, Callable[[Any, Any], object]] = {
    "lock": lambda well, span: well.lock("door", timeout=span),
    "conversation": lambda well, span: well.conversations.lock("c", timeout=span),
    "turn": lambda well, span: well.conversations.turn("c", print, timeout=span),
    "scheduled at_least": lambda well, span: well.scheduled_lock("job", at_most=30, at_least=span),
}


@pytest.mark.parametrize("ask", SPANS.values(), ids=SPANS)
def test_a_span_that_is_none_is_refused_before_any_store_call(
    ask: Callable[[Any, Any], object], open_well: OpenWell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T22."""
    well = open_well("memory://", worker=False)
    refuse_every_call(well, monkeypatch)
    for span in NO_SPANS:
        with pytest.raises(InvalidInput, match=r"must be (seconds or a text|from 0\.001 seconds to 1 year)"):
            ask(well, span)


@pytest.mark.parametrize("ask", TIMEOUTS.values(), ids=TIMEOUTS)
def test_a_timeout_that_is_none_is_refused_before_any_store_call(
    ask: Callable[[Any, Any], object], open_well: OpenWell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T22: and so is the least time that a scheduled lock stays taken."""
    well = open_well("memory://", worker=False)
    refuse_every_call(well, monkeypatch)
    for span in NO_TIMEOUTS:
        with pytest.raises(InvalidInput, match=r"must be (seconds or a text|from 0 seconds to 1 year)"):
            ask(well, span)


def test_the_shortest_and_the_longest_span_are_held(well: Stepwell) -> None:
    for span in (0.001, 1, 30.5, timedelta(milliseconds=1), timedelta(days=366)):
        lock = well.lock("door", seconds=span)
        assert lock.acquire().seconds > 0
        lock.release()


def test_a_name_that_no_store_can_keep_is_refused(open_well: OpenWell) -> None:
    well: Any = open_well("memory://")
    for ask in (well.lock, lambda name: well.scheduled_lock(name, at_most=1), well.conversations.lock):
        for name in ("", "a\0b", "\ud800", 7, None, b"door"):
            with pytest.raises(InvalidInput):
                ask(name)
        with pytest.raises(LimitExceeded):
            ask("d" * 513)


def test_no_two_kinds_of_lock_ever_meet(well: Stepwell) -> None:
    """T46: names that look like each other's addresses."""
    odd = ["a", "a/b", "default/a", "a%2Fb", "conversation/default/a", "user/a", "*", "[a]", "{a}", " ", "é"]
    names = {user_lock(name) for name in odd} | {scheduled_lock(name) for name in odd}
    names |= {conversation_lock(name, workspace) for name in odd for workspace in odd}
    assert len(names) == 2 * len(odd) + len(odd) ** 2
    conversations = well.conversations
    with well.lock("a/b"), well.scheduled_lock("a/b", at_most=30), conversations.lock("a/b"), conversations.within("a").lock("b"):
        assert not is_free(well, "a/b")
