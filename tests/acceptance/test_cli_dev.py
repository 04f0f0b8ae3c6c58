"""`stepwell dev`: workflows of a folder, served and loaded again when they change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
from tests.support.command_line import Shell, shell
from tests.support.polling import until

from stepwell.cli.commands.dev import sources_of

__all__ = ["shell"]

GATE = """
from stepwell import step, wait_signal, workflow


@step
async def seen() -> str:
    return "VERSION"


@workflow
async def gate() -> str:
    await wait_signal("open")
    return await seen()
"""
PAUSE = """
name: pause
do:
  - wait: 1s
"""


class Dev:
    """A running `stepwell dev`."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process
        self.url = self.event("ready")["url"]
        self.client = httpx.Client(base_url=self.url.partition("/enter")[0], follow_redirects=True)
        self.client.get(self.url)
        self.client.headers["X-CSRF-Token"] = csrf(self.client)

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event of this name."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == name:
                return event
        raise AssertionError(f"stepwell dev ended without the event {name!r}")

    def write(self, name: str, text: str) -> None:
        """Change a file, and wait until it is loaded."""
        (self.folder / "workflows" / name).write_text(text)
        self.event("reloaded")


def csrf(client: httpx.Client) -> str:
    from stepwell.web.authentication import COOKIE, csrf_token

    return csrf_token(client.cookies[COOKIE])


@contextmanager
def developing(folder: Path, **files: str) -> Iterator[Dev]:
    (folder / "workflows").mkdir()
    for name, text in files.items():
        (folder / "workflows" / name.replace("_", ".")).write_text(text)
    environ = {name: value for name, value in os.environ.items() if name not in ("STEPWELL_URL", "REDIS_URL")}
    command = [sys.executable, "-m", "stepwell", "dev", "--port", "0", "--json"]
    process = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)
    dev = None
    try:
        dev = Dev(folder, process)
        yield dev
    finally:
        if dev is not None:
            dev.client.close()
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()


def test_a_run_that_waits_continues_with_the_code_that_was_saved_meanwhile(tmp_path: Path):
    with developing(tmp_path, gate_py=GATE.replace("VERSION", "old"), pause_yaml=PAUSE) as dev:
        assert dev.client.put("/api/v1/runs/g", json={"workflow": "gate"}).status_code == 202
        assert (tmp_path / ".stepwell" / "well.db").exists()
        with dev.client.stream("GET", "/api/v1/events", headers={"Accept": "text/event-stream"}) as stream:
            began = monotonic()
            dev.write("gate.py", GATE.replace("VERSION", "new"))
            assert monotonic() - began < 8  # an open page is no reason to wait, and its stream ends
            with suppress(httpx.RemoteProtocolError):
                stream.read()
        assert dev.client.post("/api/v1/runs/g/signal", json={"name": "open"}).status_code in (200, 202, 204)
        assert dev.client.get("/api/v1/runs/g/result?wait=20").json()["output"] == "new"
        dev.write("pause.yaml", PAUSE.replace("1s", "2s"))
        assert dev.client.get("/api/v1/definitions/pause").json()["version"] == 2
        dev.write("broken.py", "def (")
        assert dev.client.get("/api/v1/runs/g").json()["status"] == "COMPLETED"


def test_the_server_ends_with_the_process_that_started_it_even_if_that_is_killed(tmp_path: Path):
    with developing(tmp_path) as dev:
        dev.process.send_signal(signal.SIGKILL)

        def is_gone() -> bool:
            try:
                dev.client.get("/livez")
            except httpx.TransportError:
                return True
            return False

        until(is_gone)


@pytest.mark.parametrize("command", ["dev", "serve"])
def test_server_that_is_stopped_by_ctrl_c_calls_that_no_error(tmp_path: Path, command: str):
    environ = {name: value for name, value in os.environ.items() if name not in ("STEPWELL_URL", "REDIS_URL")}
    typed = [sys.executable, "-m", "stepwell", command, "--port", "0"]
    with subprocess.Popen(typed, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        while not server.stderr.readline().startswith("open "):
            pass
        server.send_signal(signal.SIGINT)
        assert server.stderr.read() == "the server has ended; unfinished runs are handed back\n"
    assert server.returncode == 130


def test_runs_in_memory_would_not_survive_a_reload(shell: Shell):
    done = shell("dev", "--url", "memory://")
    assert (done.code, "would lose the runs" in done.err) == (5, True)


def test_files_that_others_import_are_no_workflows(tmp_path: Path):
    for name in ("a.py", "b.yaml", "_shared.py", ".hidden.py", "notes.txt"):
        (tmp_path / name).touch()
    assert [Path(each).name for each in sources_of(tmp_path)] == ["a.py", "b.yaml"]
    assert sources_of(tmp_path / "missing") == []
