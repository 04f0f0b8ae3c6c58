"""Lay out a picture: sequences downwards, branches side by side, loops and scopes in frames, graphs in layers.

Each node becomes a figure whose size is known before it is placed, so figures never overlap. In a graph, each node is in a layer
below all its predecessors, and edges across several layers run through lanes that are kept free for them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from stepwell.flow.definition.node import (
    Action,
    Approval,
    CancelScopeNode,
    Choice,
    Deferred,
    Each,
    Edge,
    Graph,
    Loop,
    Parallel,
    Sequence,
    Signal,
    Wait,
)
from stepwell.flow.definition.outline import Place
from stepwell.flow.definition.structure_checks import successors_of
from stepwell.flow.drawing.captions import MOST_SHOWN, branches_of, shortened, subtitle_of, title_of

__all__ = [
    "TITLE",
    "WORDS",
    "Box",
    "Dot",
    "Figure",
    "Frame",
    "Label",
    "Line",
    "Shape",
    "lay_out",
    "layered",
    "text_width",
]


class Box(NamedTuple):
    """A node."""

    x: float
    y: float
    width: float
    height: float
    title: str
    subtitle: str
    kind: str
    """``action``, ``wait`` or ``control``: the CSS class of its colour."""
    hint: str = ""
    """The tooltip."""
    name: str = ""
    """The node's name."""


class Frame(NamedTuple):
    """A border around nodes that belong together, with a title at the top."""

    x: float
    y: float
    width: float
    height: float
    title: str
    subtitle: str


class Label(NamedTuple):
    """A text beside a line, centred on x."""

    x: float
    y: float
    text: str


class Dot(NamedTuple):
    """A small mark where lines begin, meet or end."""

    x: float
    y: float
    radius: float


class Line(NamedTuple):
    """A line through points; an arrow if it has a tip."""

    points: tuple[tuple[float, float], ...]
    has_tip: bool = True


Shape = Box | Frame | Label | Dot | Line


class Figure:
    """Shapes and inner figures at positions relative to its upper left corner. Lines enter at the top and leave at the bottom
    middle.
    """

    __slots__ = ("height", "inner", "shapes", "width")

    def __init__(self, width: float = 0, height: float = 0) -> None:
        self.width, self.height = width, height
        self.shapes: list[Shape] = []
        self.inner: list[tuple[float, float, Figure]] = []

    @property
    def middle(self) -> float:
        """The x position where lines enter and leave."""
        return self.width / 2

    def add(self, figure: Figure, x: float, y: float) -> None:
        """Add an inner figure."""
        self.inner.append((x, y, figure))

    def placed(self, x: float = 0, y: float = 0) -> Iterator[Shape]:
        """Iterate over every shape at its absolute position, in drawing order."""
        pending: list[tuple[float, float, Figure]] = [(x, y, self)]
        while pending:
            left, top, figure = pending.pop()
            for shape in figure.shapes:
                yield _moved(shape, left, top)
            pending.extend((left + dx, top + dy, inner) for dx, dy, inner in figure.inner)


def _moved(shape: Shape, x: float, y: float) -> Shape:
    if isinstance(shape, Line):
        return shape._replace(points=tuple((px + x, py + y) for px, py in shape.points))
    return shape._replace(x=shape.x + x, y=shape.y + y)


def text_width(text: str, size: float) -> float:
    """Estimate the width of a text in a sans-serif typeface, rather too wide than too narrow."""
    return sum(size * (1.02 if unicodedata.east_asian_width(sign) in "WF" else 0.6) for sign in text)


_GAP_ACROSS, _GAP_DOWN, _LANE, _LABEL = 30.0, 32.0, 14.0, 16.0
_SWEEPS = 4
"""Passes of moving each node under the mean of its predecessors; more passes change little."""
_WORDS = 11.0


class _Cell(NamedTuple):
    """An item of a layer: a node, or the lane of an edge that passes, one of which holds the edge's label."""

    name: str
    """The node's name; for a lane, the number of its edge."""
    layer: int
    """-1 for a node."""
    words: str = ""


class _Spot(NamedTuple):
    """The position of a cell."""

    middle: float
    top: float
    bottom: float


def layered(figures: dict[str, Figure], graph: Graph) -> Figure:
    """Return the figure of a graph: its nodes in layers, with the edges between them.

    Nodes are in even layers. An odd layer between two of them holds the labels of edges, if there are any.
    """
    depth = {name: 2 * layer for name, layer in _depths(graph).items()}
    edges = [edge for edge in graph.edges if edge.source in depth and edge.target in depth]
    forward = [edge for edge in edges if depth[edge.source] < depth[edge.target]]
    chains = [_chain(number, edge, depth) for number, edge in enumerate(forward)]
    spoken = {cell.layer for chain in chains for cell in chain if cell.words}
    chains = [[cell for cell in chain if cell.layer % 2 == 0 or cell.layer < 0 or cell.layer in spoken] for chain in chains]
    rows = _ordered(_rows(depth, chains), chains)
    whole, spots = _placed(rows, figures)
    for chain in chains:
        _draw(whole, chain, spots)
    return whole


def _depths(graph: Graph) -> dict[str, int]:
    """Return the length of the longest path to each node. It terminates on cycles, which the checker refuses."""
    arrows = successors_of(graph)
    depth = dict.fromkeys(graph.nodes, 0)
    for _ in graph.nodes:
        is_settled = True
        for name, targets in arrows.items():
            for target in targets:
                if depth[target] <= depth[name] < len(depth) - 1:
                    depth[target], is_settled = depth[name] + 1, False
        if is_settled:
            break
    return depth


