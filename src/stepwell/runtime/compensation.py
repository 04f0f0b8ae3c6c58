"""Compensation: steps that undo what a run has done, made in reverse order if it fails or is cancelled.

They are planned by the workflow's code, and made like any step: recorded once, tried again by their policy, resumed after a crash.
That compensation has begun is a token; from then on the code is run only as far as its record goes, to plan the same steps again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stepwell.errors import StepFailed
from stepwell.flow.function import Step
from stepwell.model.status import Status
from stepwell.model.value import Value
from stepwell.runtime.calls import Calls
from stepwell.runtime.journal import Journal
from stepwell.runtime.outcome import error_value
from stepwell.runtime.waiting import Waits

__all__ = ["COMPENSATION", "Compensation", "CompensationCall"]

COMPENSATION = "$compensation"
"""The token of a run that is being compensated, and what its result says of it."""


class CompensationCall(NamedTuple):
    """A step that undoes something, as the code asked for it."""

    position: str
    key: str
    step: Step[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class Compensation:
    """What is to be undone in one execution, in the order in which it was done."""

    def __init__(self, journal: Journal, calls: Calls, waits: Waits) -> None:
        self._journal, self._calls, self._waits = journal, calls, waits
        self._planned: dict[str, CompensationCall] = {}

    @property
    def is_under_way(self) -> bool:
        """Whether this or an earlier session has begun with it."""
        return bool(self._journal.token(COMPENSATION))

    def plan(self, undo: CompensationCall) -> None:
        """Note a step for the case that the run fails."""
        self._planned[undo.key] = undo

    async def make(self, status: Status, failure: dict[str, Value]) -> tuple[Status, dict[str, Value]]:
        """Make the steps, the last planned first; one that fails does not stop the others. The run's status and result, as they
        were settled when compensation began."""
        if not self._planned and not self.is_under_way:
            return status, {"error": failure}
        if not self.is_under_way:
            token = {"status": str(status), "error": failure, "order": list(self._planned), "due_ms": None}
            await self._journal.commit([self._journal.token_put(COMPENSATION, "compensation", token)])
        self._waits.is_shielded = True
        token = self._journal.token(COMPENSATION)
        failed = {key: error for key in reversed(token["order"]) if (error := await self._made(key)) is not None}
        undone = [key for key in reversed(token["order"]) if key not in failed]
        return Status(token["status"]), {"error": token["error"], "compensation": {"undone": undone, "failed": failed}}

    async def _made(self, key: str) -> dict[str, Value] | None:
        """Make one; its error, if it failed for good."""
        undo = self._planned.get(key)
        if undo is None:
            return {"kind": "NotFound", "message": "the workflow's code no longer asks for this compensation", "code": None}
        try:
            await self._calls.step(undo.step, undo.position, undo.key, undo.arguments, undo.keywords)
        except StepFailed as error:
            return error_value(error)
        return None
