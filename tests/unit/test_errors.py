"""Errors: one tree, stable codes, and messages that say what to do."""

from __future__ import annotations

import copy
import re

import pytest

import stepwell
from stepwell import errors
from stepwell.errors import Conflict, LimitExceeded, Problem, StepwellError, ValidationFailed

CLASSES = {name: thing for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, StepwellError)}

# Codes are for ever: programs match on them. A new error adds a line here, none changes.
CODES = {
    "StepwellError": "SW-000",
    "ValidationFailed": "SW-100",
    "InvalidInput": "SW-101",
    "LimitExceeded": "SW-102",
    "AlreadyRecorded": "SW-103",
    "InvalidSnapshot": "SW-104",
    "InvalidDefinition": "SW-105",
    "NotFound": "SW-200",
    "Conflict": "SW-201",
    "AlreadyExists": "SW-202",
    "LeaseLost": "SW-203",
    "LockHeld": "SW-204",
    "StoreUnavailable": "SW-300",
    "StoreFull": "SW-301",
    "StoreForeign": "SW-302",
    "StoreNewer": "SW-303",
    "StoreUnsafe": "SW-304",
    "Corrupted": "SW-305",
    "CommitUnknown": "SW-310",
    "ExecutionFailed": "SW-400",
    "ExecutionCancelled": "SW-401",
}


def test_codes_are_the_ones_that_were_released() -> None:
    found = {name: error.code for name, error in CLASSES.items()}
    assert {name: found.get(name) for name in CODES} == CODES


def test_codes_are_unique_and_well_formed() -> None:
    codes = [error.code for error in CLASSES.values()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"SW-\d{3}", code) for code in codes)
    assert all("code" in vars(error) for error in CLASSES.values())


def drawn_tree() -> dict[str, str | None]:
    """Each class and its parent, as the module's docstring draws them."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:│   |    )*(?:[├└]── )?)([A-Z]\w+)(?:\s|$)", line)
        if found:
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            parents[found[2]] = path[depth - 1] if depth else None
    return parents


def test_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    real = {name: error.__base__.__name__ if error is not StepwellError else None for name, error in CLASSES.items()}
    assert drawn_tree() == real


def test_every_error_is_public() -> None:
    assert set(CLASSES) <= set(stepwell.__all__)
    assert set(CLASSES) | {"Problem"} == set(errors.__all__)


@pytest.mark.parametrize("name", CODES)
def test_message_is_what_was_said_or_what_the_class_says(name: str) -> None:
    error = CLASSES[name]
    assert str(error("it broke; mend it")) == f"it broke; mend it [{error.code}]"
    assert error.__doc__
    if not issubclass(error, ValidationFailed):
        assert str(error()) == f"{error.__doc__.strip()} [{error.code}]"


@pytest.mark.parametrize("name", CLASSES)
def test_errors_can_be_copied_with_everything_they_say(name: str) -> None:
    """Each caller of a failed group gets a copy."""
    original = CLASSES[name]("message")
    twin = copy.copy(original)
    assert type(twin) is type(original)
    assert str(twin) == str(original)
    assert vars(twin) == vars(original)


def test_validation_collects_its_problems() -> None:
    error = ValidationFailed([Problem("SW-101", "bad", "mutation 1"), Problem("SW-103", "twice")])
    assert [str(problem) for problem in error.errors] == ["mutation 1: bad", "twice"]
    assert str(error) == "mutation 1: bad; twice [SW-100]"
    assert ValidationFailed("alone").errors == (Problem("SW-100", "alone"),)


def test_limit_is_named_with_what_it_allows_and_how_to_raise_it() -> None:
    error = LimitExceeded.of("value_bytes", 1000, 12345, "the value, in bytes,")
    assert str(error) == (
        "the value, in bytes, is 12,345, over the limit value_bytes=1,000; "
        "make it smaller or raise Limits(value_bytes=...) [SW-102]"
    )
    assert (error.limit, error.maximum, error.actual) == ("value_bytes", 1000, 12345)
    assert "the nesting is over the limit depth=64" in str(LimitExceeded.of("depth", 64, None, "the nesting"))


def test_conflict_says_what_was_expected_and_what_was_found() -> None:
    error = Conflict(expected=3, actual=5)
    assert (error.expected, error.actual) == (3, 5)
    assert "load the newer state" in str(error)
