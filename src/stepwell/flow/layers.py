"""A graph in layers: each node below all that lead to it, long arrows through gaps that are kept free for them."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from stepwell.flow.caption import shortened
from stepwell.flow.figure import Figure, Label, Line, text_width
from stepwell.flow.graph_rules import successors_of
from stepwell.flow.node import Edge, Graph

__all__ = ["layered"]

_GAP_ACROSS, _GAP_DOWN, _LANE, _LABEL = 30.0, 32.0, 14.0, 16.0
_SWEEPS = 4
"""Rounds of putting each node under the middle of those that lead to it; more change little."""
_WORDS = 11.0


class _Cell(NamedTuple):
    """What stands in a layer: a node, or the lane of an arrow that passes, with its words in one of them."""

    name: str
    """Of the node; of a lane, the number of its arrow."""
    layer: int
    """-1 for a node."""
    words: str = ""


class _Spot(NamedTuple):
    """Where a cell is."""

    middle: float
    top: float
    bottom: float


def layered(figures: dict[str, Figure], graph: Graph) -> Figure:
    """The figures of a graph's nodes in layers, with the arrows between them.

    Nodes stand in even layers. Between two of them there is a layer for the words of arrows, if any has some.
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
    """For each node the length of the longest way to it. In a circle, which the checker refuses, it just ends."""
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
    """What an arrow goes through: its source, a lane in each layer between, its target."""
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
    """Each layer in the order of the middles of what leads to it, so that few arrows cross."""
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
    """Put every layer under the one before, each in the middle."""
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
    """An arrow through its lanes, interrupted by its words."""
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
