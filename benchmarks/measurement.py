"""A figure of a run, beside its raw limit and its target, as a JSON line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["Measurement", "Target", "at_least", "at_most", "significant"]


@dataclass(frozen=True)
class Target:
    """The target of a figure, in words, and whether it was met."""

    text: str
    met: bool


def at_least(what: str, actual: float, wanted: float) -> Target:
    """Return the target that a figure is at least ``wanted``."""
    return Target(f"{what} >= {wanted:g}", actual >= wanted)


def at_most(what: str, actual: float, wanted: float) -> Target:
    """Return the target that a figure is at most ``wanted``."""
    return Target(f"{what} <= {wanted:g}", actual <= wanted)


@dataclass(frozen=True)
class Measurement:
    """A figure: the median of several rounds, and its ratio to a yardstick that alternates with it."""

    name: str
    value: float
    unit: str
    raw: float | None = None
    raw_is: str = ""
    ratio: float | None = None
    """The median of the ratios per round, so that a slow moment of the machine affects both."""
    target: Target | None = None
    note: str = ""

    def line(self) -> str:
        """Return the measurement as one JSON object."""
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
    """Return the number with four significant digits; more would be noise."""
    return None if number is None else float(f"{number:.4g}")
