"""Changes of what is set up (tiers, workspaces, named queues), so that two who change it at the same moment both get their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from stepwell.errors import Conflict, StepwellError
from stepwell.model.queue_item import PutQueue, PutTier, PutWorkspace
from stepwell.pipeline.operations import Operation, read, write

__all__ = ["KEEP", "Number", "Rate", "change", "kept_or_changed"]

KEEP: Any = msgspec.UNSET
"""Says that a setting stays as it is; None means no limit."""

Number = int | None | msgspec.UnsetType
Rate = float | None | msgspec.UnsetType

T = TypeVar("T")
Put = TypeVar("Put", bound=PutTier | PutWorkspace | PutQueue)

_TRIES = 100
"""Whoever is refused was outrun by one who has landed, so of so many at once all get their turn. Then the refusal is told."""


def change(find: Callable[[], T | None], put: Callable[[T | None], Put]) -> Operation[Put]:
    """Find what is there and write what it becomes; from the start if another has changed it in between. The unit that landed.

    ``put`` makes a unit that is based on what was found. It is called anew each time; if it raises something, nothing was written.
    """
    left = _TRIES
    while True:
        known = yield from read(find)
        unit = put(known)
        outcome = yield from write(unit)
        if not isinstance(outcome, StepwellError):
            return unit
        left -= 1
        if not isinstance(outcome, Conflict) or not left:
            raise outcome


def kept_or_changed(known: msgspec.Struct | None, given: dict[str, Any]) -> dict[str, Any]:
    """The settings that are there, with those that are given. Whoever makes a value of them anew has them checked."""
    before: dict[str, Any] = {} if known is None else msgspec.structs.asdict(known)
    return before | {what: value for what, value in given.items() if value is not KEEP}
