"""The waterfall: where things are on the axis, which idle times are folded, and how many rows become few."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from stepwell.flow.drawing.waterfall import OVERVIEW_PARTS, Bar, WaterfallRow, axis_of, draw_overview, draw_waterfall, grouped

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


def test_a_part_of_the_time_has_the_whole_width_and_counts_from_the_beginning():
    rows = [row("a", 0, 1_000), row("b", 4_000, 5_000)]
    axis = axis_of(rows[1:], 5_000, whole=axis_of(rows, 5_000), part=(4_000, 5_000))
    assert (axis.place(4_000), axis.place(4_500), axis.place(0)) == (0, 50, 0)
    assert "4 s" in [words for _, words in axis.ticks()]


def test_the_overview_leads_to_each_part_and_says_what_ran_in_it():
    rows = [row("a", 0, 500), row("b", 0, 12_000)]
    axis = axis_of(rows, 12_000)
    links = [f"/r?from={number}&to=2" for number in range(OVERVIEW_PARTS)]
    drawn = draw_overview(rows, axis, 12_000, links, axis.begin, axis.end)
    assert len(ET.fromstring(drawn).findall("a")) == OVERVIEW_PARTS
    assert "0 ms to 500 ms: 2 steps" in drawn
    assert "11.5 s to 12 s: 1 steps" in drawn


@given(st.floats(0, 100))
def test_a_place_leads_back_to_its_moment(place: float):
    axis = axis_of([row("a", 0, MINUTE), row("b", 60 * MINUTE, 61 * MINUTE)], 61 * MINUTE)
    assert abs(axis.place(axis.moment(place)) - place) < 0.01
