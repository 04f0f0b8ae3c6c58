"""Tools for tests of workflows and of stores: crash injection, a well with a skipping clock, schedulers, a simulator."""

from typing import TYPE_CHECKING

from stepwell.lazy_import import fetching

if TYPE_CHECKING:
    from stepwell.testing.crash_testing import CrashReport, crash_everywhere
    from stepwell.testing.rehearsal import Rehearsal, rehearse
    from stepwell.testing.schedulers import Diverged, InOrder, Replay, SchedulingChoice, Seeded, TaskScheduler, read_log, write_log
    from stepwell.testing.well import SkippingClock, TestWell

__all__ = [
    "CrashReport",
    "Diverged",
    "InOrder",
    "Rehearsal",
    "Replay",
    "SchedulingChoice",
    "Seeded",
    "SkippingClock",
    "TaskScheduler",
    "TestWell",
    "crash_everywhere",
    "read_log",
    "rehearse",
    "write_log",
]

_HOMES = {
    "schedulers": ("SchedulingChoice", "Diverged", "InOrder", "Replay", "TaskScheduler", "Seeded", "read_log", "write_log"),
    "crash_testing": ("CrashReport", "crash_everywhere"),
    "rehearsal": ("Rehearsal", "rehearse"),
    "well": ("SkippingClock", "TestWell"),
}

# pytest loads this package in test runs that have no use for what is in it.
__getattr__ = fetching(__name__, _HOMES)
