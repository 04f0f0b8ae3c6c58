"""Take secret values out of errors and other texts of user code, before they are recorded, logged or raised to a caller.

An error often says what it was about, and so it may hold a password. The values that a run was given under secret names are looked
for in the error's texts, and in those of the errors that caused it; likewise in log messages and summaries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from stepwell.model.redaction import Redaction
from stepwell.model.value import decode
from stepwell.runtime.steps.outcome import Told

__all__ = ["hide_secrets", "text_without_secrets"]


def text_without_secrets(names: Iterable[str], text: str, trigger: bytes | None, given: Any = None) -> str:
    """Return a text without the secret values of what started the run, and of what a step was given."""
    return Redaction(names).text(text, None if trigger is None else decode(trigger), given)


def hide_secrets(names: Iterable[str], error: BaseException, trigger: bytes | None, given: Any = None) -> None:
    """Replace the secret values in the texts of an error.

    - ``names``: the names of secret keys and fields.
    - ``trigger``: what started the run, as it is stored.
    - ``given``: the arguments of the step that raised it.
    """
    redaction = Redaction(names)
    values = (None if trigger is None else decode(trigger), given)
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        _hide(each, redaction, values)
        pending += [other for other in (each.__cause__, each.__context__) if other is not None]
        if isinstance(each, BaseExceptionGroup):
            pending += cast("BaseExceptionGroup[BaseException]", each).exceptions


def _hide(error: BaseException, redaction: Redaction, values: tuple[Any, ...]) -> None:
    def hidden(text: object) -> object:
        return redaction.text(text, *values) if isinstance(text, str) else redaction.value(text)

    shown: Any = error
    if not isinstance(error, BaseExceptionGroup):  # its message is fixed, and those of its errors are hidden one by one
        shown.args = tuple(hidden(each) for each in error.args)
        if isinstance(getattr(shown, "message", None), str):
            shown.message = redaction.text(shown.message, *values)
    if isinstance(getattr(shown, "__notes__", None), list):
        shown.__notes__ = [hidden(note) for note in shown.__notes__]
    if isinstance(error, Told):
        error.told = {key: hidden(each) if key in ("message", "traceback") else each for key, each in error.told.items()}
