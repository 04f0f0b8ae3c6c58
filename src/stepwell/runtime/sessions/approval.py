"""An approval that a workflow function asks for, and how it was decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stepwell.errors import InvalidInput
from stepwell.kernel.approvals import Decision
from stepwell.model.ids import check_key
from stepwell.model.plain_data import PlainRecord

__all__ = ["ApprovalRequest", "ApprovalResult", "people_of"]


class ApprovalResult(PlainRecord, frozen=True):
    """The decision of an approval."""

    is_approved: bool
    decisions: tuple[Decision, ...]
    """The answers that counted, in order: dicts with ``by``, ``is_approved`` and the fields that the people added."""


class ApprovalRequest(msgspec.Struct, frozen=True):
    """The arguments of a call of ``wait_approval``."""

    title: str
    name: str
    details: Any
    approvers: tuple[str, ...]
    needed: int
    seconds: float | None
    escalate_to: tuple[str, ...]


def people_of(given: Sequence[str], needed: object, what: str) -> tuple[str, ...]:
    """Return the people who are asked. Raise ``InvalidInput`` if so few of them could never agree."""
    if type(needed) is not int or needed < 1:
        raise InvalidInput(f"needed is a whole number, 1 or more, not {needed!r}")
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidInput(f"{what} is a list of names, not {given!r}")
    people = tuple(check_key(each, f"a name of {what}") for each in given)
    if people and len(set(people)) < needed:
        raise InvalidInput(f"{needed} must agree, and {what} names {len(set(people))}; name more, or ask for fewer")
    return people
