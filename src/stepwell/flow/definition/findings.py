"""A finding of the checker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stepwell.flow.definition.outline import Path

__all__ = ["Finding", "Findings", "shown_path"]


class Finding(NamedTuple):
    """One fault of a definition and its position in the document."""

    path: Path
    message: str
    offset: int = 0
    """The position of the fault in its text."""
    unknown: str = ""
    """The unknown node name that is reported; it may belong to an unreadable part of the document."""
    is_about_key: bool = False
    """Whether the fault is in the key and not in its value."""


Findings = Iterator[Finding]


def shown_path(path: Path) -> str:
    """Return a path as text: ``do.sequence[1].choice[0].when``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
