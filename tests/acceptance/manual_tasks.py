"""Acting: a declared workflow whose tasks are done by the test, so that it sees at every point which tasks are open.

A *task* is a node that waits for a signal of its own name. It is open while the run would take that signal, done once it was sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from stepwell import Run, Status
from stepwell.flow import Node, define, signal
from stepwell.testing import SkippingClock, TestWell

__all__ = ["Act", "Acting", "act", "task"]


def task(signal_name: str, name: str = "") -> Node:
    """Something that is done outside of the workflow; several with one signal are told apart by name."""
    return signal(signal_name, name=name or signal_name)


class Acting:
    """A run on memory, with time that stands still between two acts."""

    def __init__(self, well: TestWell, run: Run) -> None:
        self.well, self.run = well, run
        self._settle()

    @property
    def open(self) -> list[str]:
        """The tasks that are open now, as often as they are, by the alphabet."""
        return sorted(offer.name for offer in self.run.progress().offers)

    @property
    def steps(self) -> dict[str, str]:
        """Return the recorded steps in order: keys, and the outcome of each."""
        return {key: str(step.status) for key, step in self.well.load(self.run.execution_id).steps.items()}

    @property
    def is_over(self) -> bool:
        """Whether the run has come to a good end."""
        return self.run.status() == Status.COMPLETED

    def do(self, *tasks: str, value: Any = None) -> None:
        """Do open tasks one after another, and have the run go as far as it can after each."""
        for each in tasks:
            assert each in self.open, f"{each!r} is not open; open are {self.open}"
            self.send(each, value)

    def send(self, name: str, value: Any = None) -> None:
        """Send a signal, whoever may wait for it."""
        self.run.signal(name, value)
        self._settle()

    def send_together(self, *names: str) -> None:
        """Send signals so that the run finds them at the same time, in this order."""
        for name in names:
            self.run.signal(name)
        self._settle()

    def pass_time(self, span: str) -> None:
        """Let time go by."""
        self.well.clock.advance(span)

    def times(self, task_name: str) -> int:
        """How often a task was done."""
        return Counter(key.partition("[")[0] for key, status in self.steps.items() if status == "COMPLETED")[task_name]

    def _settle(self) -> None:
        self.well.clock.advance("1s")


class Act:
    """Starts runs to act in."""

    def __init__(self, well: TestWell) -> None:
        self.well, self._versions = well, count(1)

    def __call__(self, *nodes: Any, input: Any = None, **options: Any) -> Acting:
        definition = define("pattern", *nodes, version=next(self._versions), **options)
        return Acting(self.well, self.well.start(definition, input))


@pytest.fixture
def act() -> Iterator[Act]:
    """``act(*nodes)`` starts a run of these nodes on memory, on a clock of its own."""
    with TestWell(SkippingClock()) as well:
        yield Act(well)
