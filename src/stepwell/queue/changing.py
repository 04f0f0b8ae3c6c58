"""Changes of what is set up (tiers, workspaces, named queues), so that two who change it at the same moment both get their way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stepwell.errors import Conflict, StepwellError
from stepwell.model.queue import PutQueue, PutTier, PutWorkspace
from stepwell.state.operation import Operation, read, write

__all__ = ["change"]

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
