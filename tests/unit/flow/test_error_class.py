"""Classes of errors (D9): what an error is taken for, and whether another attempt may help."""

from __future__ import annotations

import socket
import ssl

import pytest

from stepwell.errors import (
    Conflict,
    ExecutionCancelled,
    ExecutionTimedOut,
    GovernanceViolated,
    InvalidInput,
    LimitExceeded,
    ProcessDied,
    StepFailed,
    StoreUnavailable,
)
from stepwell.flow.retry import ErrorClass, RetryAfter, classify, error_text


class Answered(Exception):
    """As HTTP libraries have it: the status is the error's or its response's."""

    def __init__(self, status: int, *, is_in_response: bool = False) -> None:
        if is_in_response:
            self.response = Answered(status)
        else:
            self.status_code = status


class OperationalError(Exception):
    """As database drivers have it."""


CASES = [
    (Answered(404), "http_client", False),
    (Answered(429), "http_client", True),
    (Answered(422, is_in_response=True), "http_client", False),
    (Answered(503), "http_server", True),
    (Answered(403), "security", False),
    (Answered(200), "execution", True),
    (InvalidInput("x"), "validation", False),
    (LimitExceeded("x"), "limit", False),
    (GovernanceViolated("x"), "limit", False),
    (ExecutionCancelled(), "control_flow", False),
    (ExecutionTimedOut(), "timeout", True),
    (TimeoutError(), "timeout", True),
    (PermissionError(), "security", False),
    (ssl.SSLError(), "security", False),
    (StoreUnavailable(), "database", True),
    (Conflict(), "database", True),
    (OperationalError(), "database", True),
    (ConnectionResetError(), "network", True),
    (socket.gaierror(), "network", True),
    (ProcessDied(), "execution", True),
    (ValueError("x"), "execution", True),
    (StepFailed("s", "X", "x", "s", "network"), "network", True),
    (StepFailed("s", "X", "x", "s", "http_client", is_retryable=True), "http_client", True),
    (StepFailed("s", "X", "x", "s", "http_client", is_retryable=False), "http_client", False),
    (StepFailed("s", "X", "x", "s"), "execution", True),
]


@pytest.mark.parametrize(("error", "name", "is_retryable"), CASES, ids=lambda each: repr(each)[:40])
def test_error_is_taken_for_its_class(error: Exception, name: str, is_retryable: bool) -> None:
    found = classify(error)
    assert (found.error_class, found.is_retryable) == (ErrorClass(name), is_retryable)
    assert found.suggestion


@pytest.mark.parametrize("error", [error for error, _, is_retryable in CASES if is_retryable])
def test_advice_for_a_retryable_error_does_not_say_that_a_retry_is_in_vain(error: Exception) -> None:
    assert "not help" not in classify(error).suggestion


def test_advice_for_a_step_that_asks_to_be_tried_later_does_not_blame_its_code() -> None:
    found = classify(RetryAfter("1h"))
    assert (found.error_class, found.is_retryable) == (ErrorClass.EXECUTION, True)
    assert "try again later" in found.suggestion
    assert "code" not in found.suggestion


class Guarded(Exception):
    """Its attributes are properties that fail, as those of some clients do once their connection is closed."""

    @property
    def response(self) -> object:
        raise RuntimeError("no connection")

    code = status = status_code = response


def test_error_whose_attributes_raise_is_an_ordinary_failure() -> None:
    assert classify(Guarded("away")).error_class == "execution"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_text_of_an_error_that_cannot_say_it() -> None:
    assert error_text(Unspeakable()) == "what it says cannot be shown"
    assert error_text(ExceptionGroup("both", [Unspeakable(), ValueError("x")])) == (
        "both: Unspeakable: what it says cannot be shown; ValueError: x"
    )
