"""Child processes that the tests start, stop and kill. Each runs a module of this folder and speaks in lines over its pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import apsw

from stepwell.stores.sqlite.connection import parse_url

__all__ = ["Child"]

_ROOT = Path(__file__).parents[2]


class Child:
    """A process running ``tests.faults.<module>``. As a context manager it never outlives its block."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.faults.{module}", *map(str, arguments)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # so that whatever it forks can be ended with it
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send the child a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def hear(self) -> str:
        """Wait for the child's next line; empty if it ended instead."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def signal(self, number: signal.Signals) -> None:
        """Send the child a signal."""
        os.kill(self.pid, number)

    def wait_until_stopped(self) -> None:
        """Wait until SIGSTOP has stopped the child."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the child ended with status {status}"

    def pause(self, url: str) -> None:
        """Stop the child, but not inside of a write to SQLite: there it would keep the file to itself."""
        while True:
            self.signal(signal.SIGSTOP)
            self.wait_until_stopped()
            if not url.startswith("sqlite:") or _is_free(url):
                return
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the child with SIGKILL, and see that it is gone."""
        self._process.kill()
        assert self._process.wait() == -signal.SIGKILL

    def end(self) -> int:
        """Wait for the child's own end; its exit code."""
        return self._process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()


def _is_free(url: str) -> bool:
    """Whether nobody is writing to a SQLite file."""
    database = apsw.Connection(parse_url(url).path)
    try:
        database.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return False
    finally:
        database.close()
    return True
