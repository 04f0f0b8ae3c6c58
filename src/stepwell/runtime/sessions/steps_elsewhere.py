"""Steps that are not made by the session whose code calls them, but by an engine's own workers."""

from __future__ import annotations

from typing import Any, Protocol

from stepwell.flow.function import Step
from stepwell.runtime.steps.attempt import AttemptResult
from stepwell.runtime.steps.budget import Budget

__all__ = ["StepsElsewhere"]


class StepsElsewhere(Protocol):
    """Has the steps of one session made elsewhere. The session asks and rests; a later one finds the answers."""

    def answer(self, key: str, number: int, budget: Budget) -> AttemptResult | None:
        """Return the outcome of an attempt, if it is there."""
        ...

    def ask(
        self,
        step: Step[..., Any],
        key: str,
        number: int,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        has_limit: bool,
        summary: str | None,
    ) -> bool:
        """Ask for an attempt; False to have it made by the session.

        Args:
            has_limit: whether the execution's deadline limits the attempt.
            summary: one line about the call, for people.
        """
        ...
