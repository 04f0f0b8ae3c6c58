"""Spans of time are written one way everywhere: seconds, a text such as ``2m``, or a timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import FakeClock, Governance, InvalidInput, LockHeld, Retry, Stepwell

TWO_MINUTES: list[Any] = [120, 120.0, "2m", "1m60s", " 2 m ", timedelta(minutes=2)]


@pytest.mark.parametrize("span", TWO_MINUTES, ids=repr)
def test_a_ttl_is_any_span(well: Stepwell, clock: FakeClock, span: Any) -> None:
    well.create("run")
    scope = well.state.globals
    scope.set("a", 1, ttl=span)
    scope.set_many({"b": 1}, ttl=span, sliding=True)
    scope.set_if_absent("c", 1, ttl=span)
    scope.compare_and_set("d", 1, revision=0, ttl=span)
    with well.transaction("run") as tx:
        tx.state(scope).set("e", 1, ttl=span)
    clock.advance(119)
    assert scope.keys() == ["a", "b", "c", "d", "e"]
    clock.advance(1)
    assert scope.keys() == []


@pytest.mark.parametrize("span", TWO_MINUTES, ids=repr)
def test_a_lock_and_a_conversation_last_for_any_span(well: Stepwell, clock: FakeClock, span: Any) -> None:
    assert well.lock("door", seconds=span, timeout=span).acquire().seconds == 120
    assert well.conversations.lock("c", seconds=span, timeout=span).acquire().seconds == 120
    well.conversations.lasting(span).set("c", {"kept": True})
    clock.advance(121)
    assert well.conversations.get("c") is None


@pytest.mark.parametrize("span", TWO_MINUTES, ids=repr)
def test_a_scheduled_lock_is_held_for_any_span(well: Stepwell, clock: FakeClock, span: Any) -> None:
    with well.scheduled_lock("job", at_most="1h", at_least=span):
        pass
    clock.advance(119)
    with pytest.raises(LockHeld):
        well.scheduled_lock("job", at_most=span).acquire()
    clock.advance(1)
    well.scheduled_lock("job", at_most=span).acquire()


def test_waiting_for_changes_and_keeping_a_cache_take_any_span(well: Stepwell) -> None:
    scope = well.state.globals
    scope.set("k", 1)
    assert [change.key for change in scope.watch(since=0, idle_seconds="1ms")] == ["k"]
    cached = scope.cached("1m")
    assert cached.get("k") == 1
    cached.close()


@pytest.mark.parametrize("span", ["2 minutes", "m2", "-2m", "2m!", "", "1e3s", b"2m", [2], float("nan"), True], ids=repr)
def test_what_is_no_span_is_refused_where_it_is_given(well: Stepwell, span: Any) -> None:
    scope: Any = well.state.globals
    for ask in (
        lambda: scope.set("k", 1, ttl=span),
        lambda: well.lock("door", seconds=span),
        lambda: well.lock("door", timeout=span),
        lambda: well.scheduled_lock("job", at_most=span),
        lambda: well.scheduled_lock("job", at_most=60, at_least=span),
        lambda: well.conversations.lasting(span),
        lambda: list(scope.watch(since=0, idle_seconds=span)),
        lambda: scope.cached(span),
        lambda: well.drain(span),
    ):
        with pytest.raises(InvalidInput, match="must be"):
            ask()
    assert scope.keys() == []


@pytest.mark.parametrize("span", TWO_MINUTES, ids=repr)
def test_retries_and_budgets_are_given_any_span(span: Any) -> None:
    retry = Retry(first_seconds=span, max_seconds=span)
    assert (retry.first_seconds, retry.max_seconds) == (120, 120)
    assert Governance(seconds=span).seconds == 120


@pytest.mark.parametrize("span", ["2 minutes", "", "-2m", timedelta(seconds=-1)], ids=repr)
def test_retries_and_budgets_refuse_what_is_no_span(span: Any) -> None:
    for make in (lambda: Retry(first_seconds=span), lambda: Retry(max_seconds=span), lambda: Governance(seconds=span)):
        with pytest.raises(InvalidInput, match="must be"):
            make()
