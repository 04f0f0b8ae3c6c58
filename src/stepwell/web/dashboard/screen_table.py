"""The table of all screens. A screen of another module is added here, and the tests of all screens go over it."""

from __future__ import annotations

from stepwell.web.dashboard import page_events
from stepwell.web.dashboard.screen import ScreenTable
from stepwell.web.dashboard.screens import (
    approvals,
    audit,
    definitions,
    errors,
    home,
    queues,
    receipts,
    run,
    runs,
    schedules,
    scopes,
    state,
    system,
    workers,
)

__all__ = ["SCREENS"]

SCREENS = ScreenTable(
    (
        *page_events.SCREENS,
        *home.SCREENS,
        *runs.SCREENS,
        *run.SCREENS,
        *state.SCREENS,
        *errors.SCREENS,
        *approvals.SCREENS,
        *queues.SCREENS,
        *schedules.SCREENS,
        *workers.SCREENS,
        *definitions.SCREENS,
        *scopes.SCREENS,
        *receipts.SCREENS,
        *audit.SCREENS,
        *system.SCREENS,
    )
)
