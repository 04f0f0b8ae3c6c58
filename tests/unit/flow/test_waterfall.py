"""The waterfall: where things are on the axis, which idle times are folded, and how many rows become few."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from stepwell.flow.drawing.waterfall import Bar, WaterfallRow, axis_of, draw_waterfall, grouped

MINUTE = 60_000.0


def row(key: str, begin: float, end: float, **more: object) -> WaterfallRow:
    return WaterfallRow(key, key, "COMPLETED", (Bar("work", begin, end),), **more)


def test_a_long_idle_time_is_folded_and_said():
    rows = [row("a", 0, MINUTE), row("b", 60 * MINUTE, 61 * MINUTE)]
    axis = axis_of(rows, 61 * MINUTE)
    [fold] = axis.folds
    assert axis.place(fold.end) - axis.place(fold.begin) < 5
    assert axis.place(MINUTE) - axis.place(0) > 20
    assert "Nothing happened for 56 min 38 s" in draw_waterfall(rows, axis, 61 * MINUTE, title="t")
    assert axis_of(rows, 61 * MINUTE, has_folds=False).folds == ()


def test_a_wait_is_no_work_and_a_short_idle_time_stays():
    waiting = WaterfallRow("w", "w", "COMPLETED", (Bar("wait", MINUTE, 60 * MINUTE),))
    assert len(axis_of([row("a", 0, MINUTE), waiting], 60 * MINUTE).folds) == 1
    assert axis_of([row("a", 0, 1000), row("b", 31_000, 32_000)], 32_000).folds == ()


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e7)), min_size=1, max_size=20))
def test_moments_keep_their_order_and_their_room(spans: list[tuple[float, float]]):
    rows = [row(str(number), begin, begin + length) for number, (begin, length) in enumerate(spans)]
    axis = axis_of(rows, 2e9)
    moments = sorted(at for each in rows for at in (each.begin, each.end))
    places = [axis.place(at) for at in moments]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] <= 100.01


def test_many_steps_of_one_name_are_one_row_and_failures_stay():
    rows = [row(f"ship[{number}]", number, number + 10 + number % 3) for number in range(300)]
    rows.append(WaterfallRow("ship[300]", "ship[300]", "FAILED", (Bar("failed", 5, 6),)))
    shown = grouped(rows, ["ship"] * 301)
    assert [(each.key, each.size) for each in shown] == [("ship", 300), ("ship[300]", 1)]
    assert shown[0].spans == (10, 11, 12)
    assert grouped(rows[:200], ["ship"] * 200) == rows[:200]


def test_the_picture_is_sound_and_shows_no_markup_of_a_name():
    name = 'a<script>&"\x00'
    drawn = draw_waterfall([row(name, 0, 5)], axis_of([row(name, 0, 5)], 5), 5, title=name)
    ET.fromstring(drawn)
    assert "<script" not in drawn
    ET.fromstring(draw_waterfall([row(name, 0, 5)], axis_of([], 5), 5, title=name, is_embedded=True))


def test_what_is_open_ends_now():
    running = row("a", 0, 10, is_open=True)
    axis = axis_of([running], 100)
    assert axis.place(100) == 100
    assert 'class="edge" x1="100.0%"' in draw_waterfall([running], axis, 100, title="t")
