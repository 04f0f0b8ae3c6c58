"""Retries: classify a failure, and decide whether another attempt follows it and after how long."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from stepwell.duration import LONGEST_SECONDS, Seconds, Span, seconds_of
from stepwell.errors import (
    AddressRefused,
    Conflict,
    ExecutionCancelled,
    ExecutionTimedOut,
    GovernanceViolated,
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    NoScriptEngine,
    Problem,
    StepFailed,
    StepwellError,
    StoreUnavailable,
    ValidationFailed,
)
from stepwell.model.plain_data import PlainRecord
from stepwell.name_hints import with_hint

__all__ = [
    "Classification",
    "ErrorClass",
    "Retry",
    "RetryAfter",
    "classify",
    "error_text",
]


class ErrorClass(StrEnum):
    """The kind of a failure. ``Retry(non_retryable=...)`` accepts these names."""

    HTTP_CLIENT = "http_client"
    HTTP_SERVER = "http_server"
    VALIDATION = "validation"
    CONTROL_FLOW = "control_flow"
    SECURITY = "security"
    DATABASE = "database"
    NETWORK = "network"
    EXECUTION = "execution"
    TIMEOUT = "timeout"
    LIMIT = "limit"


class RetryAfter(Exception):
    """Raised by a step: the next attempt comes after this time, in place of the delay of its retry policy.

    The attempt counts like any other that failed, so a step without a policy, or at its last attempt, fails for good.

    - ``seconds``: the time, as seconds or a span such as ``"30s"``; it is kept to the millisecond.
    - ``message``: why, for the record of the attempt.

    Raise ``InvalidInput`` for a time that is no span.

    Example:

        if response.status_code == 429:
            raise RetryAfter(int(response.headers["Retry-After"]), "the bank is busy")
    """

    def __init__(self, seconds: Span, message: str = "") -> None:
        super().__init__(seconds, message)
        self.seconds = seconds_of(seconds, "RetryAfter(...)")
        self.message = message

    def __str__(self) -> str:
        return self.message or f"to be tried again after {self.seconds:g} s"


class Classification(NamedTuple):
    """The facts about an error that need no reading of its message."""

    error_class: ErrorClass
    is_retryable: bool
    suggestion: str


_SUGGESTIONS = {
    ErrorClass.HTTP_CLIENT: "the other side refused the request; check what was sent, another attempt will not help",
    ErrorClass.HTTP_SERVER: "the other side failed; try again later",
    ErrorClass.VALIDATION: "check the value that was given; another attempt will not help",
    ErrorClass.CONTROL_FLOW: "the run was asked to end; nothing is wrong with the step",
    ErrorClass.SECURITY: "check permissions and credentials; another attempt will not help",
    ErrorClass.DATABASE: "check that the database can be reached and has space; then retry the run",
    ErrorClass.NETWORK: "check that the other side can be reached; then retry the run",
    ErrorClass.EXECUTION: "look at the message and at the step's code; mend it, then retry the run",
    ErrorClass.TIMEOUT: "give the step more time, or find out what it waits for",
    ErrorClass.LIMIT: "make it smaller, or raise the limit that the message names",
}

_FINAL = frozenset({ErrorClass.HTTP_CLIENT, ErrorClass.VALIDATION, ErrorClass.CONTROL_FLOW, ErrorClass.SECURITY, ErrorClass.LIMIT})

# The first match counts. ValueError is missing on purpose: transient problems raise it, too.
_BY_TYPE: tuple[tuple[tuple[type[BaseException], ...], ErrorClass], ...] = (
    ((LimitExceeded, GovernanceViolated), ErrorClass.LIMIT),
    ((ValidationFailed, NoScriptEngine), ErrorClass.VALIDATION),
    ((ExecutionCancelled,), ErrorClass.CONTROL_FLOW),
    ((TimeoutError, ExecutionTimedOut), ErrorClass.TIMEOUT),
    ((StoreUnavailable, Conflict, LeaseLost), ErrorClass.DATABASE),
    ((PermissionError, AddressRefused), ErrorClass.SECURITY),
    ((ConnectionError,), ErrorClass.NETWORK),
)

# Errors of optional libraries, by class name, since importing them here would require them.
_BY_NAME = {
    "SSLError": ErrorClass.SECURITY,
    "InterfaceError": ErrorClass.DATABASE,
    "OperationalError": ErrorClass.DATABASE,
    "DatabaseError": ErrorClass.DATABASE,
    "NetworkError": ErrorClass.NETWORK,
    "TransportError": ErrorClass.NETWORK,
    "gaierror": ErrorClass.NETWORK,
    "TimeoutException": ErrorClass.TIMEOUT,
}

# 425 Too Early and 429 Too Many Requests: the same request may succeed later.
_RETRYABLE_STATUSES = frozenset({408, 425, 429})
_TRY_LATER = "the other side cannot take the request now; try again later, or send fewer at a time"


def classify(error: BaseException) -> Classification:
    """Return the class of an error, whether a retry may help, and advice."""
    if isinstance(error, StepFailed):  # as the error of its last attempt was classified
        found = ErrorClass(error.error_class or ErrorClass.EXECUTION)
        may_help = found not in _FINAL if error.is_retryable is None else error.is_retryable
        return Classification(found, may_help, _TRY_LATER if may_help and found is ErrorClass.HTTP_CLIENT else _SUGGESTIONS[found])
    if isinstance(error, RetryAfter):
        return Classification(ErrorClass.EXECUTION, True, _TRY_LATER)
    status = _http_status(error)
    if status is not None:
        found = ErrorClass.HTTP_CLIENT if status < 500 else ErrorClass.HTTP_SERVER
        found = ErrorClass.SECURITY if status in (401, 403) else found
        if status in _RETRYABLE_STATUSES:
            return Classification(found, True, _TRY_LATER)
        return Classification(found, found not in _FINAL, _SUGGESTIONS[found])
    found = _class_of(error)
    return Classification(found, found not in _FINAL, _SUGGESTIONS[found])


def _class_of(error: BaseException) -> ErrorClass:
    for types, found in _BY_TYPE:
        if isinstance(error, types):
            return found
    names = (_BY_NAME.get(kind.__name__) for kind in type(error).__mro__)
    return next((found for found in names if found is not None), ErrorClass.EXECUTION)


def _http_status(error: BaseException) -> int | None:
    """Return the status code of an HTTP client's error, under the names that common clients use."""
    holders = (error, _attribute(error, "response"))
    numbers = (_attribute(holder, name) for holder in holders for name in ("status_code", "status", "code"))
    return next((number for number in numbers if type(number) is int and 400 <= number < 600), None)


