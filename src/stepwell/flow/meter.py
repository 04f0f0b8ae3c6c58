"""The budget of one evaluation, and the way a function says what is wrong."""

from __future__ import annotations

from typing import TypeVar

from stepwell.model.value import Value

__all__ = ["BUDGET", "MAX_MADE", "EvaluationBudget", "EvaluationError", "MissingValue"]

BUDGET = 1_000_000
"""Items looked at, or 32 letters of a text each: a fraction of a second on a slow machine."""

MAX_MADE = 256 * 1024
"""Letters or items of one result: a value larger than this could not be stored anyway."""

Sized = TypeVar("Sized", str, list[Value])


class EvaluationError(Exception):
    """Why an operation has no result; turned into an ``EvaluationFailed`` that says where."""


class MissingValue(EvaluationError):
    """There is no such item; a default takes its place, as for a path that leads to nothing."""


class EvaluationBudget:
    """What is left of a budget."""

    __slots__ = ("left",)

    def __init__(self, budget: int = BUDGET) -> None:
        self.left = budget

    def spend(self, units: int) -> None:
        """Take units of work from the budget."""
        self.left -= units
        if self.left < 0:
            raise EvaluationError(f"the expression looks at more than {BUDGET:,} items; do this in a step")

    def read(self, value: str | list[Value]) -> None:
        """Spend for reading a value once."""
        self.spend(len(value) // 32 if isinstance(value, str) else len(value))

    def made(self, value: Sized) -> Sized:
        """Give back a new text or list, paid for and not too large."""
        if len(value) > MAX_MADE:
            what = "letters" if isinstance(value, str) else "items"
            raise EvaluationError(f"the result has {len(value):,} {what}, at most {MAX_MADE:,} are allowed")
        self.read(value)
        return value
