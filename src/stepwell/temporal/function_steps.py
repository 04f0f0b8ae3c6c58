"""The steps of a function as activities: its session asks the workflow for attempts, and a later session gets their outcomes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import msgspec

from stepwell.clock import Clock
from stepwell.errors import StepwellError
from stepwell.flow.function import Step, registered_step
from stepwell.model.limits import Limits
from stepwell.model.value import check_kept
from stepwell.runtime.steps.attempt import AttemptResult
from stepwell.runtime.steps.budget import Budget
from stepwell.runtime.steps.outcome import Told
from stepwell.temporal.messages import MOST_BYTES, AskedCall, AttemptAnswer

__all__ = ["FunctionSteps"]

_MOST_ASKED_BYTES = MOST_BYTES // 2
"""What a session asks for at once; the next one asks for what is left."""


class FunctionSteps:
    """The attempts of one session. Implements ``StepsElsewhere``.

    Args:
        answers: the attempts that have ended.
        under_way: key and number of those that have not.
    """

    def __init__(
        self, answers: Iterable[AttemptAnswer], under_way: Iterable[tuple[str, int]], limits: Limits, clock: Clock
    ) -> None:
        self._answers = {(each.key, each.number): each.answer for each in answers}
        self._under_way = set(under_way)
        self._limits, self._clock = limits, clock
        self.asked: list[AskedCall] = []
        self._asked_bytes = 0
        self.taken: list[tuple[str, int]] = []

    def answer(self, key: str, number: int, budget: Budget) -> AttemptResult | None:
        """Return the outcome of an attempt, if it is there."""
        found = self._answers.get((key, number))
        if found is None or found.is_missing:
            return None
        self.taken.append((key, number))
        told = found.error
        error = None if told is None else Told(str(told.get("message")), told, found.names)
        spending = budget.spending(found.spent)
        output = bytes(found.output)
        return AttemptResult(output, error, found.took_ms, self._clock.now(), found.landing, spending, found.spent)

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
        """Ask for an attempt; False if only this session can make it.

        That is so for a step that other workers do not find by its name, for arguments that JSON does not bring back as they
        are or that are too large to be sent, and after a worker said that it has no such step.
        """
        if (key, number) in self._answers:
            self.taken.append((key, number))
            return False
        if (key, number) in self._under_way:
            return True
        call = self._call(step, arguments, keywords) if registered_step(step.name) is step else None
        if call is None or len(call) > _MOST_ASKED_BYTES:
            return False
        self._asked_bytes += len(call)
        if self._asked_bytes <= _MOST_ASKED_BYTES:
            self.asked.append(AskedCall(key, number, step.name, msgspec.Raw(call), has_limit, summary))
        return True

    def _call(self, step: Step[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bytes | None:
        """Return arguments as they travel, or None if they would not come back as they are."""
        try:
            call = step.encode_call(arguments, keywords, self._limits)
            given = inspect.signature(step.function).bind(*arguments, **keywords)
            check_kept([given.args, given.kwargs], list(step.decode_call(call)), what="the call")
        except (StepwellError, TypeError, ValueError):
            return None
        return call
