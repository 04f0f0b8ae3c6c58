"""The command line: how errors are told, and the exit codes that the reference lists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.command_line import Shell, program, shell

from stepwell import errors
from stepwell.cli.exit_codes import ExitCode, code_of
from stepwell.cli.main import COMMANDS
from stepwell.cli.output import json_text, printable, shortened
from stepwell.errors import StepwellError

__all__ = ["shell"]

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def test_every_error_has_the_exit_code_that_the_reference_says():
    rows = re.findall(r"^\| (\d+) \| [^|]*\|([^|]*)\|$", PAGE, re.MULTILINE)
    written = {int(code): re.findall(r"`(\w+)`", names) for code, names in rows}
    assert written.keys() == {int(each) for each in ExitCode}
    named = {name: code for code, names in written.items() for name in names}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StepwellError)]
    for kind in kinds:
        nearest = next(named[each.__name__] for each in kind.__mro__ if each.__name__ in named)
        assert code_of(kind.__new__(kind)) == nearest, kind


def test_every_command_is_in_the_reference():
    assert set(COMMANDS) == set(re.findall(r"^### `stepwell (\w+)", PAGE, re.MULTILINE))


def test_unknown_command_and_option_are_told_on_one_line(shell: Shell):
    for arguments in (("nonsense",), ("list", "--nonsense"), ("state", "nonsense"), ("show",)):
        done = shell(*arguments)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "--help" in done.err


@pytest.mark.parametrize("arguments", [(), ("queue",), ("state",), ("schedule",), ("workspace",), ("workflow",)])
def test_group_without_a_command_prints_readable_help(shell: Shell, arguments: tuple[str, ...]):
    done = shell(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(" ".join(["Usage: stepwell", *arguments, "[OPTIONS]"]))
    assert "\\x0a" not in done.err
    assert [line for line in done.err.splitlines() if line.endswith(":")] == ["Options:", "Global options:", "Commands:"]


@pytest.mark.parametrize(("typed", "meant"), [(("shw",), "show"), (("queue", "pasue"), "pause"), (("state", "lst"), "list")])
def test_unknown_command_suggests_a_similar_one(shell: Shell, typed: tuple[str, ...], meant: str):
    group = " ".join(["stepwell", *typed[:-1]])
    assert shell(*typed).err == f"error: No such command {typed[-1]!r}; did you mean {meant!r}? See {group} --help\n"


def test_unknown_option_suggests_a_similar_one(shell: Shell):
    assert shell("list", "--limt", "3").err == "error: No such option '--limt'; did you mean '--limit'? See stepwell list --help\n"


def test_run_of_a_workflow_without_its_input_names_the_option(shell: Shell):
    done = shell("run", "shop.py:checkout")
    assert (done.code, done.err.count("\n")) == (5, 1)
    assert "; give an input with --input" in done.err


def test_choices_of_a_missing_argument_are_on_one_line(shell: Shell):
    assert "Choose from: bash, fish, zsh; see stepwell completion --help" in shell("completion").err


def test_errors_are_json_if_that_is_asked_for(shell: Shell):
    shell("migrate")
    error = json.loads(shell("show", "nothing", "--json").err)["error"]
    assert (error["kind"], error["code"], error["exit_code"]) == ("NotFound", "SW-200", 3)
    assert json.loads(shell("--json", "show").err)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, ("show", "a", "--at", "x")),
        (2, ("list", "--nope")),
        (2, ("nope",)),
        (2, ("state", "nope")),
        (5, ("run", "shop.py:checkout", "--input", "{bad")),
        (3, ("run", "shop.py:checkout", "--input", "@nofile")),
    ],
)
def test_json_may_be_asked_for_behind_the_argument_that_is_refused(shell: Shell, code: int, arguments: tuple[str, ...]):
    done = shell(*arguments, "--json")
    assert (done.code, done.out, json.loads(done.err)["error"]["exit_code"]) == (code, "", code)
    for plain in (shell(*arguments), shell(*arguments, "--", "--json")):
        assert plain.err.startswith("error: ")


def test_json_may_be_asked_for_behind_the_argument_that_a_program_refuses(shell: Shell):
    with program(shell, "list", "--nope", "--json") as child:
        _, err = child.communicate()
    assert json.loads(err)["error"]["exit_code"] == child.returncode == 2


def test_surprise_is_one_line_and_with_debug_a_traceback(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    def fall(*_arguments: object) -> None:
        raise RuntimeError("the sky")

    monkeypatch.setattr("stepwell.cli.options.CliSettings.check_place", fall)
    done = shell("list")
    assert (done.code, done.err.count("\n")) == (70, 1)
    assert "RuntimeError: the sky" in done.err
    assert "--debug" in done.err
    with pytest.raises(RuntimeError, match="the sky"):
        _raised(shell, "list", "--debug")


def _raised(shell: Shell, *arguments: str) -> None:
    from stepwell.cli.main import cli

    cli.main(list(arguments), prog_name="stepwell")


def test_text_of_a_store_is_printed_without_its_control_characters():
    assert printable("a\x1b[31m\n\x9b\u202eb") == "a\\x1b[31m\\x0a\\x9b\\u202eb"
    assert printable("ünïcödé 漢字 🙂") == "ünïcödé 漢字 🙂"


def test_json_is_safe_to_print_and_still_the_same_value():
    value = {"a\x7f\x9b": ["\u202e\n\x1b", "ünï 🙂", 2**63 - 1, -0.0, None, "\U000e0041"]}
    for indent in (None, 2):
        text = json_text(value, indent=indent)
        assert json.loads(text) == value
        assert set("\x7f\x9b\u202e\x1b\U000e0041") & set(text) == set()
        assert "ünï 🙂" in text


def test_long_text_is_cut_with_dots():
    assert (shortened("abc", 3), shortened("abcd", 3)) == ("abc", "ab…")
