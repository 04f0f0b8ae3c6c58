"""The buffer of a transaction: cheap, invisible, and checked before anything comes near a store."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.unit.sample import LIMITS

from stepwell.errors import InvalidInput, LimitExceeded, ValidationFailed
from stepwell.model.limits import Limits
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Delete, Increment, Put
from stepwell.state.transaction_buffer import Buffer, check_number, check_revision, ttl_ms

SCOPE = Scope.custom("s")


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        (None, None),
        (1, 1000),
        (0.001, 1),
        (1.5, 1500),
        (timedelta(days=1), 86_400_000),
        (100 * 365 * 86_400, 3_153_600_000_000),
        ("1h30m", 5_400_000),
        ("5ms", 5),
    ],
)
def test_ttl_is_whole_milliseconds(ttl: float | timedelta | None, expected: int | None) -> None:
    assert ttl_ms(ttl) == expected


@pytest.mark.parametrize(
    "ttl",
    [
        0,
        -1,
        0.0009,
        float("nan"),
        float("inf"),
        1e12,
        True,
        "60",
        "0s",
        "5 parsecs",
        "",
        timedelta(0),
        timedelta(days=-1),
        timedelta.max,
        [1],
        10**400,
    ],
)
def test_ttl_that_is_no_time_is_refused(ttl: float) -> None:
    """T22: before it comes near a store."""
    with pytest.raises(InvalidInput, match=r"ttl must be (seconds|from 0\.001 seconds to 100 years)"):
        ttl_ms(ttl)


def test_sliding_needs_a_ttl() -> None:
    with pytest.raises(InvalidInput, match="sliding TTL needs a ttl"):
        ttl_ms(None, sliding=True)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), True, None, "1", 2**63, -(2**63) - 1, 10**400, 1j])
def test_counter_is_changed_by_a_finite_number_of_64_bits(number: float) -> None:
    with pytest.raises(InvalidInput, match="a counter is changed by"):
        check_number(number)


@pytest.mark.parametrize("number", [0, 1, -5, 0.5, 2**63 - 1, -(2**63)])
def test_counter_takes_any_such_number(number: float) -> None:
    assert check_number(number) == number


@pytest.mark.parametrize("revision", [-1, None, "1", 1.0, True, 2**63])
def test_revision_is_a_whole_number(revision: int) -> None:
    with pytest.raises(InvalidInput, match="a revision is a whole number"):
        check_revision(revision)


def test_state_operations_are_collected_in_order() -> None:
    buffer = Buffer(LIMITS)
    scope = buffer.state(SCOPE)
    scope.set("a", [1], ttl=1, sliding=True)
    scope.set_if_absent("b", 1)
    scope.compare_and_set("c", 1, revision=3)
    scope.delete("d")
    scope.increment("e", 2)
    first, second, third, fourth, fifth = buffer.state_ops()
    assert isinstance(first, Put)
    assert (first.key, bytes(first.value), first.ttl_ms, first.sliding, first.expected) == ("a", b"[1]", 1000, True, None)
    assert (second.key, second.expected, second.strict) == ("b", 0, True)
    assert (third.key, third.expected) == ("c", 3)
    assert fourth == Delete(SCOPE.path, "d")
    assert fifth == Increment(SCOPE.path, "e", 2)


def test_every_fault_of_the_state_operations_is_reported() -> None:
    buffer = Buffer(Limits(value_bytes=10, key_bytes=5))
    scope = buffer.state(SCOPE)
    scope.set("fine", 1)
    scope.set("", 1)
    scope.set("k", "x" * 20)
    scope.set("k", 1, ttl=-1)
    scope.compare_and_set("k", 1, revision=None)
    scope.increment("k", float("nan"))
    scope.delete("too long")
    with pytest.raises(ValidationFailed) as caught:
        buffer.state_ops()
    assert [problem.where for problem in caught.value.errors] == [f"change {number} (state)" for number in range(2, 8)]
    assert {problem.code for problem in caught.value.errors} == {InvalidInput.code, LimitExceeded.code}


def test_dropped_buffer_is_empty() -> None:
    buffer = Buffer(LIMITS)
    buffer.set_variable("a", 1)
    buffer.set_variable("", 1)
    buffer.drop()
    assert buffer.batch() == buffer.state_ops() == []


def test_batch_is_a_copy() -> None:
    buffer = Buffer(LIMITS)
    buffer.set_variable("a", 1)
    buffer.batch().clear()
    assert len(buffer.batch()) == 1


def test_scope_may_be_given_by_anything_that_stands_for_one() -> None:
    class Stand:
        scope = SCOPE

    buffer = Buffer(LIMITS)
    buffer.state(Stand()).delete("a")
    assert buffer.state_ops() == [Delete(SCOPE.path, "a")]
