"""Governance: budgets of one execution, and the kinds of effects that its steps may have."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import msgspec

from stepwell.duration import LONGEST_SECONDS, Seconds, Span, seconds_of
from stepwell.errors import InvalidInput, Problem
from stepwell.model.plain_data import PlainRecord

__all__ = ["Governance", "check_governance"]


class Governance(PlainRecord, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Budgets and permissions of an execution, fixed when it starts. None means no limit."""

    steps: int | None = None
    """The number of steps it may run. Recorded steps count; their attempts do not."""
    seconds: Seconds | None = None
    """Time since its start, including waits. After it, the execution times out as by the workflow's own ``timeout``."""
    cost: float | None = None
    """The sum that its steps may report with ``current().spend(...)``. Once it is reached, no further step starts."""
    effects: tuple[str, ...] | None = None
    """The kinds of effects its steps may have (``@step(effect=...)``). Steps without a kind are always allowed."""

    if TYPE_CHECKING:  # parameter types: spans may be given, seconds are stored

        def __init__(
            self,
            steps: int | None = ...,
            seconds: Span | None = ...,
            cost: float | None = ...,
            effects: Iterable[str] | None = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        given: object = self.seconds
        if isinstance(given, str | timedelta):
            msgspec.structs.force_setattr(self, "seconds", seconds_of(given, "Governance(seconds=...)"))
        if self.effects is not None:
            msgspec.structs.force_setattr(self, "effects", _kinds(self.effects))
        checks = (
            ("steps", type(self.steps) is int and self.steps >= 0, "a whole number, 0 or more"),
            ("seconds", _is_number(self.seconds) and 0 < cast("float", self.seconds) <= LONGEST_SECONDS, "seconds up to 100 years"),
            ("cost", _is_number(self.cost) and cast("float", self.cost) >= 0, "a number, 0 or more"),
            ("effects", all(self.effects or ("any",)), "names of kinds of effects"),
        )
        faults = [
            Problem(InvalidInput.code, f"Governance({name}=...) must be {rule}, not {getattr(self, name)!r}")
            for name, is_fine, rule in checks
            if getattr(self, name) is not None and not is_fine
        ]
        if faults:
            raise InvalidInput(faults)


def _is_number(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool)


def _kinds(kinds: object) -> tuple[str, ...]:
    """Return kinds of effects as a tuple, with an empty text in place of anything that is not a text."""
    if not isinstance(kinds, Iterable) or isinstance(kinds, str):
        return ("",)
    return tuple(kind if isinstance(kind, str) else "" for kind in cast("Iterable[object]", kinds))


def check_governance(given: object) -> Governance | None:
    """Return a governance that was given, or None. Raise ``InvalidInput`` for anything else."""
    if given is not None and not isinstance(given, Governance):
        raise InvalidInput(f"governance is a stepwell.Governance(...), not {given!r}")
    return given
