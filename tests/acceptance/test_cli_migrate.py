"""The command line: migrations of stored values, and upgrades of live runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from tests.support.command_line import Shell, shell

from stepwell.cli.commands.migrate import _Bar
from stepwell.cli.output import Terminal
from stepwell.model.state_versions import registered_alone

__all__ = ["shell"]

MODULE = """
import stepwell

def in_euros(value):
    return {"euros": value["cents"] / 100}

@stepwell.migration(scope="custom/prices", from_version=1, to_version=2, back=in_euros)
def in_cents(value):
    return {"cents": round(value["euros"] * 100)}
"""


@pytest.fixture
def module(tmp_path: Path, shell: Shell) -> str:
    path = tmp_path / "priced.py"
    path.write_text(MODULE)
    shell("state", "set", "custom/prices", "lamp", '{"euros": 1.5}')
    shell("state", "set", "custom/prices", "bad", '{"dollars": 1}')
    return str(path)


def test_values_are_migrated_after_a_look_and_a_backup(shell: Shell, module: str, tmp_path: Path):
    seen = shell("migrate", "state", "-m", module, "--dry-run")
    assert (seen.code, seen.out.split("\t")) == (1, ["custom/prices", "2", "2 at 1", "1", "1", "0\n"])
    assert "'bad': the migration of 'custom/prices' from version 1 to 2 failed: KeyError: 'euros'" in seen.err
    done = shell("migrate", "state", "-m", module, "--backup", str(tmp_path / "before"), "--json")
    assert done.code == 1
    assert [(each["migrated"], each["failed"]) for each in done.json["lines"]] == [(1, 1)]
    assert shell("backup", "verify", str(tmp_path / "before")).code == 0
    shell("state", "delete", "custom/prices", "bad")
    again = shell("migrate", "state", "-m", module, "--no-backup")
    assert (again.code, again.out.split("\t")[2:4]) == (0, ["1 at 2", "0"])
    assert shell("state", "get", "custom/prices", "lamp", "-m", module).json == {"cents": 150}


def test_code_before_refuses_until_the_values_are_brought_back(shell: Shell, module: str):
    shell("state", "delete", "custom/prices", "bad")
    assert shell("migrate", "state", "-m", module, "--no-backup").code == 0
    with registered_alone():
        refused = shell("state", "get", "custom/prices", "lamp")
    assert (refused.code, "SW-410" in refused.err) == (1, True)
    arguments = ("--scope", "custom/prices", "--to-version", "1", "--no-backup")
    assert shell("migrate", "state", "-m", module, *arguments).code == 0
    with registered_alone():
        assert shell("state", "get", "custom/prices", "lamp").json == {"euros": 1.5}


def test_exported_values_are_imported_into_the_version_of_the_code(shell: Shell, module: str, tmp_path: Path):
    shell("state", "delete", "custom/prices", "bad")
    file = str(tmp_path / "state.jsonl")
    assert shell("state", "export", file).code == 0
    shell.url = f"sqlite:///{tmp_path}/target.db"
    assert shell("state", "import", file, "-m", module).code == 0
    assert shell("state", "get", "custom/prices", "lamp", "-m", module).json == {"cents": 150}


def test_bad_arguments_are_refused(shell: Shell, module: str):
    assert shell("migrate", "state", "-m", module).code == 2
    assert shell("migrate", "state", "-m", module, "--backup", "x", "--no-backup").code == 2
    assert shell("migrate", "state", "--dry-run").code == 5
    assert shell("migrate").code == 0


DEFINITION = """
name: orders
version: {version}
do:
  - {{signal: one}}
  {middle}
  - {{signal: two}}
"""


def test_runs_are_moved_to_another_version_and_those_that_stay_are_listed(shell: Shell):
    shell.write("one.yaml", DEFINITION.format(version=1, middle=""))
    shell.write("two.yaml", DEFINITION.format(version=2, middle='- {log: "between", name: between}'))
    assert shell("workflow", "put", "one.yaml").code == 0
    assert shell("start", "orders", "--id", "a").code == 0
    assert shell("workflow", "upgrade", "orders", "--to", "2").code == 3
    assert shell("workflow", "put", "two.yaml").code == 0
    looked = shell("workflow", "upgrade", "orders", "--to", "2", "--dry-run", "--json")
    assert (looked.code, looked.json["moved"], looked.json["is_dry_run"]) == (0, ["a"], True)
    moved = shell("workflow", "upgrade", "orders", "--to", "2")
    assert (moved.code, "1 run moved to version 2; 0 stay" in moved.err) == (0, True)
    assert shell("workflow", "upgrade", "orders", "--to", "two").code == 2
    assert shell("verify", "a").code == 0


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_on_one_line_of_a_terminal():
    err = Tty()
    bar = _Bar(Terminal(io.StringIO(), err, {}, is_json=False, is_quiet=False))
    for done in (0, 500, 500, 1000):
        bar.show(done, 1000)
    bar.end()
    assert [line.strip() for line in err.getvalue().split("\r")] == [
        "",
        "0 of 1,000",
        "###############                500 of 1,000",
        "############################## 1,000 of 1,000",
    ]
