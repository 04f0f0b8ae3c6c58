"""Logging with the context of a run: ``current().logger``, and a filter that puts the context on every record."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from stepwell.runtime.steps.context import ExecutionContext, StepContext, here

__all__ = ["RunLogFilter", "RunLogger"]

_NAME = "stepwell.run"
_FIELDS = ("execution_id", "workflow", "workspace", "trace_id", "step", "attempt")


def _fields_of(context: ExecutionContext | None) -> dict[str, Any]:
    if context is None:
        return dict.fromkeys(_FIELDS, "")
    who, is_step = context.identity, isinstance(context, StepContext)
    return {
        "execution_id": who.execution_id,
        "workflow": who.workflow_id,
        "workspace": who.workspace_id,
        "trace_id": who.trace_id or "",
        "step": context.step if is_step else "",
        "attempt": context.attempt if is_step else "",
    }


if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter


class RunLogger(Adapter):
    """The logger of a run: its records have the run's fields, and workflow code that runs again logs nothing a second time."""

    def __init__(self, context: ExecutionContext) -> None:
        super().__init__(logging.getLogger(f"{_NAME}.{context.identity.workflow_id}"), {})
        self._context = context

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - overrides the standard library's name
        """Return whether a record of this level would be written: never by code that runs again up to where it was."""
        return not self._context.is_replaying and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the run's fields to a record."""
        kwargs["extra"] = {**_fields_of(self._context), **(kwargs.get("extra") or {})}
        return msg, kwargs


class RunLogFilter(logging.Filter):
    """Put ``execution_id``, ``workflow``, ``workspace``, ``trace_id``, ``step`` and ``attempt`` on every log record.

    Add it to a handler, and use the fields in its format; outside of runs they are empty. Records of workflow code that runs
    again after a crash or a wait are dropped up to where the code was, whichever logger they come from.

    Example:

        handler = logging.StreamHandler()
        handler.addFilter(stepwell.RunLogFilter())
        handler.setFormatter(logging.Formatter("%(levelname)s [%(execution_id)s %(step)s] %(message)s"))
        logging.basicConfig(handlers=[handler], level=logging.INFO)
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that a record has not; return whether it is to be written."""
        context = here.get()
        for field, value in _fields_of(context).items():
            if not hasattr(record, field):
                setattr(record, field, value)
        return context is None or not context.is_replaying
