"""When two values are the same, and which is less: by kind first, so that nothing is equal by accident."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from stepwell.flow.meter import EvaluationBudget, EvaluationError
from stepwell.model.value import Value

__all__ = ["is_same", "kind_of", "order"]

_ATOMS = frozenset({str, int, float, bool, type(None)})


def kind_of(value: Value) -> str:
    """The kind of a value, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


def is_same(meter: EvaluationBudget, left: Value, right: Value) -> bool:
    """Whether two values are equal; 1 and 1.0 are, 1 and true are not."""
    if type(left) in _ATOMS or type(right) in _ATOMS:
        return left == right and isinstance(left, bool) == isinstance(right, bool)
    pending = [(left, right)]
    while pending:
        one, other = pending.pop()
        if isinstance(one, list) and isinstance(other, list):
            if len(cast("list[Value]", one)) != len(cast("list[Value]", other)):
                return False
            meter.read(cast("list[Value]", one))
            pending.extend(zip(cast("list[Value]", one), cast("list[Value]", other), strict=True))
        elif isinstance(one, Mapping) and isinstance(other, Mapping):
            first, second = cast("Mapping[str, Value]", one), cast("Mapping[str, Value]", other)
            if first.keys() != second.keys():
                return False
            meter.spend(len(first))
            pending.extend((first[key], second[key]) for key in first)
        elif one != other or isinstance(one, bool) != isinstance(other, bool):
            return False
    return True


def order(left: Any, right: Any) -> int:
    """-1, 0 or 1 as the left value is less than, equal to or greater than the right one."""
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    are_numbers = all(type(value) in (int, float) for value in (left, right))
    if not are_numbers:
        raise EvaluationError(f"cannot order {kind_of(left)} and {kind_of(right)}; only numbers, or texts, have an order")
    return (left > right) - (left < right)
