"""The number of examples of a test, by the loaded profile of Hypothesis."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["scaled"]

_USUAL_EXAMPLES = 100


def scaled(count: int) -> int:
    """Return ``count`` for a profile of 100 examples, ten times as many for one of 1000, and at least 1.

    Call it while tests are collected: ``pytest --hypothesis-profile=NAME`` has chosen the profile by then.
    """
    return max(1, count * settings().max_examples // _USUAL_EXAMPLES)
