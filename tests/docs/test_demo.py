"""The demonstration keeps its word, and says so with its exit code."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.demo import story
from stepwell.demo.bank import accounts_after
from stepwell.demo.screen import Screen, has_colour


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_demo_kills_reopens_verifies_and_goes_on():
    """T01 for people: SIGKILL inside a commit and right after it; old or new state, never between."""
    command = [sys.executable, "-m", "stepwell.demo"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONUTF8": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "got SIGKILL at store.commit_written, in transfer 41" in done.stdout
    assert "the old state: revision 40" in done.stdout
    assert "got SIGKILL at store.committed, in transfer 61" in done.stdout
    assert "the new state: revision 61" in done.stdout
    assert "the mutations of revision 17 do not match their digest" in done.stdout
    assert "All 17 promises held" in done.stdout
    assert "\x1b" not in done.stdout, "no colour away from a terminal"


def test_demo_fails_if_a_promise_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(story, "accounts_after", lambda number: accounts_after(number) | {"bob": 0})
    stream = Terminal()
    assert story.tell(Screen(stream, {}), tmp_path) == 1
    assert "NOT AS PROMISED: nothing in between" in stream.getvalue()
    assert "5 of 17 promises were broken" in stream.getvalue()


def test_colour_is_for_terminals_that_want_it():
    assert has_colour(Terminal(), {})
    assert not has_colour(Terminal(), {"NO_COLOR": "1"})
    assert not has_colour(Terminal(), {"TERM": "dumb"})
    assert not has_colour(io.StringIO(), {})


def test_progress_moves_on_a_terminal_and_is_one_line_elsewhere():
    moving, still = Terminal(), io.StringIO()
    for stream in (moving, still):
        screen = Screen(stream, {"NO_COLOR": "1"})
        for done in (1, 2):
            screen.progress("done", done, 2)
    assert moving.getvalue().count("\r") == 2
    assert still.getvalue().count("\n") == 1
    assert "2/2 done" in still.getvalue()


def test_a_stream_without_unicode_gets_plain_signs():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Screen(stream, {}).promise(True, "fine")
    stream.seek(0)
    assert stream.read() == "   ok fine\n"
