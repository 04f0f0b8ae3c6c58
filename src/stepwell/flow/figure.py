"""Shapes of a picture, and figures: shapes and other figures put together, with a size known before they are placed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Box", "Dot", "Figure", "Frame", "Label", "Line", "Shape", "text_width"]


class Box(NamedTuple):
    """A node."""

    x: float
    y: float
    width: float
    height: float
    title: str
    subtitle: str
    kind: str
    """``action``, ``wait`` or ``control``: how it is coloured."""
    hint: str = ""
    """What is shown when somebody points at it."""
    name: str = ""
    """The node that it stands for."""


class Frame(NamedTuple):
    """A border around nodes that belong together, with words at the top."""

    x: float
    y: float
    width: float
    height: float
    title: str
    subtitle: str


class Label(NamedTuple):
    """Words beside a line, their middle at x."""

    x: float
    y: float
    text: str


class Dot(NamedTuple):
    """A small mark where lines begin, meet or end."""

    x: float
    y: float
    radius: float


class Line(NamedTuple):
    """A line through points; with a tip, an arrow."""

    points: tuple[tuple[float, float], ...]
    has_tip: bool = True


Shape = Box | Frame | Label | Dot | Line


class Figure:
    """Shapes and inner figures at places relative to its upper left corner; lines come in and go out at the middle."""

    __slots__ = ("height", "inner", "shapes", "width")

    def __init__(self, width: float = 0, height: float = 0) -> None:
        self.width, self.height = width, height
        self.shapes: list[Shape] = []
        self.inner: list[tuple[float, float, Figure]] = []

    @property
    def middle(self) -> float:
        """Where lines come in at the top and go out at the bottom."""
        return self.width / 2

    def add(self, figure: Figure, x: float, y: float) -> None:
        """Put a figure inside."""
        self.inner.append((x, y, figure))

    def placed(self, x: float = 0, y: float = 0) -> Iterator[Shape]:
        """Every shape at its place in the picture: first what lies below."""
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
    """About how wide a text is in a plain typeface, rather too much than too little."""
    return sum(size * (1.02 if unicodedata.east_asian_width(sign) in "WF" else 0.6) for sign in text)
