"""The process of a contender: ``python -m benchmarks.rivals.player MODULE CLASS PLACE``.

It reads one request per line (``{"work": "alone", "size": 20}``) and answers each with its figures. It ends with its input, so
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
    """Where a contender keeps its data: a database, file or prefix of its own."""

    store: str
    folder: str
    url: str = ""
    """The URL for the product's own driver: a database of the PostgreSQL server, or a Redis server."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options that distinguish variants of a product."""

    @property
    def file(self) -> Path:
        """Return a file for a store that is one."""
        return Path(self.folder, "data.db")

    def line(self) -> str:
        """Return the place as JSON."""
        return json.dumps(asdict(self))


class Work(Protocol):
    """One turn of a piece of work."""

    def __call__(self, size: int) -> list[float]:
        """Do this much work. Return its figures: rates per second, or seconds."""
        ...


class Player(Protocol):
    """A product, set up and ready. ``works`` holds the work that it supports."""

    works: Mapping[str, Work]

    def close(self) -> None:
        """Release all resources."""
        ...


def main() -> None:
    """Answer requests until the input ends."""
    module, name, place = sys.argv[1:]
    # Products may print to standard output, so answers have a pipe of their own.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        player: Player = getattr(importlib.import_module(module), name)(Place(**json.loads(place)))
        gc.freeze()  # exclude imported modules from collection: scanning them would penalize the largest libraries
        print(json.dumps({"works": list(player.works)}), file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            gc.collect()
            print(json.dumps({"figures": player.works[request["work"]](request["size"])}), file=answers, flush=True)
        player.close()


if __name__ == "__main__":
    main()
