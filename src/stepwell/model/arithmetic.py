"""What a value and another come to together: increments and merges of scoped state."""

from __future__ import annotations

from stepwell.errors import InvalidInput
from stepwell.model.value import Value, recode

__all__ = ["merged", "summed"]


def summed(key: str, before: Value, by: float) -> int | float:
    """A number and what is added to it, within the range of numbers that every store keeps."""
    if not _is_number(before):
        raise InvalidInput(f"key {key!r} holds no number, so it cannot be incremented; set it first")
    after = before + by
    if isinstance(after, int) and not -(2**63) <= after < 2**63:
        raise InvalidInput(f"key {key!r} would leave the range of 64-bit integers")
    if after - after != 0:
        raise InvalidInput(f"key {key!r} would leave the range of floats")
    return after


def merged(key: str, how: str, before: Value, given: Value) -> Value:
    """What two values come to by ``add``, ``max``, ``min`` or ``union``, in whatever order writers bring them."""
    if how == "union":
        if not isinstance(before, list) or not isinstance(given, list):
            raise InvalidInput(f"key {key!r} holds no list, so nothing can be united with it")
        both: list[Value] = [*before, *given]
        members = {recode(each): each for each in both}
        return [members[data] for data in sorted(members)]
    if not _is_number(before) or not _is_number(given):
        raise InvalidInput(f"key {key!r} holds no number, so {how} cannot be taken")
    # 1 and 1.0 are as large as each other and yet differ; the bytes decide, so that the order of the writers does not.
    return before + given if how == "add" else (max if how == "max" else min)(before, given, key=_rank)


def _rank(number: Value) -> tuple[Value, bytes]:
    return number, recode(number)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