def _chain(number: int, edge: Edge, depth: dict[str, int]) -> list[_Cell]:
    """Return the cells an edge passes: its source, a lane in each layer between, its target."""
    words = "otherwise" if edge.is_otherwise else shortened(edge.when or "", 28)
    first = depth[edge.source] + 1
    lanes = [_Cell(str(number), layer, words if layer == first else "") for layer in range(first, depth[edge.target])]
    return [_Cell(edge.source, -1), *lanes, _Cell(edge.target, -1)]


def _rows(depth: dict[str, int], chains: list[list[_Cell]]) -> list[list[_Cell]]:
    rows: list[list[_Cell]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, layer in depth.items():
        rows[layer].append(_Cell(name, -1))
    for chain in chains:
        for lane in chain[1:-1]:
            rows[lane.layer].append(lane)
    return [row for row in rows if row]


def _ordered(rows: list[list[_Cell]], chains: list[list[_Cell]]) -> list[list[_Cell]]:
    """Order each layer by the mean position of its predecessors, so that few edges cross."""
    above: dict[_Cell, list[_Cell]] = {}
    for chain in chains:
        for before, after in pairwise(chain):
            above.setdefault(after, []).append(before)
    for _ in range(_SWEEPS):
        for upper, row in pairwise(rows):
            _sort(row, {cell: index / max(1, len(upper) - 1) for index, cell in enumerate(upper)}, above)
    return rows


def _sort(row: list[_Cell], upper: dict[_Cell, float], above: dict[_Cell, list[_Cell]]) -> None:
    own = {cell: index / max(1, len(row) - 1) for index, cell in enumerate(row)}
    means: dict[_Cell, float] = {}
    for cell in row:
        places = [upper[each] for each in above.get(cell, ()) if each in upper]
        means[cell] = sum(places) / len(places) if places else own[cell]
    row.sort(key=means.__getitem__)


def _placed(rows: list[list[_Cell]], figures: dict[str, Figure]) -> tuple[Figure, dict[_Cell, _Spot]]:
    """Place the layers below each other, each centred."""
    spans = [sum(_width(cell, figures) for cell in row) + _GAP_ACROSS * (len(row) - 1) for row in rows]
    whole = Figure(max(spans))
    spots: dict[_Cell, _Spot] = {}
    top = 0.0
    for row, span in zip(rows, spans, strict=True):
        height = max(_height(cell, figures) for cell in row)
        left = whole.middle - span / 2
        for cell in row:
            width = _width(cell, figures)
            is_node = cell.layer < 0
            spots[cell] = _Spot(left + width / 2, top, top + (figures[cell.name].height if is_node else height))
            if is_node:
                whole.add(figures[cell.name], left, top)
            left += width + _GAP_ACROSS
        top += height + _GAP_DOWN
    whole.height = top - _GAP_DOWN
    return whole, spots


def _width(cell: _Cell, figures: dict[str, Figure]) -> float:
    if cell.layer < 0:
        return figures[cell.name].width
    return max(_LANE, text_width(cell.words, _WORDS))


def _height(cell: _Cell, figures: dict[str, Figure]) -> float:
    return figures[cell.name].height if cell.layer < 0 else _LABEL


def _draw(whole: Figure, chain: list[_Cell], spots: dict[_Cell, _Spot]) -> None:
    """Draw an edge through its lanes, interrupted by its label."""
    points = [(spots[chain[0]].middle, spots[chain[0]].bottom)]
    for lane in chain[1:-1]:
        spot = spots[lane]
        points.append((spot.middle, spot.top))
        if lane.words:
            whole.shapes.append(Line(tuple(points), has_tip=False))
            whole.shapes.append(Label(spot.middle, spot.top + 12, lane.words))
            points = []
        points.append((spot.middle, spot.bottom))
    points.append((spots[chain[-1]].middle, spots[chain[-1]].top))
    whole.shapes.append(Line(tuple(points)))


TITLE, WORDS = 13.0, 11.0
"""Font sizes of titles and of all other text."""
_LAYER_GAP_DOWN, _LAYER_GAP_ACROSS, _PADDING, _HEADER, _BUS = 28.0, 26.0, 16.0, 40.0, 14.0


def lay_out(root: Place) -> Figure:
    """Return the figure of a whole definition, with a mark at its start and at its end."""
    body = _figure(root)
    picture = Figure(body.width, body.height + 2 * _LAYER_GAP_DOWN + 24)
    middle, bottom = picture.middle, 12 + _LAYER_GAP_DOWN + body.height
    picture.shapes += [
        Dot(middle, 6, 6),
        Line(((middle, 12), (middle, 12 + _LAYER_GAP_DOWN))),
        Line(((middle, bottom), (middle, bottom + _LAYER_GAP_DOWN))),
        Dot(middle, bottom + _LAYER_GAP_DOWN + 6, 6),
    ]
    picture.add(body, 0, 12 + _LAYER_GAP_DOWN)
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
            whole.height += _LAYER_GAP_DOWN
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
    """Return a head, branches side by side under it, and the point where they meet."""
    widths = [max(figure.width, text_width(words, WORDS) + 12) for words, figure in columns]
    span = sum(widths) + _LAYER_GAP_ACROSS * (len(widths) - 1)
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
        left += width + _LAYER_GAP_ACROSS
    whole.shapes.append(Dot(whole.middle, meet, 4))
    whole.height = meet + 4
    return whole


def _lead(whole: Figure, start: float, x: float, top: float, words: str) -> None:
    """Return the line from a head down to a branch, with a gap for its label."""
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
