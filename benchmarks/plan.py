"""How large a run is, and where it keeps its files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """A run: full, or quick, which only shows that everything works."""

    name: str
    """What is being measured; the names of its figures start with it."""
    folder: Path
    is_quick: bool = False

    @property
    def rounds(self) -> int:
        """How often each figure is taken."""
        return 2 if self.is_quick else 9

    def size(self, full: int, quick: int) -> int:
        """How much of something, in this run."""
        return quick if self.is_quick else full

    def say(self, text: str) -> None:
        """Tell people how far the run is."""
        print(f"  {text}", file=sys.stderr, flush=True)
