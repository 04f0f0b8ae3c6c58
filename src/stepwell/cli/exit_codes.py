"""Exit codes: one number per kind of ending, so that scripts can tell them apart."""

from __future__ import annotations

from enum import IntEnum

import click

from stepwell.errors import (
    CommitUnknown,
    Conflict,
    ExecutionCancelled,
    ExecutionFailed,
    LeaseLost,
    LockHeld,
    NotFound,
    StepFailed,
    StepwellError,
    StoreUnavailable,
    ValidationFailed,
)

__all__ = ["ENDINGS", "ExitCode", "code_of"]


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    INVALID = 5
    UNREACHABLE = 6
    CANCELLED = 7
    DEFECT = 70
    TIMEOUT = 124
    INTERRUPTED = 130
    TERMINATED = 143


ENDINGS: dict[type[BaseException], ExitCode] = {
    ExecutionFailed: ExitCode.FAILED,
    StepFailed: ExitCode.FAILED,
    click.UsageError: ExitCode.USAGE,
    NotFound: ExitCode.NOT_FOUND,
    Conflict: ExitCode.CONFLICT,
    LeaseLost: ExitCode.CONFLICT,
    LockHeld: ExitCode.CONFLICT,
    ValidationFailed: ExitCode.INVALID,
    StoreUnavailable: ExitCode.UNREACHABLE,
    CommitUnknown: ExitCode.UNREACHABLE,
    ExecutionCancelled: ExitCode.CANCELLED,
    StepwellError: ExitCode.FAILED,
    TimeoutError: ExitCode.TIMEOUT,
    KeyboardInterrupt: ExitCode.INTERRUPTED,
    click.Abort: ExitCode.INTERRUPTED,
}


def code_of(error: BaseException) -> ExitCode:
    """Return the exit code of an error, by its class or its nearest base class."""
    return next((ENDINGS[kind] for kind in type(error).__mro__ if kind in ENDINGS), ExitCode.DEFECT)
