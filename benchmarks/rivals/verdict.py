"""The result of a contest as JSON lines: every contender's figure, and ours beside each rival's best."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from statistics import median, quantiles

from benchmarks.measurement import significant
from benchmarks.rivals.contest import OURS, Contest
from benchmarks.rivals.target import target_of
from benchmarks.rounds import median_ratio

__all__ = ["lines"]

Rounds = Mapping[str, list[list[float]]]
"""The figures per round, by contender."""


def lines(contest: Contest, rounds: Rounds) -> Iterator[str]:
    """Yield every line of a contest's result."""
    if contest.unit != "ms":
        rates = {name: [median(figures) for figures in each] for name, each in rounds.items()}
        yield from _compared(contest.name, contest.unit, rates)
        return
    milliseconds = {name: [[figure * 1000 for figure in figures] for figures in each] for name, each in rounds.items()}
    middle = {name: [median(figures) for figures in each] for name, each in milliseconds.items()}
    yield from _compared(f"{contest.name}.p50", "ms", middle)
    # The p99 of all rounds together: one round has too few values for it.
    worst = {name: [_ninety_ninth([figure for figures in each for figure in figures])] for name, each in milliseconds.items()}
    yield from _compared(f"{contest.name}.p99", "ms", worst)


def _ninety_ninth(figures: list[float]) -> float:
    return quantiles(figures, n=100, method="inclusive")[98] if len(figures) > 1 else figures[0]


def _compared(name: str, unit: str, figures: Mapping[str, list[float]]) -> Iterator[str]:
    for contender, values in figures.items():
        value = significant(median(values))
        yield json.dumps({"kind": "figure", "name": name, "contender": contender, "value": value, "unit": unit})
    best = _best_of_each_product(figures, is_time=unit == "ms")
    for contender, ours in figures.items():
        if contender.partition(".")[0] == OURS:
            for rival, rival_name in best.items():
                yield _beside(name, unit, contender, ours, rival, rival_name, figures[rival_name])


def _best_of_each_product(figures: Mapping[str, list[float]], *, is_time: bool) -> dict[str, str]:
    """Return for each rival product the way of use that was best here."""
    best: dict[str, str] = {}
    for contender in sorted(figures, key=lambda each: median(figures[each]), reverse=is_time):
        best[contender.partition(".")[0]] = contender
    return {product: contender for product, contender in sorted(best.items()) if product != OURS}


def _beside(name: str, unit: str, contender: str, ours: list[float], rival: str, rival_name: str, theirs: list[float]) -> str:
    value, ratio = median(ours), median_ratio(ours, theirs)
    target = target_of(name, rival, value, ratio)
    return json.dumps(
        {
            "kind": "comparison",
            "name": name,
            "contender": contender,
            "value": significant(value),
            "unit": unit,
            "rival": rival_name,
            "rival_value": significant(median(theirs)),
            "ratio": significant(ratio),
            "target": None if target is None else target.text,
            "met": None if target is None else target.met,
        }
    )
