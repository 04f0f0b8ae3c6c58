"""Worker processes of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

__all__ = ["PROGRAM", "WorkerProcess", "check_replayed", "histories_replayed"]

PROGRAM = Path(__file__).with_name("program.py")


class WorkerProcess:
    """A ``stepwell worker --engine temporal`` in a process of its own."""

    def __init__(self, url: str, address: str, folder: Path, grace: str = "1", **env: str) -> None:
        words = ["--engine", "temporal", "--address", address, "--lease-seconds", "2", "--grace-seconds", grace]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stepwell", "--url", url, "worker", str(PROGRAM), *words],
            env={**os.environ, "STEPWELL_TEST_FOLDER": str(folder), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def wait(self, timeout: float = 120) -> int:
        """The code of its end."""
        return self.process.wait(timeout)

    def read_until(self, text: str) -> None:
        """Read what it writes until a line has this text."""
        assert self.process.stdout is not None
        assert any(text.encode() in line for line in self.process.stdout), f"it has ended, and did not say {text!r}"

    def output(self) -> str:
        """Return its output, once it has ended."""
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


def histories_replayed(url: str, address: str, seed: int, namespace: str = "default") -> str:
    """Replay every history of a namespace in a process with a hash seed; return the last line of what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "stepwell.testing.temporal_replay", url, "--address", address, "--namespace", namespace],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]  # the SDK's own log may come before


def check_replayed(url: str, address: str, namespace: str, least: int) -> None:
    """Check that every history of a namespace is replayed under two hash seeds; there are so many at least."""
    deadline = time.monotonic() + 60
    while (count := int((found := histories_replayed(url, address, 77, namespace)).split()[0])) < least:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)  # lists of workflows are behind what has happened
    assert {found, histories_replayed(url, address, 3, namespace)} == {f"{count} histories, 0 failed"}
