"""Why something failed, as plain data: a kind, a message, a code, and the step where it happened."""

from __future__ import annotations

from typing import Any

from stepwell.errors import StepwellError

__all__ = ["Trouble", "trouble", "trouble_of"]

Trouble = dict[str, Any]

_LONGEST = 10_000


def trouble(kind: str, message: str, code: str | None = None) -> Trouble:
    """A failure that the kernel itself found."""
    return {"kind": kind, "message": message[:_LONGEST], "code": code}


def trouble_of(error: BaseException) -> Trouble:
    """A failure that was raised; its code is kept beside its message, not in it."""
    if isinstance(error, StepwellError):
        return trouble(type(error).__name__, error.message, error.code)
    return trouble(type(error).__name__, str(error))
