"""Clocks: aware times, exact milliseconds, and one that a test moves."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import FakeClock, InvalidInput, SystemClock
from stepwell.clock import from_ms, to_ms


def test_system_clock_gives_the_time_in_utc() -> None:
    clock, before = SystemClock(), time.time()
    now, now_ms = clock.now(), clock.now_ms()
    assert now.tzinfo is UTC
    assert before <= now.timestamp() <= time.time()
    assert int(before * 1000) <= now_ms <= time.time() * 1000
    assert clock.ahead_ms() == 0


def test_fake_clock_stands_until_it_is_moved() -> None:
    clock = FakeClock()
    assert clock.now() == clock.now() == datetime(2026, 1, 1, tzinfo=UTC)
    clock.advance(1.5)
    assert clock.now() == datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert clock.ahead_ms() == 1_500
    assert clock.now_ms() == to_ms(clock.now())


def test_fake_clock_starts_where_it_is_told() -> None:
    start = datetime(1999, 12, 31, tzinfo=UTC)
    assert FakeClock(start).now() == start


def test_fake_clock_does_not_go_back() -> None:
    for span in (-1, "-1s", timedelta(seconds=-1), "soon", None, float("nan")):
        with pytest.raises(InvalidInput, match="what a clock is moved by must be"):
            FakeClock().advance(span)


@pytest.mark.parametrize("span", [90, "90s", "1m30s", timedelta(seconds=90)])
def test_fake_clock_is_moved_by_any_span(span: Any) -> None:
    clock = FakeClock()
    clock.advance(span)
    assert clock.ahead_ms() == 90_000


@pytest.mark.parametrize("start", [5, "2026-01-01", datetime(2026, 1, 1)])  # noqa: DTZ001 - the one that is refused
def test_fake_clock_starts_at_a_time_with_a_zone(start: Any) -> None:
    with pytest.raises(InvalidInput, match="with a time zone"):
        FakeClock(start)


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis wants it so
@settings(max_examples=100, deadline=None)
def test_milliseconds_are_exact(moment: datetime) -> None:
    whole = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert from_ms(to_ms(moment)) == whole
    assert to_ms(whole) == to_ms(moment.astimezone(timezone(timedelta(hours=5))))


def test_epoch_and_before_it() -> None:
    assert to_ms(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert to_ms(datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)) == -1
    assert from_ms(-1) == datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
