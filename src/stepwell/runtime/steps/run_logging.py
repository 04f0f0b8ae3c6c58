"""Logging with the context of a run: ``current().logger``, and a filter that puts the context on every record."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stepwell.runtime.steps.context import ExecutionContext, StepContext, here
from stepwell.runtime.steps.secret_errors import text_without_secrets

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
        logger = logging.getLogger(f"{_NAME}.{context.identity.workflow_id}")
        logger.addFilter(_hiding)  # a second time does nothing
        super().__init__(logger, {})
        self._context = context

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - overrides the standard library's name
        """Return whether a record of this level would be written: never by code that runs again up to where it was."""
        return not self._context.is_replaying and super().isEnabledFor(level)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write a record. What a step logs at INFO or above is kept with its attempt, whether or not a handler writes it."""
        context = self._context
        if level >= logging.INFO and isinstance(context, StepContext) and context.attempt_log is not None:
            record = logging.LogRecord(self.logger.name, level, "", 0, msg, args, None)
            _hide_secrets(record, context)
            context.attempt_log.add(level, _message_of(record))
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller of this method is where it was logged
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the run's fields to a record."""
        kwargs["extra"] = {**_fields_of(self._context), **(kwargs.get("extra") or {})}
        return msg, kwargs


def _message_of(record: logging.LogRecord) -> str:
    """Return the text of a record; its pattern, if the arguments do not fit: a handler reports that."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - an object of the user's own may raise anything when it is shown
        return str(record.msg)


def _hide_secrets(record: logging.LogRecord, context: ExecutionContext | None) -> None:
    """Take the secret values of a run out of a record that its code has made."""
    names = None if context is None else context.identity.secrets
    if context is None or not names:
        return

    def shown(text: str) -> str:
        return text_without_secrets(names, text, context.started_by, (context.given, given))

    given = record.args
    with suppress(Exception):  # what cannot be formatted is reported by the handler
        record.msg, record.args = shown(record.getMessage()), None
    if record.exc_info and record.exc_info[0] is not None:
        record.exc_text = shown(record.exc_text or logging.Formatter().formatException(record.exc_info))


class _SecretFilter(logging.Filter):
    """Hides the secret values of the run whose code has made a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Hide them; every record is written."""
        _hide_secrets(record, here.get())
        return True


_hiding = _SecretFilter()


class RunLogFilter(logging.Filter):
    """Put ``execution_id``, ``workflow``, ``workspace``, ``trace_id``, ``step`` and ``attempt`` on every log record.

    Add it to a handler, and use the fields in its format; outside of runs they are empty. Records of workflow code that runs
    again after a crash or a wait are dropped up to where the code was, whichever logger they come from. Declared secrets of the run
    are hidden in the message.

    Example:

        handler = logging.StreamHandler()
        handler.addFilter(stepwell.RunLogFilter())
        handler.setFormatter(logging.Formatter("%(levelname)s [%(execution_id)s %(step)s] %(message)s"))
        logging.basicConfig(handlers=[handler], level=logging.INFO)
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that a record has not; return whether it is to be written."""
        context = here.get()
        _hide_secrets(record, context)
        for field, value in _fields_of(context).items():
            if not hasattr(record, field):
                setattr(record, field, value)
        return context is None or not context.is_replaying
