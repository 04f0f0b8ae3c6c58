"""Draw a definition as Mermaid text or as SVG."""

from __future__ import annotations

from stepwell.flow.drawing.mermaid import draw_mermaid
from stepwell.flow.drawing.svg import draw_svg

__all__ = ["draw_mermaid", "draw_svg"]
