"""Fixtures for tests of workflows: a well in memory, a clock that skips, and crashes everywhere.

Loaded by pytest itself, through the entry point of this package, in every test run where Stepwell is installed. So it imports
nothing until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stepwell.testing.well import SkippingClock, TestWell

__all__ = ["clock", "crash_everywhere", "well"]


@pytest.fixture
def clock() -> SkippingClock:
    """The time of ``well``: it stands still while every run waits, is moved by ``clock.advance("2h")``, and skips by itself to what
    a run waits for while the test waits for its result."""
    from stepwell.testing.well import SkippingClock

    return SkippingClock()


@pytest.fixture
def well(clock: SkippingClock) -> Iterator[TestWell]:
    """Return a new well for the test, in memory, with a worker. The environment's settings of stores are ignored."""
    from stepwell.testing.well import TestWell

    opened = TestWell(clock)
    yield opened
    opened.close()


@pytest.fixture
def crash_everywhere() -> Any:
    """``crash_everywhere(workflow, input)``: kill the run at each of its commits, go on, and compare with a run without a crash."""
    from stepwell.testing.crash_testing import crash_everywhere

    return crash_everywhere
