"""The command line: a run as a picture in text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stepwell.cli.run_view import RunEvent, bars, span_text

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)


def step(name: str, began: float, took: float) -> RunEvent:
    """A step that began so many seconds after noon."""
    at = NOON + timedelta(seconds=began + took)
    return RunEvent(
        event="step", execution_id="a", revision=1, at=at, name=name, status="COMPLETED", duration_ms=round(took * 1000)
    )


def extent(row: str) -> tuple[int, int]:
    """Where the bar of a row begins and ends."""
    return row.index("#"), row.rindex("#") + 1


def test_bars_stand_where_the_steps_were():
    first, second, short = bars([step("a", 0, 5), step("b", 5, 5), step("c", 9.999, 0.001)], width=100, block="#")
    assert extent(first)[1] == extent(second)[0]
    assert abs((extent(first)[1] - extent(first)[0]) - (extent(second)[1] - extent(second)[0])) <= 1
    assert extent(short) == (extent(second)[1] - 1, extent(second)[1]), "the shortest step can be seen"
    assert all(len(row) <= 100 for row in (first, second, short))


def test_time_before_the_first_step_is_shown():
    (row,) = bars([step("a", 5, 5)], width=100, began_at=NOON, block="#")
    begins, ends = extent(row)
    assert begins > (ends - begins) * 0.9


def test_long_run_shows_its_first_and_last_steps():
    rows = bars([step(f"step-{number}", number, 1) for number in range(1000)], width=80)
    assert len(rows) == 61
    assert rows[0].startswith("step-0 ")
    assert "940 more steps" in rows[30]
    assert rows[-1].startswith("step-999 ")


def test_names_are_made_safe_and_cut():
    (row,) = bars([step("x\x1b[31m" + "y" * 100, 0, 1)], width=80, block="#")
    assert row.startswith("x\\x1b[31myyy")
    assert len(row) <= 80


def test_no_steps_make_no_picture():
    assert bars([], width=80) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 ms"), (0.0016, "2 ms"), (1.25, "1.2 s"), (90, "90.0 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_spans_are_written_for_people(seconds: float, text: str):
    assert span_text(seconds) == text
