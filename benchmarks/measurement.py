"""One figure of a run, beside its raw limit and its target, as a JSON line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["Measurement", "Target", "at_least", "at_most", "significant"]


@dataclass(frozen=True)
class Target:
    """What a figure should reach, in words, and whether it did."""

    text: str
    met: bool


def at_least(what: str, actual: float, wanted: float) -> Target:
    """The target that a figure is no smaller than wanted."""
    return Target(f"{what} >= {wanted:g}", actual >= wanted)


def at_most(what: str, actual: float, wanted: float) -> Target:
    """The target that a figure is no larger than wanted."""
    return Target(f"{what} <= {wanted:g}", actual <= wanted)


@dataclass(frozen=True)
class Measurement:
    """A figure: the median of several rounds, and the ratio to a yardstick that was measured between them."""

    name: str
    value: float
    unit: str
    raw: float | None = None
    raw_is: str = ""
    ratio: float | None = None
    """The median of the rounds' own ratios of value to raw, so that a slow moment of the machine falls on both."""
    target: Target | None = None
    note: str = ""

    def line(self) -> str:
        """The measurement as one JSON object."""
        fields = asdict(self) | {
            "value": significant(self.value),
            "raw": significant(self.raw),
            "ratio": significant(self.ratio),
            "target": None if self.target is None else self.target.text,
            "met": None if self.target is None else self.target.met,
        }
        return json.dumps({"kind": "measurement"} | {key: fields[key] for key in _FIELDS})


_FIELDS = ("name", "value", "unit", "raw", "raw_is", "ratio", "target", "met", "note")


def significant(number: float | None) -> float | None:
    """The number with four digits: more would be noise."""
    return None if number is None else float(f"{number:.4g}")
