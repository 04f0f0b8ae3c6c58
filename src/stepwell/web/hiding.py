"""Hide what is declared secret from replies of the HTTP API, and with them from the dashboard, which has no other way to the store.

Proofs are left as they are: they would not verify otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import msgspec

from stepwell.app.awaited import AsyncStepwell
from stepwell.errors import StepwellError
from stepwell.model.redaction import HIDDEN
from stepwell.queue.item import ItemSummary
from stepwell.queue.schedule import ScheduleSummary
from stepwell.web.problem import HttpProblem

__all__ = ["Hide", "check_not_hidden", "hider_of", "without_secrets"]

_NAMES = ("key", "name")
"""Fields that name the value beside them, such as the key of an entry and the name of a variable."""
_VALUES = ("value", "before", "after", "detail")

Hide = partial[Any]
"""Hides secrets in a value: ``well.redact`` with the names of a run."""


async def hider_of(well: AsyncStepwell, execution_id: str | None = None) -> Hide:
    """Return the function that hides secrets in a value: those of the well, and those that a run declared when it started."""
    names: tuple[str, ...] = ()
    if execution_id is not None:
        try:
            names = (await well.load(execution_id)).identity.secrets or ()
        except StepwellError:  # then its values are not shown either
            names = ()
    return partial(well.redact, secrets=names)


def without_secrets(body: Any, hide: Hide) -> Any:
    """Return the body of a reply with ``[secret]`` in place of what is secret; the same object if nothing is.

    Names of the API's own fields are none of a user, whatever is declared secret.
    """
    if isinstance(body, ItemSummary | ScheduleSummary) and body.secrets:
        hide = partial(hide, secrets=(*hide.keywords["secrets"], *body.secrets))
    if isinstance(body, msgspec.Struct):
        fields = {name: getattr(body, name) for name in body.__struct_fields__}
        shown = _beside({name: without_secrets(value, hide) for name, value in fields.items()}, hide)
        changed = {name: value for name, value in shown.items() if value is not fields[name]}
        return msgspec.structs.replace(body, **changed) if changed else body
    if isinstance(body, list | tuple):
        several = cast("list[Any]", body)
        listed = [without_secrets(each, hide) for each in several]
        if all(new is old for new, old in zip(listed, several, strict=True)):
            return several
        return tuple(listed) if isinstance(body, tuple) else listed
    if isinstance(body, dict):
        before = cast("dict[str, Any]", body)
        after = _beside({key: without_secrets(value, hide) for key, value in hide(before).items()}, hide)
        return before if after == before else after
    return body


def _beside(fields: dict[str, Any], hide: Hide) -> dict[str, Any]:
    """Return fields with the values hidden that stand beside the name of a secret."""
    for name in _NAMES:
        named = fields.get(name)
        if isinstance(named, str) and hide({named: ""})[named] == HIDDEN:
            return {key: HIDDEN if key in _VALUES and not _is_empty(value) else value for key, value in fields.items()}
    return fields


def _is_empty(value: object) -> bool:
    return value is None or value is msgspec.UNSET


def check_not_hidden(body: object) -> None:
    """Raise ``HttpProblem`` (422) for a body that has ``[secret]`` as a value: sent back, it would take the place of the secret."""
    if body == HIDDEN:
        raise HttpProblem("invalid", f"{HIDDEN} stands for a value that is not shown; send the value itself")
    if isinstance(body, msgspec.Struct):
        for name in body.__struct_fields__:
            check_not_hidden(getattr(body, name))
    elif isinstance(body, Mapping):
        for value in cast("Mapping[str, object]", body).values():
            check_not_hidden(value)
    elif isinstance(body, list | tuple):
        for value in cast("list[object]", body):
            check_not_hidden(value)
