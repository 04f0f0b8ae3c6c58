"""The table of all screens. A screen of another module is added here, and the tests of all screens go over it."""

from __future__ import annotations

from stepwell.web.dashboard import live
from stepwell.web.dashboard.screen import ScreenTable
from stepwell.web.dashboard.screens import errors, home, run, runs, state

__all__ = ["SCREENS"]

SCREENS = ScreenTable(
    (
        *live.SCREENS,
        *home.SCREENS,
        *runs.SCREENS,
        *run.SCREENS,
        *state.SCREENS,
        *errors.SCREENS,
    )
)
