"""Where everything of a picture goes: sequences downwards, branches side by side, loops and scopes in frames.

Each node becomes a figure whose size is known before it is placed, so figures never overlap.
"""

from __future__ import annotations

from stepwell.flow.caption import MOST_SHOWN, branches_of, subtitle_of, title_of
from stepwell.flow.figure import Box, Dot, Figure, Frame, Label, Line, text_width
from stepwell.flow.layers import layered
from stepwell.flow.node import (
    Action,
    Approval,
    CancelScopeNode,
    Choice,
    Deferred,
    Each,
    Graph,
    Loop,
    Parallel,
    Sequence,
    Signal,
    Wait,
)
from stepwell.flow.outline import Place

__all__ = ["TITLE", "WORDS", "lay_out"]

TITLE, WORDS = 13.0, 11.0
"""Sizes of letters: titles, and everything else."""
_GAP_DOWN, _GAP_ACROSS, _PADDING, _HEADER, _BUS = 28.0, 26.0, 16.0, 40.0, 14.0


def lay_out(root: Place) -> Figure:
    """The figure of a whole definition, with a mark at its start and its end."""
    body = _figure(root)
    picture = Figure(body.width, body.height + 2 * _GAP_DOWN + 24)
    middle, bottom = picture.middle, 12 + _GAP_DOWN + body.height
    picture.shapes += [
        Dot(middle, 6, 6),
        Line(((middle, 12), (middle, 12 + _GAP_DOWN))),
        Line(((middle, bottom), (middle, bottom + _GAP_DOWN))),
        Dot(middle, bottom + _GAP_DOWN + 6, 6),
    ]
    picture.add(body, 0, 12 + _GAP_DOWN)
    return picture


def _figure(place: Place) -> Figure:
    match place.node:
        case Sequence():
            return _sequence(place)
        case Parallel() | Choice() | Deferred():
            return _fork(place)
        case Loop() | Each() | CancelScopeNode():
            return _framed(place, _figure(place.children["do"]))
        case Graph():
            return _graph(place, place.node)
        case _:
            return _leaf(place)


def _kind(place: Place) -> str:
    if isinstance(place.node, Wait | Signal | Approval):
        return "wait"
    return "action" if isinstance(place.node, Action) else "control"


def _leaf(place: Place) -> Figure:
    return _box(title_of(place), subtitle_of(place), _kind(place), place.node.description, place.name)


def _box(title: str, subtitle: str, kind: str, hint: str = "", name: str = "") -> Figure:
    width = max(110.0, text_width(title, TITLE) + 32, text_width(subtitle, WORDS) + 32)
    figure = Figure(width, 48 if subtitle else 36)
    figure.shapes.append(Box(0, 0, width, figure.height, title, subtitle, kind, hint, name))
    return figure


def _more(count: int) -> Figure:
    return _box(f"{count:,} more", "", "control")


def _sequence(place: Place) -> Figure:
    figures: list[Figure] = []
    for child in [*place.children.values()][:MOST_SHOWN]:
        figures.append(_figure(child))
    if len(place.children) > MOST_SHOWN:
        figures.append(_more(len(place.children) - MOST_SHOWN))
    if not figures:
        return _leaf(place)
    whole = Figure(max(figure.width for figure in figures))
    for number, figure in enumerate(figures):
        if number:
            top = whole.height
            whole.height += _GAP_DOWN
            whole.shapes.append(Line(((whole.middle, top), (whole.middle, whole.height))))
        whole.add(figure, whole.middle - figure.middle, whole.height)
        whole.height += figure.height
    return whole


def _fork(place: Place) -> Figure:
    columns: list[tuple[str, Figure]] = []
    branches = branches_of(place)
    for words, child in branches[:MOST_SHOWN]:
        columns.append((words, _figure(child)))
    if len(branches) > MOST_SHOWN:
        columns.append(("", _more(len(branches) - MOST_SHOWN)))
    head = _leaf(place)
    return _columns(head, columns) if columns else head


def _columns(head: Figure, columns: list[tuple[str, Figure]]) -> Figure:
    """A head, branches side by side under it, and the point where they meet again."""
    widths = [max(figure.width, text_width(words, WORDS) + 12) for words, figure in columns]
    span = sum(widths) + _GAP_ACROSS * (len(widths) - 1)
    whole = Figure(max(head.width, span))
    has_words = any(words for words, _ in columns)
    top = head.height + _BUS + (44 if has_words else 18)
    meet = top + max(figure.height for _, figure in columns) + _BUS
    whole.add(head, whole.middle - head.middle, 0)
    left = whole.middle - span / 2
    for width, (words, figure) in zip(widths, columns, strict=True):
        x = left + width / 2
        _lead(whole, head.height, x, top, words)
        whole.shapes.append(Line(((x, top + figure.height), (x, meet), (whole.middle, meet)), has_tip=False))
        whole.add(figure, x - figure.middle, top)
        left += width + _GAP_ACROSS
    whole.shapes.append(Dot(whole.middle, meet, 4))
    whole.height = meet + 4
    return whole


def _lead(whole: Figure, start: float, x: float, top: float, words: str) -> None:
    """The line from a head down to a branch, with a gap for the words at it."""
    bus = start + _BUS
    way = ((whole.middle, start), (whole.middle, bus), (x, bus))
    if not words:
        whole.shapes.append(Line((*way, (x, top))))
        return
    whole.shapes += [
        Line((*way, (x, bus + 6)), has_tip=False),
        Label(x, bus + 18, words),
        Line(((x, bus + 24), (x, top))),
    ]


def _framed(place: Place, body: Figure) -> Figure:
    title, subtitle = title_of(place), subtitle_of(place)
    words = max(text_width(title, TITLE), text_width(subtitle, WORDS)) + 2 * _PADDING
    frame = Figure(max(body.width + 2 * _PADDING, words), _HEADER + body.height + _PADDING)
    frame.shapes.append(Frame(0, 0, frame.width, frame.height, title, subtitle))
    frame.add(body, frame.middle - body.middle, _HEADER)
    return frame


def _graph(place: Place, graph: Graph) -> Figure:
    figures: dict[str, Figure] = {}
    for slot, child in place.children.items():
        figures[slot] = _figure(child)
    return _framed(place, layered(figures, graph)) if figures else _leaf(place)
