"""Hook of hatchling: the README of the package has no links that lead into the repository.

A package index shows the README alone, where a link to `docs/install.md` or a picture in `docs/` leads nowhere. There, links become
their text, and pictures are left out; `stepwell docs` prints the pages from the wheel.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["PackageReadme", "without_relative_links"]

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\((?![a-z]+:)[^)]*\)\n*")
_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:)[^)]*\)")


def without_relative_links(text: str) -> str:
    """Return Markdown whose relative links are their text, and without relative pictures; code is unchanged."""
    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(r"\1", _PICTURE.sub("", part)) for part in parts)


class PackageReadme(MetadataHookInterface):
    """Sets the README of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field, which `pyproject.toml` calls dynamic."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_relative_links(text)}
