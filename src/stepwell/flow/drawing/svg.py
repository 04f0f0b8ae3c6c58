"""Render shapes as one self-contained SVG file for light and dark backgrounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from urllib.parse import quote

from stepwell.flow.definition.node import Definition
from stepwell.flow.definition.outline import Outline
from stepwell.flow.drawing.layout import Box, Dot, Frame, Label, Line, Shape, lay_out
from stepwell.flow.drawing.run_diagram import Mark

__all__ = ["draw_svg"]

_MARGIN = 16
_SIGNS: dict[Mark, str] = {"done": "✓", "running": "▶", "waiting": "…", "failed": "✗", "skipped": "\u2013"}
# XML cannot contain these characters, not even escaped.
_ODD = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_STYLE = """
.box{stroke-width:1.4}
.action{fill:#eef4fa;stroke:#4a7ba6}
.wait{fill:#fdf4e3;stroke:#b7791f}
.control{fill:#f3f1f8;stroke:#7a6ba8}
.done{fill:#e6f4ea;stroke:#2e7d4f}
.running{fill:#e3efff;stroke:#1f5fbf;stroke-width:2.4}
.waiting{fill:#fff6d6;stroke:#a67c00;stroke-width:2.4}
.failed{fill:#fde8e6;stroke:#b3362b;stroke-width:2.4}
.skipped{fill:#f4f5f6;stroke:#9aa5b1;stroke-dasharray:3 3}
.badge{fill:#14293c;font-size:11px}
.frame{fill:none;stroke:#8a97a5;stroke-width:1.2;stroke-dasharray:5 4}
.line{fill:none;stroke:#62788d;stroke-width:1.4}
.tip,.dot{fill:#62788d}
.title{fill:#14293c;font-size:13px;font-weight:600}
.words{fill:#40566b;font-size:11px}
.label{fill:#40566b;font-size:11px;text-anchor:middle}
@media (prefers-color-scheme: dark){
.action{fill:#1b2a38;stroke:#7fb0db}
.wait{fill:#33270f;stroke:#dcae5c}
.control{fill:#272238;stroke:#a99bd8}
.done{fill:#12301d;stroke:#63b983}
.running{fill:#10294d;stroke:#7db0ff}
.waiting{fill:#3a2f08;stroke:#e3bf4a}
.failed{fill:#41140f;stroke:#f08a80}
.skipped{fill:#20262c;stroke:#6b7785}
.badge{fill:#eaf2f9}
.frame{stroke:#77889a}
.line{stroke:#9db2c6}
.tip,.dot{fill:#9db2c6}
.title{fill:#eaf2f9}
.words{fill:#b9cad9}
.label{fill:#b9cad9}
}"""


def draw_svg(definition: Definition, marks: Mapping[str, Mark] | None = None, *, links: str | None = None) -> str:
    """Return a picture of the definition as an SVG file.

    ``marks`` gives the state of nodes in a run by name: ``done``, ``running``, ``waiting``, ``failed`` or ``skipped``. With
    ``links``, a node leads to this address with its name added.

    - ``definition``: the definition to draw.
    """
    picture = lay_out(Outline(definition).root)
    width, height = picture.width + 2 * _MARGIN, picture.height + 2 * _MARGIN
    shapes = sorted(picture.placed(_MARGIN, _MARGIN), key=lambda shape: _ORDER[type(shape)])
    title = _text(f"Workflow {definition.name}, version {definition.version}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
            f' role="{"img" if links is None else "group"}" font-family="system-ui, sans-serif">',  # an image has no links inside
            f"<title>{title}</title>",
            f"<desc>{_text(definition.description or 'Nodes from top to bottom, in the order in which they run.')}</desc>",
            f"<style>{_STYLE}\n</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
            *(_drawn(shape, marks or {}, links) for shape in shapes),
            "</svg>",
            "",
        ]
    )


_ORDER: dict[type[Shape], int] = {Frame: 0, Line: 1, Dot: 2, Box: 3, Label: 4}
"""Draw order: labels are drawn over lines."""


def _text(text: str) -> str:
    return escape(_ODD.sub("\ufffd", text))


def _drawn(shape: Shape, marks: Mapping[str, Mark], links: str | None) -> str:
    match shape:
        case Box():
            box = _box(shape, marks.get(shape.name))
            return box if links is None else f'<a href="{_text(links + quote(shape.name, safe=""))}">{box}</a>'
        case Frame(x, y, width, height, title, subtitle):
            return (
                f'<rect class="frame" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
                f'<text class="title" x="{x + 12:g}" y="{y + 17:g}">{_text(title)}</text>'
                f'<text class="words" x="{x + 12:g}" y="{y + 31:g}">{_text(subtitle)}</text>'
            )
        case Label(x, y, text):
            return f'<text class="label" x="{x:g}" y="{y:g}">{_text(text)}</text>'
        case Dot(x, y, radius):
            return f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>'
        case Line(points, has_tip):
            path = " ".join(f"{x:g} {y:g}" for x, y in points)
            return f'<path class="line" d="M{path}"{" marker-end=" + chr(34) + "url(#tip)" + chr(34) if has_tip else ""}/>'


def _box(box: Box, mark: Mark | None) -> str:
    middle = box.x + box.width / 2
    first = box.y + (20 if box.subtitle else box.height / 2 + 5)
    words = f'<text class="words" x="{middle:g}" y="{box.y + 37:g}" text-anchor="middle">{_text(box.subtitle)}</text>'
    hint = f"<title>{_text(box.hint)}</title>" if box.hint else ""
    kind, badge = box.kind, ""
    if mark is not None:  # a sign in addition to the colour, for colour-blind readers
        kind = f"{box.kind} {mark}"
        badge = f'<text class="badge" x="{box.x + box.width - 7:g}" y="{box.y + 14:g}" text-anchor="end">{_SIGNS[mark]}</text>'
    return (
        f'<g>{hint}<rect class="box {kind}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="7"/>'
        f'<text class="title" x="{middle:g}" y="{first:g}" text-anchor="middle">{_text(box.title)}</text>'
        f"{words if box.subtitle else ''}{badge}</g>"
    )
