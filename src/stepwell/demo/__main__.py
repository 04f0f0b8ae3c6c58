"""``python -m stepwell.demo [parcel|bank]``: kill a worker inside a step, or a process in the middle of a commit."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from stepwell.demo import bank, parcel
from stepwell.demo.screen import DemoScreen

__all__ = ["DEMOS", "main"]

DEMOS = {"parcel": parcel.run_demo, "bank": bank.run_demo}


def main(story: str = "parcel", screen: DemoScreen | None = None, address: str = "") -> int:
    """Run a demonstration in a folder of its own. Return 0 if every check passed.

    - ``address``: a Temporal server, which runs the story of the parcels.
    """
    screen = screen or DemoScreen(sys.stdout, os.environ)
    with tempfile.TemporaryDirectory(prefix="stepwell-demo-") as folder:
        if address:
            return parcel.run_demo(screen, Path(folder), address)
        return DEMOS[story](screen, Path(folder))


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["parcel"]
    if len(chosen) > 1 or chosen[0] not in DEMOS:
        sys.exit(f"usage: python -m stepwell.demo [{'|'.join(DEMOS)}]")
    sys.exit(main(chosen[0]))
