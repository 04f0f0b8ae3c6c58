"""Retries and spans of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.duration import moment_of, seconds_of, time_of
from stepwell.errors import InvalidInput
from stepwell.flow import Retry


def test_waits_grow_by_the_factor_up_to_the_longest() -> None:
    retry = Retry(attempts=9, first_seconds=1, factor=3, max_seconds=20, jitter=0)
    assert [retry.delay(attempt, 0.5) for attempt in (1, 2, 3, 4, 9)] == [1, 3, 9, 20, 20]


def test_chance_shortens_a_wait_by_at_most_the_jitter() -> None:
    retry = Retry(first_seconds=10, factor=1, jitter=0.2)
    assert [retry.delay(1, random) for random in (0.0, 0.5, 1.0)] == [10, 9, 8]


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(0, 1e6), st.floats(1, 1000), st.floats(0, 1e6), st.floats(0, 1))
def test_a_wait_is_never_negative_nor_longer_than_the_longest(
    attempt: int, random: float, first: float, factor: float, longest: float, jitter: float
) -> None:
    retry = Retry(first_seconds=first, factor=factor, max_seconds=longest, jitter=jitter)
    assert 0 <= retry.delay(attempt, random) <= longest * (1 + 1e-9)


def test_attempts_in_all_are_counted_with_the_first() -> None:
    retry = Retry(attempts=3)
    assert [retry.allows(attempt) for attempt in (1, 2, 3)] == [True, True, False]
    assert not Retry(attempts=1).allows(1)


def test_final_errors_are_not_retried_by_name_code_or_class() -> None:
    retry = Retry(non_retryable=(ValueError, "SW-101", "validation"))
    assert retry.non_retryable == ("ValueError", "SW-101", "validation")
    assert not retry.allows(1, ["UnicodeError", "ValueError", "Exception"])
    assert not retry.allows(1, ["SW-101"])
    assert retry.allows(1, ["OSError"])


def test_all_faults_of_a_policy_are_told_together() -> None:
    with pytest.raises(InvalidInput) as caught:
        Retry(attempts=0, first_seconds=-1, factor=0.5, max_seconds=float("nan"), jitter=2, non_retryable="ValueError")
    assert [problem.message.partition("=")[0] for problem in caught.value.errors] == [
        "Retry(attempts",
        "Retry(first_seconds",
        "Retry(factor",
        "Retry(max_seconds",
        "Retry(jitter",
        "Retry(non_retryable",
    ]


def test_a_policy_survives_json() -> None:
    retry = Retry(attempts=7, non_retryable=(KeyError,))
    assert msgspec.json.decode(msgspec.json.encode(retry), type=Retry) == retry


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        (0, 0),
        (90, 90),
        (1.5, 1.5),
        ("90s", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1 d", 86_400),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("2w", 1_209_600),
    ],
)
def test_spans_are_read(span: object, seconds: float) -> None:
    assert seconds_of(span) == seconds
    assert type(seconds_of(span)) is float


def test_a_timedelta_is_a_span() -> None:
    assert seconds_of(timedelta(minutes=2)) == 120


@pytest.mark.parametrize(
    "span", ["", "2", "h", "2x", "-1h", "1h 2", "٣h", True, None, [], -1, float("nan"), "9999999d", "1h" * 100]
)
def test_what_is_no_span_is_refused(span: object) -> None:
    with pytest.raises(InvalidInput, match="the pause must be"):
        seconds_of(span, "the pause")


def test_moments_have_a_zone_and_become_utc() -> None:
    assert moment_of("2027-01-01T09:00:00+01:00") == datetime(2027, 1, 1, 8, tzinfo=UTC)
    assert time_of("2027-01-01T09:00:00Z") == datetime(2027, 1, 1, 9, tzinfo=UTC)
    assert time_of("2h") == 7200
    for text in ("2027-01-01T09:00:00", "2027-13-01", "soon", 5):
        with pytest.raises(InvalidInput, match="must be"):
            moment_of(text)