def _attribute(holder: object, name: str) -> object:
    """Return an attribute of an error of any class; None also if it is a property that raises, which would replace the error."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - of the user's own class: nothing is known of it
        return None


def error_text(error: BaseException) -> str:
    """Return an error's message without its code, which is recorded beside it.

    Inside the message of another error it would be read as that error's code. The message of a group has those of its errors.
    """
    if isinstance(error, StepwellError):
        return error.message
    if not isinstance(error, BaseExceptionGroup):
        try:
            return str(error)
        except Exception:  # noqa: BLE001 - of the user's own class: nothing is known of it but that it failed
            return "what it says cannot be shown"
    inside = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return f"{error.message}: " + "; ".join(f"{type(each).__name__}: {error_text(each)}" for each in inside)


class _RetryMeta(msgspec.StructMeta):
    """Names the field that is meant by ``Retry(max_attempts=3)``."""

    if not TYPE_CHECKING:

        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            try:
                return super().__call__(*arguments, **keywords)
            except TypeError as error:
                raise with_hint(error, self) from None


class Retry(PlainRecord, metaclass=_RetryMeta, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A retry policy: the number of attempts, with exponential backoff and jitter between them."""

    attempts: int = 3
    """The number of attempts including the first; 1 means no retry."""
    first_seconds: Seconds = 1.0
    """The delay after the first failed attempt."""
    factor: float = 2.0
    """Each further delay is this many times longer."""
    max_seconds: Seconds = 300.0
    """The longest delay."""
    jitter: float = 0.1
    """The random part of a delay, from 0 to 1, so that many retries do not happen at the same moment."""
    non_retryable: tuple[str, ...] = ()
    """Errors that are never retried: class names, error codes, error classes or exception classes."""

    if TYPE_CHECKING:  # parameter types: exception classes may be given, names are stored

        def __init__(
            self,
            attempts: int = ...,
            first_seconds: Span = ...,
            factor: float = ...,
            max_seconds: Span = ...,
            jitter: float = ...,
            non_retryable: Iterable[str | type[BaseException]] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in ("first_seconds", "max_seconds"):
            given: object = getattr(self, name)
            if isinstance(given, str | timedelta):
                msgspec.structs.force_setattr(self, name, seconds_of(given, f"Retry({name}=...)"))
        names = _names_of(self.non_retryable)
        msgspec.structs.force_setattr(self, "non_retryable", names)
        checks = (
            ("attempts", type(self.attempts) is int and 1 <= self.attempts <= 1_000_000, "a whole number from 1 to 1,000,000"),
            ("first_seconds", _within(self.first_seconds, 0, LONGEST_SECONDS), "seconds from 0 to 100 years"),
            ("factor", _within(self.factor, 1, 1000), "a number from 1 to 1000"),
            ("max_seconds", _within(self.max_seconds, 0, LONGEST_SECONDS), "seconds from 0 to 100 years"),
            ("jitter", _within(self.jitter, 0, 1), "a number from 0 to 1"),
            ("non_retryable", all(names), "names of errors"),
        )
        faults = [
            Problem(InvalidInput.code, f"Retry({name}=...) must be {rule}, not {getattr(self, name)!r}")
            for name, is_fine, rule in checks
            if not is_fine
        ]
        if faults:
            raise InvalidInput(faults)

    def delay(self, attempt: int, random: float) -> float:
        """Return the delay in seconds after a failed attempt.

        - ``attempt``: the number of the failed attempt, from 1.
        - ``random``: a number from 0 to 1, which decides the jitter.
        """
        return self._longest(attempt) * (1 - self.jitter * random)

    def allows(self, attempt: int, errors: Iterable[str] = ()) -> bool:
        """Return whether another attempt follows a failed one.

        - ``attempt``: the number of the attempt that failed, from 1.
        - ``errors``: all names of its error: those of its class and of the classes that it inherits from.
        """
        return attempt < self.attempts and not set(errors) & set(self.non_retryable)

    def _longest(self, attempt: int) -> float:
        if not self.first_seconds or self.first_seconds >= self.max_seconds:
            return min(self.first_seconds, self.max_seconds)
        # Compare logarithms first: the power overflows a float after some hundred attempts.
        if (attempt - 1) * math.log(self.factor) >= math.log(self.max_seconds) - math.log(self.first_seconds):
            return self.max_seconds
        return self.first_seconds * self.factor ** (attempt - 1)


def _within(number: object, low: float, high: float) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and low <= number <= high


def _names_of(errors: object) -> tuple[str, ...]:
    """Return the names of errors that are given by name or as classes; an empty text for anything else."""
    if not isinstance(errors, Iterable) or isinstance(errors, str):
        return ("",)
    return tuple(
        error.__name__ if isinstance(error, type) else error if isinstance(error, str) else ""
        for error in cast("Iterable[object]", errors)
    )
