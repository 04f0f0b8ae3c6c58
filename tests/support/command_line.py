"""The command line for tests: in this process for what is plain, as a program of its own for signals and terminals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from stepwell.cli.main import cli

__all__ = ["SHOP", "Done", "Shell", "program", "shell"]

SHOP = """
import asyncio

import stepwell
from stepwell import Retry, step, workflow


@step
async def reserve(item: str) -> str:
    return f"reserved {item}"


@step(retry=Retry(attempts=2, first_seconds=0))
async def charge(cents: int) -> dict:
    if cents < 0:
        raise ValueError(f"{cents} is negative")
    return {"paid": cents}


@workflow
async def checkout(item: str, cents: int) -> dict:
    reserved, paid = await asyncio.gather(reserve(item), charge(cents))
    stepwell.current().variables["reserved"] = reserved
    return {"reserved": reserved, "paid": paid}


@workflow
async def approval(who: str) -> str:
    return f"{who}: {await stepwell.wait_signal('approve')}"
"""
"""A module with two workflows: one that fails for negative amounts, one that waits for a signal."""


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the output as one JSON value."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Return the output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """A folder with a module of workflows and a store, and commands that are run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/well.db?synchronous=NORMAL"

    def write(self, name: str, text: str) -> Path:
        """Put a file into the folder."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def __call__(self, *arguments: str, input: str | None = None) -> Done:
        """Run a command in this process."""
        done = CliRunner().invoke(cli, list(arguments), input=input, prog_name="stepwell", env={"STEPWELL_URL": self.url})
        return Done(done.exit_code, done.stdout, done.stderr)

    def checkout(self, execution_id: str, cents: int = 5) -> Done:
        """Run the workflow ``checkout``."""
        return self("run", "shop.py:checkout", "--id", execution_id, "--input", json.dumps({"item": "lamp", "cents": cents}))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A fresh folder to run commands in; what they import is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("REDIS_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    before = set(sys.modules)
    made = Shell(tmp_path)
    made.write("shop.py", SHOP)
    yield made
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@contextmanager
def program(shell: Shell, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command as a program of its own; it is killed at the end, if it is still there, and after a while in any case."""
    # Its coverage is not measured: an interrupt inside of the measuring would leave that locked, and the program waits for ever.
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    environ = unmeasured | {"STEPWELL_URL": shell.url, "PYTHONUTF8": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": shell.folder, "env": environ} | options
    with subprocess.Popen([sys.executable, "-m", "stepwell", *arguments], **options) as child:
        watchdog = threading.Timer(200, child.kill)
        watchdog.start()
        try:
            yield child
        finally:
            watchdog.cancel()
            child.kill()
