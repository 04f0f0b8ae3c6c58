"""``python -m stepwell.demo``: kill a process in the middle of a commit, and see what is left."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from stepwell.demo.screen import Screen
from stepwell.demo.story import tell

if __name__ == "__main__":
    screen = Screen(sys.stdout, os.environ)
    with tempfile.TemporaryDirectory(prefix="stepwell-demo-") as folder:
        sys.exit(tell(screen, Path(folder)))
