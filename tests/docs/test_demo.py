"""The demonstration keeps its word, and says so with its exit code."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.cli.output import has_colour
from stepwell.demo import bank, parcel
from stepwell.demo.bank import accounts_after
from stepwell.demo.screen import DemoScreen


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def demonstration(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a demonstration as people do."""
    command = [sys.executable, "-m", "stepwell.demo", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, env=os.environ | {"PYTHONUTF8": "1"})


def test_demo_kills_a_worker_inside_a_step_and_another_goes_on():
    """T30 for people: three branches and a loop; SIGKILL inside a step; only that step is made again, by another worker."""
    done = demonstration()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert re.search(r"worker A, process \d+, got SIGKILL in parcel 2", done.stdout)
    assert "4 steps are recorded, and nothing of the interrupted one" in done.stdout
    assert "4 parcels are on their way to Basel" in done.stdout
    who = re.findall(r"^   (\S+) +([AB])( killed)? ", done.stdout, re.MULTILINE)
    assert sorted(who[:3]) == [("charge", "A", ""), ("label", "A", ""), ("pack", "A", "")]
    assert who[3:] == [("send[0]", "A", ""), ("send[1]", "A", " killed"), *((f"send[{each}]", "B", "") for each in (1, 2, 3))]
    assert re.search(r"\d+ receipts verified", done.stdout)
    assert "All 8 checks passed" in done.stdout
    assert "\x1b" not in done.stdout, "no colour away from a terminal"


def test_demo_of_a_killed_worker_fails_if_a_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parcel, "_BEFORE", 5)
    stream = Terminal()
    assert parcel.run_demo(DemoScreen(stream, {}), tmp_path) == 1
    assert "FAILED: 4 steps are recorded" in stream.getvalue()
    assert "2 of 8 checks failed" in stream.getvalue()
    assert "\x1b[36m" in stream.getvalue(), "in colour on a terminal"


def test_demo_of_an_unknown_story_says_which_there_are():
    done = demonstration("nonsense")
    assert (done.returncode, done.stdout) == (1, "")
    assert "[parcel|bank]" in done.stderr


def test_bank_is_killed_reopened_verified_and_goes_on():
    """T01 for people: SIGKILL inside a commit and right after it; old or new state, never between."""
    done = demonstration("bank")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "got SIGKILL at store.commit_written, in transfer 41" in done.stdout
    assert "the old state: revision 40" in done.stdout
    assert "got SIGKILL at store.committed, in transfer 61" in done.stdout
    assert "the new state: revision 61" in done.stdout
    assert "the mutations of revision 17 do not match their digest" in done.stdout
    assert "All 17 checks passed" in done.stdout
    assert "\x1b" not in done.stdout, "no colour away from a terminal"


def test_bank_fails_if_a_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bank, "accounts_after", lambda number: accounts_after(number) | {"bob": 0})
    stream = Terminal()
    assert bank.run_demo(DemoScreen(stream, {}), tmp_path) == 1
    assert "FAILED: nothing in between" in stream.getvalue()
    assert "5 of 17 checks failed" in stream.getvalue()


def test_colour_is_for_terminals_that_want_it():
    assert has_colour(Terminal(), {})
    assert not has_colour(Terminal(), {"NO_COLOR": "1"})
    assert not has_colour(Terminal(), {"TERM": "dumb"})
    assert not has_colour(io.StringIO(), {})


def test_progress_moves_on_a_terminal_and_is_one_line_elsewhere():
    moving, still = Terminal(), io.StringIO()
    for stream in (moving, still):
        screen = DemoScreen(stream, {"NO_COLOR": "1"})
        for done in (1, 2):
            screen.progress("done", done, 2)
    assert moving.getvalue().count("\r") == 2
    assert still.getvalue().count("\n") == 1
    assert "2/2 done" in still.getvalue()


def test_a_stream_without_unicode_gets_plain_signs():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    DemoScreen(stream, {}).check(True, "fine")
    stream.seek(0)
    assert stream.read() == "   ok fine\n"
