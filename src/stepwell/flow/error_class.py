"""Classes of errors: what kind of failure it was, whether another attempt may help, and what a person can do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from stepwell.errors import (
    AddressRefused,
    Conflict,
    ExecutionCancelled,
    ExecutionTimedOut,
    GovernanceViolated,
    LeaseLost,
    LimitExceeded,
    NoScriptEngine,
    StepFailed,
    StoreUnavailable,
    ValidationFailed,
)

__all__ = ["Classification", "ErrorClass", "classify"]


class ErrorClass(StrEnum):
    """What kind of failure it was. The names can stand in ``Retry(non_retryable=...)``."""

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


class Classification(NamedTuple):
    """What is known of an error without reading its message."""

    error_class: ErrorClass
    is_retryable: bool
    suggestion: str


_SUGGESTIONS = {
    ErrorClass.HTTP_CLIENT: "the other side refused the request; check what was sent, another attempt will not help",
    ErrorClass.HTTP_SERVER: "the other side failed; try again later",
    ErrorClass.VALIDATION: "check the value that was given; another attempt will not help",
    ErrorClass.CONTROL_FLOW: "the run was told to end; nothing is wrong with the step",
    ErrorClass.SECURITY: "check permissions and credentials; another attempt will not help",
    ErrorClass.DATABASE: "check that the database can be reached and has space; then retry the run",
    ErrorClass.NETWORK: "check that the other side can be reached; then retry the run",
    ErrorClass.EXECUTION: "look at the message and at the step's code; mend it, then retry the run",
    ErrorClass.TIMEOUT: "give the step more time, or find out what it waits for",
    ErrorClass.LIMIT: "make it smaller, or raise the limit that the message names",
}

_FINAL = frozenset({ErrorClass.HTTP_CLIENT, ErrorClass.VALIDATION, ErrorClass.CONTROL_FLOW, ErrorClass.SECURITY, ErrorClass.LIMIT})

# The first that fits; ValueError is not among them, since it is raised for passing troubles, too.
_BY_TYPE: tuple[tuple[tuple[type[BaseException], ...], ErrorClass], ...] = (
    ((LimitExceeded, GovernanceViolated), ErrorClass.LIMIT),
    ((ValidationFailed, NoScriptEngine), ErrorClass.VALIDATION),
    ((ExecutionCancelled,), ErrorClass.CONTROL_FLOW),
    ((TimeoutError, ExecutionTimedOut), ErrorClass.TIMEOUT),
    ((StoreUnavailable, Conflict, LeaseLost), ErrorClass.DATABASE),
    ((PermissionError, AddressRefused), ErrorClass.SECURITY),
    ((ConnectionError,), ErrorClass.NETWORK),
)

# Errors of libraries that need not be installed, by the names of their classes.
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

# Too early, and too many: the same request may be taken later.
_RETRYABLE_STATUSES = frozenset({408, 425, 429})


def classify(error: BaseException) -> Classification:
    """The class of an error, whether another attempt may help, and what to do."""
    status = _http_status(error)
    if status is not None:
        found = ErrorClass.HTTP_CLIENT if status < 500 else ErrorClass.HTTP_SERVER
        found = ErrorClass.SECURITY if status in (401, 403) else found
        return Classification(found, found not in _FINAL or status in _RETRYABLE_STATUSES, _SUGGESTIONS[found])
    found = _class_of(error)
    return Classification(found, found not in _FINAL, _SUGGESTIONS[found])


def _class_of(error: BaseException) -> ErrorClass:
    if isinstance(error, StepFailed):
        return ErrorClass(error.error_class or ErrorClass.EXECUTION)
    for types, found in _BY_TYPE:
        if isinstance(error, types):
            return found
    names = (_BY_NAME.get(kind.__name__) for kind in type(error).__mro__)
    return next((found for found in names if found is not None), ErrorClass.EXECUTION)


def _http_status(error: BaseException) -> int | None:
    """The status of an HTTP client's error, as the usual ones carry it."""
    holders = (error, getattr(error, "response", None))
    numbers = (getattr(holder, name, None) for holder in holders for name in ("status_code", "status", "code"))
    return next((number for number in numbers if type(number) is int and 400 <= number < 600), None)
