"""Count the answers to an approval: who may answer, what counts as an answer, and when it is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from stepwell.model.value import Value

__all__ = ["Decision", "counted", "verdict"]

Decision = dict[str, Any]
"""One answer: ``by``, ``is_approved``, and any fields that the person added."""


def counted(made: Sequence[Decision], people: Sequence[str], value: Value) -> list[Decision] | None:
    """Return the decisions with one answer more; None for a value that is no answer, and for a person who was not asked or has
    answered before."""
    decision = _decision(value)
    if decision is None or (people and decision["by"] not in people):
        return None
    if decision["by"] is not None and any(other["by"] == decision["by"] for other in made):
        return None
    return [*made, decision]


def verdict(made: Sequence[Decision], people: Sequence[str], needed: int) -> bool | None:
    """Return whether it is approved; None while it is open.

    Without named approvers, ``needed`` refusals refuse, as ``needed`` approvals approve.
    """
    agreed = sum(1 for each in made if each["is_approved"])
    if agreed >= needed:
        return True
    if not people:
        return False if len(made) - agreed >= needed else None
    left = set(people) - {each["by"] for each in made}  # escalation replaces the people: count those who are asked now
    return False if agreed + len(left) < needed else None


def _decision(value: Value) -> Decision | None:
    if isinstance(value, bool):
        return {"by": None, "is_approved": value}
    if not isinstance(value, Mapping):
        return None
    given = cast("Mapping[str, Any]", value)
    if not isinstance(given.get("is_approved"), bool):
        return None
    return {"by": None, **given}
