"""Counts of what this process wrote to its store, for metrics: groups with their latency, commits, runs, refusals and webhooks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from stepwell.errors import StepwellError
from stepwell.model.commit import Commit, CommitKind, Outcome, Unit, Written

__all__ = ["BUCKETS", "WriteStatistics"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the latency buckets, in seconds."""


class WriteStatistics:
    """Counts since this process opened the store. One thread writes; readers may be one group behind."""

    def __init__(self) -> None:
        self.groups_by_bucket = [0] * (len(BUCKETS) + 1)
        """How many groups took no longer than each bound; the last one is of those that took longer than all."""
        self.seconds = 0.0
        """How long all groups took together."""
        self.failed_groups = 0
        self.commits = 0
        self.runs: Counter[str] = Counter()
        """How often a run reached a status, such as ``COMPLETED``."""
        self.steps = 0
        """Commits that only record what steps did."""
        self.refused: Counter[str] = Counter()
        """Commits that the store refused, by error: ``LeaseLost`` and ``Conflict`` say that another worker was first."""
        self.webhooks: Counter[str] = Counter()
        """Messages that this process sent, by whether they were ``accepted`` or ``refused``."""

    def add(self, units: Sequence[Unit], outcomes: Sequence[Outcome], seconds: float) -> None:
        """Count a group that was written."""
        self.groups_by_bucket[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds
        for unit, outcome in zip(units, outcomes, strict=True):
            if type(unit) is not Commit:
                continue
            if isinstance(outcome, Written):
                self.commits += 1
                if unit.kind is CommitKind.STEP:
                    self.steps += 1
                elif unit.status is not None:
                    self.runs[unit.status] += 1
            elif isinstance(outcome, StepwellError):
                self.refused[type(outcome).__name__] += 1

    def add_failure(self) -> None:
        """Count a group that failed."""
        self.failed_groups += 1
