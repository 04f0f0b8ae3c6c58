"""The size of a run and its folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """A run: full, or quick, which only shows that everything works."""

    name: str
    """The measure; the names of its figures start with it."""
    folder: Path
    is_quick: bool = False

    @property
    def rounds(self) -> int:
        """How often each figure is measured."""
        return 2 if self.is_quick else 9

    def size(self, full: int, quick: int) -> int:
        """Return the full or the quick size."""
        return quick if self.is_quick else full

    def say(self, text: str) -> None:
        """Print progress on standard error."""
        print(f"  {text}", file=sys.stderr, flush=True)
