"""The registry of fault points is exactly what the write path has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.faults.callers import CALLERS
from tests.faults.crash_case import ORDER, Picture, change, prepare
from tests.faults.hooks import Trace

import stepwell
from stepwell import fault_points

_LITERAL = re.compile(r"""\bfault\(\s*(["'])(?P<point>.*?)\1""")

OTHERS = fault_points.QUEUE_POINTS.keys() | fault_points.LEASE_POINTS.keys()
"""Fault points that an ordinary commit does not pass."""


def named_in(*files: Path) -> set[str]:
    texts = [file.read_text(encoding="utf-8") for file in files]
    named = {match["point"] for text in texts for match in _LITERAL.finditer(text)}
    return named | {"store.committed" for text in texts if "fault_after_commit()" in text}


@pytest.mark.parametrize("colour", CALLERS)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_commits_that_write_everything_reach_exactly_the_registered_points(store: str, colour: str, tmp_path: Path) -> None:
    """T01: no write without a point, no point that nothing reaches."""
    caller, trace = CALLERS[colour]("memory://" if store == "memory" else f"sqlite:///{tmp_path}/well.db"), Trace()
    with fault_points.armed(trace):
        prepare(caller)
        caller.begin(ORDER, "third", change).commit()
    caller.close()
    assert set(trace.points) == set(fault_points.POINTS)


def test_every_point_named_in_the_source_is_registered() -> None:
    """T01: a new point cannot be forgotten in the registry, nor an old one in the source."""
    assert named_in(*Path(stepwell.__file__).parent.rglob("*.py")) == (
        fault_points.POINTS.keys()
        | OTHERS
        | fault_points.BACKUP_POINTS.keys()
        | fault_points.MIGRATION_POINTS.keys()
        | fault_points.RETENTION_POINTS.keys()
    )


def test_each_store_has_every_point_of_a_store() -> None:
    """T01: a store that lacks a point would pass its crash tests by never failing."""
    stores = Path(stepwell.__file__).parent / "stores"
    wanted = {point for point in fault_points.POINTS if point.startswith("store.")} | OTHERS
    assert named_in(*(stores / "memory").rglob("*.py")) == wanted
    assert named_in(*(stores / "sqlite").rglob("*.py")) == wanted


def test_every_store_comes_to_the_same_receipts_and_state(pictures: dict[str, list[Picture]]) -> None:
    """T01: what the crash tests compare with does not depend on the store."""
    memory, sqlite = pictures["memory"], pictures["sqlite"]
    assert [(each.old, each.new, each.receipt) for each in memory] == [(each.old, each.new, each.receipt) for each in sqlite]


def test_a_disarmed_point_does_nothing_and_arming_ends_with_its_block() -> None:
    trace = Trace()
    fault_points.fault("store.begun")
    with fault_points.armed(trace):
        fault_points.fault("store.begun")
    fault_points.fault("store.begun")
    assert trace.points == ["store.begun"]
