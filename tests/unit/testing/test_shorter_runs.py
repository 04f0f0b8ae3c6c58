"""Runs that come to an end sooner than the one they are compared with are found, too."""

from __future__ import annotations

import pytest

from stepwell import Retry, step, workflow
from stepwell.model.trace import Trace
from stepwell.testing import Diverged, InOrder, Replay, SchedulingChoice, crash_everywhere, rehearse

visits: list[str] = []


@step
async def visited(place: str) -> str:
    return place


@workflow
async def shrinking(place: str) -> str:
    """Goes a longer way the first time, by what is not on its record."""
    visits.append(place)
    if len(visits) == 1:
        await visited(f"before {place}")
    return await visited(place)


def test_replay_of_a_run_that_ends_before_its_log_is_found():
    visits.clear()
    first = rehearse(shrinking, "home", scheduler=InOrder())
    longer = [*first.choices, SchedulingChoice("one more turn", 2, 0)]
    visits.clear()
    with pytest.raises(Diverged, match=r"the run has ended before choice \d+, but the log has 'one more turn' of 2 ways"):
        rehearse(shrinking, "home", scheduler=Replay(longer))


def test_log_that_is_used_up_is_no_divergence():
    visits.clear()
    first = rehearse(shrinking, "home", scheduler=InOrder())
    visits.clear()
    assert rehearse(shrinking, "home", scheduler=Replay(first.choices)) == first


@step(retry=Retry(attempts=2, first_seconds=1))
async def hesitant(place: str) -> str:
    visits.append(place)
    if len(visits) == 1:
        raise ConnectionError("not yet")
    return place


@workflow
async def hesitating(place: str) -> str:
    return await hesitant(place)


def test_trace_can_be_reduced_to_nothing():
    visits.clear()
    assert rehearse(shrinking, "home").trace.reduced("none") == Trace("none")


def test_crash_that_a_run_does_not_come_to_a_second_time_is_told():
    """Else the commits that only the first run made would count as survived."""
    visits.clear()
    with pytest.raises(AssertionError, match="the run did not come to it a second time: it made only 3 commits"):
        crash_everywhere(hesitating, "home")


def test_full_traces_that_differ_in_a_value_alone_are_different():
    visits.append("not the first")
    one, other = (rehearse(shrinking, place).trace for place in ("home", "work"))
    assert one.reduced("min").difference(other.reduced("min")) is None
    assert one.difference(other) is not None
