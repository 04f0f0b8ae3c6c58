"""Worker processes of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

__all__ = ["PROGRAM", "WorkerProcess"]

PROGRAM = Path(__file__).with_name("program.py")


class WorkerProcess:
    """A ``stepwell worker --engine temporal`` in a process of its own."""

    def __init__(self, url: str, address: str, folder: Path, grace: str = "1", **env: str) -> None:
        words = ["--engine", "temporal", "--address", address, "--lease-seconds", "1", "--grace-seconds", grace]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stepwell", "--url", url, "worker", str(PROGRAM), *words],
            env={**os.environ, "STEPWELL_TEST_FOLDER": str(folder), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def wait(self, timeout: float = 60) -> int:
        """The code of its end."""
        return self.process.wait(timeout)

    def output(self) -> str:
        """What it wrote, once it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.read().decode(errors="replace")

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
