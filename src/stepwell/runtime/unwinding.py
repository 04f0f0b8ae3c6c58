"""Exceptions that unwind the code of a workflow without being failures of it."""

from __future__ import annotations

__all__ = ["Abandoned", "Suspended", "Undoing", "Unwinding"]


class Unwinding(BaseException):
    """Ends the code of a workflow where it is. Not an Exception, so that ``except Exception`` does not catch it."""


class Suspended(Unwinding):
    """Unwinds the code of a workflow that rests."""


class Abandoned(Unwinding):
    """Unwinds the code of a workflow whose commits are refused from now on; another session resumes from the record."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Undoing(Unwinding):
    """Unwinds the code of a workflow that has failed before and is being compensated: it runs no further than its record."""
