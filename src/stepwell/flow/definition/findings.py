"""What the checker finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stepwell.flow.definition.outline import Path

__all__ = ["Finding", "Findings", "shown_path"]


class Finding(NamedTuple):
    """One fault of a definition and its place in the document."""

    path: Path
    message: str
    offset: int = 0
    """In a text with a fault: how far in."""
    unknown: str = ""
    """The name of a node that it says is unknown; part of a document may have it and be unreadable."""
    is_about_key: bool = False
    """Whether the key itself is at fault, not what stands under it."""


Findings = Iterator[Finding]


def shown_path(path: Path) -> str:
    """A path as people write it: ``do.sequence[1].choice[0].when``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
