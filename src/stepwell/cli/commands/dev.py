"""``dev``: serve the workflows of a folder, and start again with the new code when a file changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import click

from stepwell.cli.main import command
from stepwell.cli.options import CliSettings, complete_folder, settings
from stepwell.cli.output import printable
from stepwell.cli.report import end_server
from stepwell.cli.workflow_loader import DOCUMENTS
from stepwell.config import choose_url
from stepwell.errors import InvalidInput, StepwellError

__all__ = ["dev"]

_SOURCES = frozenset((".py", ".lua", *DOCUMENTS))
_LOOK_SECONDS = 0.3
_GRACE_SECONDS = 2.0
"""How long steps under way may take when the code changes; they run again in the new process."""
_KILL_SECONDS = 6.0
"""When a server that does not end is killed: a thread inside a step cannot be stopped."""


@command("dev")
@click.argument("folder", default="workflows", metavar="[FOLDER]", shell_complete=complete_folder)
@click.option("--port", "-p", type=click.IntRange(0, 65_535), default=8420, show_default=True, help="The port; 0 for a free one.")
@click.option("--watch", "watched", multiple=True, metavar="FOLDER", help="Reload when a file changes here, too; repeatable.")
def dev(folder: str, port: int, watched: tuple[str, ...]) -> None:
    """Serve the dashboard and run the workflows of FOLDER (default: workflows/), on this machine only.

    It loads every .py, .yaml, .yml and .json file, prints a link that signs in once, and loads them again when one changes. Runs
    continue with the new code: they live in the store, by default in .stepwell/. A changed definition becomes its next version.
    """
    given = settings()
    if choose_url(given.url)[0].startswith("memory:"):
        raise InvalidInput("dev starts a new process when code changes, and memory:// would lose the runs; leave --url out")
    try:
        import uvicorn  # noqa: F401  # pyright: ignore[reportUnusedImport] - only the child uses it
    except ModuleNotFoundError as error:
        raise InvalidInput(f"dev needs {error.name}; install it with: pip install 'stepwell[server]'") from None
    folders = [Path(folder), *map(Path, watched)]
    seen = _stamps(folders)
    session = DevSession(given, Path(folder), port)
    session.start()
    try:
        while True:
            sleep(_LOOK_SECONDS)
            now = _stamps(folders)
            changed = sorted(path for path in seen.keys() | now.keys() if seen.get(path) != now.get(path))
            if changed:
                seen = now
                session.reload(changed)
            session.check()
    except KeyboardInterrupt:
        session.stop()
        end_server(given)
    finally:
        session.stop()


class _Stamp(NamedTuple):
    modified_ns: int
    size: int


def _stamps(folders: list[Path]) -> dict[Path, _Stamp]:
    """Return what tells a changed file, of every source in these folders."""
    found: dict[Path, _Stamp] = {}
    for folder in folders:
        for place, inner, names in os.walk(folder):
            inner[:] = [each for each in inner if not each.startswith(".") and each != "__pycache__"]
            for path in (Path(place, each) for each in names if Path(each).suffix in _SOURCES):
                try:
                    stat = path.stat()
                except OSError:  # removed at this very moment
                    continue
                found[path] = _Stamp(stat.st_mtime_ns, stat.st_size)
    return found


def sources_of(folder: Path) -> list[str]:
    """Return the files of a folder that define workflows; one whose name begins with ``_`` or ``.`` is only imported by others."""
    if not folder.is_dir():
        return []
    kinds = {".py", *DOCUMENTS}
    return sorted(str(each) for each in folder.iterdir() if each.suffix in kinds and each.is_file() and each.name[0] not in "_.")


class DevSession:
    """The server of `stepwell dev`, a child process that is replaced when code changes.

    A process of its own, since a module that was imported cannot be taken out of a running one.
    """

    def __init__(self, given: CliSettings, folder: Path, port: int) -> None:
        self._given, self._folder, self._port = given, folder, port
        self._child: subprocess.Popen[str] | None = None
        self._ready = threading.Event()
        self._started_at = 0.0
        self._was_ready = False

    def start(self) -> None:
        """Start the server; it reports its address when it is ready."""
        files = sources_of(self._folder)
        if not files:
            self._note(f"no workflows in {self._folder} yet; put a .py or .yaml file there")
        options = {
            "url": self._given.url,
            "port": self._port,
            "files": [*self._given.modules, *files],
            "grace_seconds": _GRACE_SECONDS,
        }
        self._ready, self._started_at = threading.Event(), monotonic()
        child = self._child = subprocess.Popen(
            [sys.executable, "-m", "stepwell.cli.dev_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if child.stdin is not None:  # the URL may have a password, which a command line would show to others
            child.stdin.write(json.dumps(options) + "\n")
            child.stdin.flush()  # and left open: its end tells the child that this process is gone
        threading.Thread(target=self._listen, args=(self._child, self._ready, self._say_ready), daemon=True).start()

    def _listen(self, child: subprocess.Popen[str], ready: threading.Event, say_ready: Callable[[str], None]) -> None:
        for line in child.stdout or ():
            if not ready.is_set() and line.startswith('{"stepwell_dev"'):
                ready.set()
                say_ready(json.loads(line)["stepwell_dev"])
            else:  # what user code prints
                sys.stdout.write(line)
                sys.stdout.flush()

    def _say_ready(self, address: str) -> None:
        if self._was_ready:
            self._event({"event": "reloaded"}, "reloaded")
            return
        self._was_ready = True
        self._port = int(address.partition("/enter")[0].rpartition(":")[2])
        self._event({"event": "ready", "url": address}, f"open {address}")

    def _event(self, event: dict[str, str], text: str) -> None:
        if self._given.is_json:
            self._given.screen.json_line(event)
        else:
            self._note(text)

    def _note(self, text: str) -> None:
        self._given.screen.note(printable(text))

    def reload(self, changed: list[Path]) -> None:
        """Replace the server by one with the new code."""
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        self._note(f"{changed[0]}{more} changed")
        self.stop()
        self.start()

    def check(self) -> None:
        """Start the server again if it died. Raise ``StepwellError`` if it never got ready."""
        child = self._child
        if child is None or child.poll() is None:
            return
        if not self._was_ready:
            raise StepwellError("the server did not start; the reason is above")
        if monotonic() - self._started_at > 1:  # not in a tight circle
            self._note(f"the server ended with exit code {child.returncode}; starting it again")
            self.stop()
            self.start()

    def stop(self) -> None:
        """End the server: it hands its runs back to the store."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
