"""Pictures: everything is in them, nothing overlaps, and odd names do no harm."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from tests.support.call_counting import calls_of
from tests.unit.flow.definitions import definitions

from stepwell.flow import (
    Definition,
    Outline,
    call,
    choice,
    define,
    draw_mermaid,
    draw_svg,
    each,
    edge,
    graph,
    loop,
    otherwise,
    parallel,
    scope,
    sequence,
    signal,
    wait,
    when,
)
from stepwell.flow.definition.node import CancelScopeNode, Sequence, StepNode
from stepwell.flow.drawing.layout import WORDS, Box, Frame, Label, lay_out, text_width

CHECKOUT = define(
    "checkout",
    call("reserve", compensate="release"),
    parallel("charge", sequence("pick", "pack"), insure=wait("2h"), optional=["insure"]),
    choice(when("steps.charge.output.total > 100", signal("approve")), otherwise("ship")),
    loop(each("poll", items=[1, 2]), until="index > 2", max_iterations=4),
    graph(
        {name: name for name in ("a", "b", "c", "d", "e")},
        [edge("a", "b", "steps.a.output"), edge("a", "c", otherwise=True), ("b", "d"), ("c", "d"), ("a", "e"), ("d", "e")],
    ),
    scope("close", name="last region"),
)

Area = tuple[float, float, float, float]


def areas(definition: Definition) -> list[tuple[object, Area]]:
    """Yield each shape that must not overlap another, with its rectangle."""
    found: list[tuple[object, Area]] = []
    for shape in lay_out(Outline(definition).root).placed():
        if isinstance(shape, Box):
            found.append((shape, (shape.x, shape.y, shape.x + shape.width, shape.y + shape.height)))
        elif isinstance(shape, Label):
            room = text_width(shape.text, WORDS) / 2
            found.append((shape, (shape.x - room, shape.y - 9, shape.x + room, shape.y + 3)))
        elif isinstance(shape, Frame):
            room = max(text_width(shape.title, 13), text_width(shape.subtitle, WORDS))
            found.append((shape, (shape.x + 12, shape.y + 4, shape.x + 12 + room, shape.y + 33)))
    return found


def overlap(one: Area, other: Area) -> bool:
    slack = 0.01
    return one[0] < other[2] - slack and other[0] < one[2] - slack and one[1] < other[3] - slack and other[1] < one[3] - slack


@given(definitions())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_boxes_and_words_never_overlap_and_stay_in_the_picture(definition: Definition) -> None:
    found = areas(definition)
    picture = lay_out(Outline(definition).root)
    for (one, first), (other, second) in itertools.combinations(found, 2):
        assert not overlap(first, second), (one, other)
    for shape, area in found:
        assert area[0] >= -0.01, shape
        assert area[1] >= -0.01, shape
        assert area[2] <= picture.width + 0.01, shape
        assert area[3] <= picture.height + 0.01, shape


@given(definitions())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_picture_of_anything_is_well_formed(definition: Definition) -> None:
    root = ET.fromstring(draw_svg(definition))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    lines = draw_mermaid(definition).splitlines()
    assert lines[0] == "flowchart TD"
    opened = [line for line in lines if line.strip().startswith("subgraph ")]
    assert len(opened) == sum(1 for line in lines if line.strip() == "end")
    for line in lines:
        assert line.count('"') % 2 == 0, line


def test_a_picture_needs_nothing_else_and_suits_light_and_dark() -> None:
    text = draw_svg(CHECKOUT)
    root = ET.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing is fetched from elsewhere"
    assert "<script" not in text
    assert CHECKOUT._repr_svg_() == text


def test_every_node_is_in_the_picture_and_in_the_chart() -> None:
    drawn, chart = draw_svg(CHECKOUT), draw_mermaid(CHECKOUT)
    for place in Outline(CHECKOUT):
        if not isinstance(place.node, Sequence) and place.slot != "compensate":
            assert f">{place.name}<" in drawn
            assert place.name in chart
    assert "undo: release" in drawn
    assert ">steps.charge.output.total &gt; 100<" in drawn
    assert "insure (optional)" in drawn


def test_arrows_of_the_chart_join_shapes_that_are_there() -> None:
    chart = draw_mermaid(CHECKOUT)
    shapes = set(re.findall(r"^\s+(?:subgraph )?([ng]\d+)[\s\[({]", chart, re.MULTILINE))
    arrows = re.findall(r"^\s+([ng]\d+) -->(?:\|\"[^\"]*\"\|)? ([ng]\d+)$", chart, re.MULTILINE)
    assert len(arrows) == chart.count("-->")
    assert {end for arrow in arrows for end in arrow} <= shapes


@pytest.mark.parametrize(
    "name", ['a"b', "<script>alert(1)</script>", "a&b;#c", "\x01\x02", "x" * 250, "日本語の名前", "end", "a\nb", "]]>", "`x`"]
)
def test_odd_names_do_no_harm(name: str) -> None:
    definition = define(name, call("x", name=name), parallel(branches={name: "y"}), graph({name + "!": "z"}))
    ET.fromstring(draw_svg(definition))
    assert "<script" not in draw_svg(definition)
    for line in draw_mermaid(definition).splitlines()[1:]:
        assert line.strip() == "end" or re.match(r"\s+(subgraph )?[ng]\d+", line), line
        assert line.count('"') % 2 == 0


def test_of_very_many_nodes_some_are_shown_and_the_rest_is_counted() -> None:
    definition = long(5000)
    assert "4,960 more" in draw_svg(definition)
    assert "4960 more" in draw_mermaid(definition)
    wide = define("wide", parallel(*(f"s{number}" for number in range(1000))))
    assert "960 more" in draw_svg(wide)
    assert len(draw_svg(wide)) < 50_000


@pytest.mark.parametrize("draw", [draw_svg, draw_mermaid])
def test_the_work_of_drawing_grows_with_the_number_of_nodes_and_no_faster(draw: Callable[[Definition], str]) -> None:
    few, many = (calls_of(lambda number=number: draw(long(number))) for number in (500, 5000))
    assert many < 11 * few


def long(number: int) -> Definition:
    return Definition(name="long", root=Sequence(nodes=tuple(StepNode(uses=f"s{each}") for each in range(number))))


def test_deep_nesting_is_drawn() -> None:
    node = StepNode(uses="x")
    for _ in range(120):
        node = CancelScopeNode(do=node)
    deep = Definition(name="deep", root=node)
    assert draw_svg(deep).count('class="frame"') == 120
    assert draw_mermaid(deep).count("subgraph") == 120
