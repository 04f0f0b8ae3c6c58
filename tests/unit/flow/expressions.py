"""Facts that expressions of the tests are about, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping

from stepwell.flow import compile_expression

FACTS = {
    "trigger": {"input": {"total": 120, "country": "CH", "tags": ["new", "vip"], "express": True, "note": None}},
    "variables": {
        "count": 3,
        "rate": 0.5,
        "name": "Ann",
        "odd key": 1,
        "a-b": 2,
        "0": "zero",
        "empty": [],
        "nested": [[1, 2], [3]],
    },
    "steps": {"charge": {"output": {"total": 99.5, "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]}, "status": "COMPLETED"}},
    "index": 4,
}


def value(text: str, facts: Mapping[str, object] = FACTS) -> object:
    return compile_expression(text).evaluate(facts)
