"""When schedules tick: pure, with times from outside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import InvalidInput
from stepwell.clock import from_ms, to_ms
from stepwell.queue.schedule import Schedule, Timing, due_ticks, next_tick, placed, ticks_between, timing_of

NOW = to_ms(datetime(2026, 3, 1, tzinfo=UTC))
MINUTE = 60_000


def schedule(timing: Timing, *, catch_up: str = "none", next_ms: int | None = None, is_paused: bool = False) -> Schedule:
    return Schedule(
        name="s",
        workflow_id="w",
        version=1,
        input=msgspec.Raw(b"null"),
        workspace_id="default",
        timing=timing,
        catch_up=catch_up,  # pyright: ignore[reportArgumentType]
        since_ms=NOW,
        next_ms=next_ms,
        is_paused=is_paused,
    )


def local_times(cron: str, zone: str, start: datetime, count: int) -> list[str]:
    ticks = ticks_between(Timing(cron=cron, zone=zone), 0, to_ms(start), 2**53)
    return [from_ms(tick).isoformat() for tick in islice(ticks, count)]


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_a_fixed_time_in_a_skipped_hour_ticks_once_right_after_it(cron: str):
    # Berlin, 29 March 2026: 02:00 becomes 03:00, at 01:00 UTC.
    assert local_times(cron, "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), 2) == [
        "2026-03-29T01:00:00+00:00",
        "2026-03-30T00:30:00+00:00",
    ]


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_a_fixed_time_in_a_doubled_hour_ticks_once(cron: str):
    # Berlin, 25 October 2026: 03:00 becomes 02:00, at 01:00 UTC.
    assert local_times(cron, "Europe/Berlin", datetime(2026, 10, 24, 12, tzinfo=UTC), 2) == [
        "2026-10-25T00:30:00+00:00",
        "2026-10-26T01:30:00+00:00",
    ]


def test_after_a_fixed_time_in_a_doubled_hour_it_ticks_on_the_next_day():
    # Berlin, 27 October 2024, 02:10 for the second time: 02:30 was fired when it came first.
    now = to_ms(datetime(2024, 10, 27, 1, 10, tzinfo=UTC))
    following = next_tick(Timing(cron="30 2 * * *", zone="Europe/Berlin"), 0, now)
    assert following == to_ms(datetime(2024, 10, 28, 1, 30, tzinfo=UTC))


@pytest.mark.parametrize(
    ("cron", "hours"),
    [
        ("30 * * * *", ["14:30", "15:00", "16:00", "17:00"]),  # 01:30, 01:30 again, 02:30, 03:30
        ("0,30 * * * *", ["14:30", "15:00", "15:30", "16:00"]),
        ("0 */2 * * *", ["15:30", "17:30", "19:30", "21:30"]),
        ("45 1 * * *", ["14:45", "15:15", "15:15", "15:15"]),  # half an hour later on all days after this
        ("0 45 1 * * *", ["14:45", "15:15", "15:15", "15:15"]),
    ],
)
def test_in_a_doubled_half_hour_ticks_are_where_the_clocks_show_them(cron: str, hours: list[str]):
    # Lord Howe Island, 5 April 2026: 02:00 becomes 01:30, at 15:00 UTC on the day before.
    found = local_times(cron, "Australia/Lord_Howe", datetime(2026, 4, 4, 14, 15, tzinfo=UTC), 4)
    assert [tick[11:16] for tick in found] == hours


@pytest.mark.parametrize(
    ("cron", "hours"),
    [
        ("30 * * * *", ["15:00", "15:30", "16:30"]),  # 01:30, 02:30, 03:30
        ("15 2 * * *", ["15:30", "15:15", "15:15"]),
        ("*/10 15 2 * * *", ["15:30", "15:15", "15:15"]),
    ],
)
def test_in_a_skipped_half_hour_ticks_are_where_the_clocks_show_them(cron: str, hours: list[str]):
    # Lord Howe Island, 4 October 2026: 02:00 becomes 02:30, at 15:30 UTC on the day before.
    found = local_times(cron, "Australia/Lord_Howe", datetime(2026, 10, 3, 14, 45, tzinfo=UTC), 3)
    assert [tick[11:16] for tick in found] == hours


CHANGES = {
    "Europe/Berlin": (datetime(2024, 3, 31, 1, tzinfo=UTC), datetime(2024, 10, 27, 1, tzinfo=UTC)),
    "America/New_York": (datetime(2024, 3, 10, 7, tzinfo=UTC), datetime(2024, 11, 3, 6, tzinfo=UTC)),
    "Australia/Lord_Howe": (datetime(2024, 4, 6, 15, tzinfo=UTC), datetime(2024, 10, 5, 15, 30, tzinfo=UTC)),
}
CRONS = (
    "30 2 * * *",
    "15 1 * * *",
    "45 1,2 * * *",
    "0 2 * * *",
    "15 */2 * * *",
    "*/20 * * * *",
    "*/15 2 * * *",
    "30 1 * * 0",
    "0 30 * * * *",
    "30 * * * *",
    "0 30 1 * * *",
)


@pytest.mark.parametrize("cron", CRONS)
@pytest.mark.parametrize("zone", CHANGES)
@given(is_later=st.booleans(), offset=st.integers(-4 * 60 * MINUTE, 4 * 60 * MINUTE))
def test_ticks_around_a_change_of_the_clocks_come_later_and_later(zone: str, cron: str, is_later: bool, offset: int):
    after = to_ms(CHANGES[zone][is_later]) + offset
    ticks = list(islice(ticks_between(Timing(cron=cron, zone=zone), 0, after + 1, 2**53), 8))
    assert len(ticks) == 8
    assert all(earlier < later for earlier, later in pairwise([after, *ticks]))
    assert [next_tick(Timing(cron=cron, zone=zone), 0, tick) for tick in ticks[:-1]] == ticks[1:]


def test_every_half_hour_goes_on_through_both_changes_of_the_clocks():
    for day in (datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 10, 24, 23, tzinfo=UTC)):
        ticks = islice(ticks_between(Timing(cron="*/30 * * * *", zone="Europe/Berlin"), 0, to_ms(day), 2**53), 12)
        assert [from_ms(tick) for tick in ticks] == [day + timedelta(minutes=30) * number for number in range(12)]


def test_an_interval_counts_from_where_it_began():
    timing = timing_of(None, None, "10s", None)
    assert list(islice(ticks_between(timing, NOW, NOW, 2**53), 3)) == [NOW + 10_000, NOW + 20_000, NOW + 30_000]
    assert next_tick(timing, NOW, NOW + 10_000) == NOW + 20_000
    assert next_tick(timing, NOW, NOW + 9_999) == NOW + 10_000


@pytest.mark.parametrize("timing", [Timing(every_ms=100 * 365 * 24 * 60 * MINUTE), Timing(cron="0 0 29 2 */7")])
def test_ticks_end_with_the_last_year_that_a_datetime_has(timing: Timing):
    ticks = list(islice(ticks_between(timing, NOW, NOW, 2**53), 1_000))
    assert 9_900 < from_ms(ticks[-1]).year < 10_000


def test_a_single_moment_ticks_once():
    timing = timing_of(None, None, None, from_ms(NOW + 5))
    assert next_tick(timing, NOW, NOW) == NOW + 5
    assert next_tick(timing, NOW, NOW + 5) is None


@pytest.mark.parametrize(
    ("cron", "zone", "every", "at"),
    [
        (None, None, None, None),
        ("* * * * *", None, 60, None),
        ("* * *", None, None, None),
        ("61 * * * *", None, None, None),
        ("", None, None, None),
        ("0 0 30 2 *", None, None, None),
        ("0 0 31 4,6,9,11 *", None, None, None),
        ("* * * * *", "Mars/Olympus", None, None),
        ("* * * * *", "../etc/passwd", None, None),
        ("* * * * *", "", None, None),
        (None, "Europe/Berlin", 60, None),
        (None, None, 0, None),
        (None, None, "soon", None),
        (None, None, None, datetime(2026, 4, 1)),  # noqa: DTZ001 - refused for that
        (None, None, None, datetime(2020, 4, 1, tzinfo=UTC)),
        (None, None, None, datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))),  # in the year 10,000, in UTC
    ],
)
def test_what_is_wrong_or_never_comes_is_refused(cron: str | None, zone: str | None, every: object, at: datetime | None):
    with pytest.raises(InvalidInput):
        placed(schedule(timing_of(cron, zone, every, at)), None, NOW)  # pyright: ignore[reportArgumentType]


def test_before_its_time_nothing_is_due():
    plan = schedule(Timing(every_ms=MINUTE), next_ms=NOW + MINUTE)
    assert due_ticks(plan, NOW + MINUTE - 1) == ([], NOW + MINUTE)
    assert due_ticks(plan, NOW + MINUTE) == ([NOW + MINUTE], NOW + 2 * MINUTE)


def test_a_paused_one_is_never_due():
    plan = schedule(Timing(every_ms=MINUTE), next_ms=NOW + MINUTE, is_paused=True)
    assert due_ticks(plan, NOW + 100 * MINUTE) == ([], NOW + MINUTE)


@pytest.mark.parametrize("timing", [Timing(every_ms=MINUTE), Timing(cron="* * * * *")])
def test_missed_ticks_are_caught_up_as_the_policy_says(timing: Timing):
    first, now = NOW + MINUTE, NOW + 10 * MINUTE + 59_000
    late = now + 5
    every = [NOW + number * MINUTE for number in range(1, 11)]
    assert due_ticks(schedule(timing, catch_up="all", next_ms=first), late) == (every, NOW + 11 * MINUTE)
    assert due_ticks(schedule(timing, catch_up="last", next_ms=first), late) == (every[-1:], NOW + 11 * MINUTE)
    assert due_ticks(schedule(timing, catch_up="none", next_ms=first), late) == (every[-1:], NOW + 11 * MINUTE)


def test_without_catching_up_only_the_newest_of_the_ticks_that_are_due_is_fired():
    often = schedule(Timing(every_ms=10_000), next_ms=NOW + 10_000)
    assert due_ticks(often, NOW + 35_000) == ([NOW + 30_000], NOW + 40_000)


def test_without_catching_up_a_tick_that_is_long_past_is_dropped():
    daily = Timing(every_ms=24 * 60 * MINUTE)
    due = NOW + 24 * 60 * MINUTE
    assert due_ticks(schedule(daily, catch_up="none", next_ms=due), due + MINUTE) == ([due], due + 24 * 60 * MINUTE)
    assert due_ticks(schedule(daily, catch_up="none", next_ms=due), due + MINUTE + 1) == ([], due + 24 * 60 * MINUTE)
    assert due_ticks(schedule(daily, catch_up="last", next_ms=due), due + MINUTE + 1) == ([due], due + 24 * 60 * MINUTE)


@pytest.mark.parametrize(
    ("timing", "newest"),
    [
        (Timing(cron="* * * * * *", zone="Europe/Berlin"), NOW),
        (Timing(cron="@yearly"), to_ms(datetime(2026, 1, 1, tzinfo=UTC))),
        (Timing(every_ms=100), NOW),
        (Timing(at_ms=NOW - 50 * 365 * 24 * 60 * MINUTE), NOW - 50 * 365 * 24 * 60 * MINUTE),
    ],
)
def test_newest_of_a_billion_missed_ticks_is_found_without_visiting_them(timing: Timing, newest: int):
    """A worker that looked at each would do nothing else for hours."""
    first = next_tick(timing, 0, NOW - 50 * 365 * 24 * 60 * MINUTE - 1)
    late = schedule(timing, catch_up="last", next_ms=first)
    assert due_ticks(msgspec.structs.replace(late, since_ms=0), NOW)[0] == [newest]


@given(st.lists(st.integers(1, 5 * MINUTE), min_size=1, max_size=20), st.sampled_from([100, 999, MINUTE, 3 * MINUTE]))
def test_whenever_it_is_looked_at_all_ticks_are_fired_once_and_in_order(pauses: list[int], every: int):
    timing = Timing(every_ms=every)
    upcoming: int | None = NOW + every
    now, fired = NOW, []
    for pause in pauses:
        now += pause
        while True:
            ticks, upcoming = due_ticks(schedule(timing, catch_up="all", next_ms=upcoming), now)
            fired += ticks
            if not ticks:
                break
    assert fired == [NOW + number * every for number in range(1, (now - NOW) // every + 1)]
