"""What a contender does, and the process that does it: ``python -m benchmarks.rivals.player MODULE CLASS PLACE``.

It reads one request a line (``{"work": "alone", "size": 20}``) and answers each with its figures. The end of its input ends it, so
it does not outlive the run that started it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = ["Place", "Player", "Work"]


@dataclass(frozen=True)
class Place:
    """Where a contender keeps its data: nobody else's database, file or prefix."""

    store: str
    folder: str
    url: str = ""
    """How the product's own driver is told: a database of the PostgreSQL server, or a Redis server."""
    options: Mapping[str, object] = field(default_factory=dict)
    """What tells variants of one product apart."""

    @property
    def file(self) -> Path:
        """A file for a store that is one."""
        return Path(self.folder, "data.db")

    def line(self) -> str:
        """The place as JSON."""
        return json.dumps(asdict(self))


class Work(Protocol):
    """One turn at a piece of work."""

    def __call__(self, size: int) -> list[float]:
        """Do so much of it; its figures, which are rates in a second, or seconds."""
        ...


class Player(Protocol):
    """A product, set up and ready. ``works`` has what it can do; what it cannot is left out."""

    works: Mapping[str, Work]

    def close(self) -> None:
        """Give everything back."""
        ...


def main() -> None:
    """Play until the input ends."""
    module, name, place = sys.argv[1:]
    # Products print what they like; the answers have a channel of their own.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        player: Player = getattr(importlib.import_module(module), name)(Place(**json.loads(place)))
        gc.freeze()  # what is imported stays: looking through it would fall on whoever has the largest libraries
        print(json.dumps({"works": list(player.works)}), file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            gc.collect()
            print(json.dumps({"figures": player.works[request["work"]](request["size"])}), file=answers, flush=True)
        player.close()


if __name__ == "__main__":
    main()
