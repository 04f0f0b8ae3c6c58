"""A contender's process as seen by the run.

The process is stopped with SIGSTOP while it is not its turn: some products poll or clean up even when idle, and that would slow
down the contender that is measured.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from benchmarks.rivals.player import Place

__all__ = ["ContenderFailed", "Seat"]

_LEAVE_SECONDS = 20.0


class ContenderFailed(Exception):
    """A contender's process ended during its work; its output is on stderr."""


class Seat:
    """A running contender that answers one request after another."""

    def __init__(self, name: str, module: str, kind: str, place: Place) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.rivals.player", module, kind, place.line()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.works: list[str] = self._answer()["works"]
        self._process.send_signal(signal.SIGSTOP)

    def take_turn(self, work: str, size: int) -> list[float]:
        """Let it do this much work. Return its figures."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            raise ContenderFailed(self.name)
        self._process.send_signal(signal.SIGCONT)
        try:
            print(json.dumps({"work": work, "size": size}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise ContenderFailed(self.name) from None
        figures = self._answer()["figures"]
        self._process.send_signal(signal.SIGSTOP)
        return figures

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.leave()
            raise ContenderFailed(self.name)
        return json.loads(line)

    def leave(self) -> None:
        """Stop the contender: first by closing its input, then by killing it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
