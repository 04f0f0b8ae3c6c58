"""The command lines on the pages are those of the program: their commands and options exist, and whole lines parse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.docs.pages import PAGES, ROOT, blocks_of

from stepwell.cli.main import cli

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(stepwell [a-z-][^`]*)`")
Line = tuple[str, list[str]]


def lines_of_blocks() -> list[Line]:
    """Every `stepwell` line in a shell block, with the page that it is on."""
    found: list[Line] = []
    for page in PAGES:
        for block in blocks_of(page):
            if block.language in {"sh", "text"}:
                lines = block.code.replace("\\\n", " ").splitlines()
                found += [(_name(page), shlex.split(line, comments=True)[1:]) for line in lines if line.startswith("stepwell ")]
    return found


def lines_in_sentences() -> list[Line]:
    """Every `stepwell` command in the text of a page; words in capitals stand for arguments."""
    texts = ((page, _FENCE.sub("", page.read_text(encoding="utf-8"))) for page in PAGES)
    return [(_name(page), _words(found)) for page, text in texts for found in _SPAN.findall(text)]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _words(line: str) -> list[str]:
    # In tables a bar is escaped, and alternatives are written as `list|show`: the first one stands for all.
    words = line.replace("\\|", "|").split()[1:]
    return [word.partition("|")[0] for word in words if word not in {"...", "[", "]"}]


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that a line names, and its options."""
    command: click.Command = cli
    options: list[str] = []
    for word in words:
        if word.startswith("-"):
            options.append(word.strip("[]").partition("=")[0])
        elif isinstance(command, click.Group):
            with click.Context(command) as context:
                found = command.get_command(context, word)
            if found is None and options:  # the value of a global option
                continue
            assert found is not None, f"{command.name} has no command {word!r}"
            command = found
    return command, options


def test_pages_have_command_lines():
    assert len(lines_of_blocks()) > 40
    assert len(lines_in_sentences()) > 100


@pytest.mark.parametrize("line", lines_in_sentences(), ids=lambda line: f"{line[0]}: {' '.join(line[1])[:60]}")
def test_commands_and_options_in_sentences_exist(line: Line):
    command, options = command_of(line[1])
    known = {name for each in (*cli.params, *command.params) for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    assert set(options) <= known


@pytest.mark.parametrize("line", lines_of_blocks(), ids=lambda line: f"{line[0]}: {' '.join(line[1])[:60]}")
def test_lines_of_blocks_parse(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for word in line[1]:
        if re.fullmatch(r"[\w/]+\.(?:py|yaml|lua|json|jsonl|pem)", word) and word != "state.jsonl":
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).write_text("{}")
    command: click.Command = cli
    words, context = line[1], None
    while isinstance(command, click.Group):
        context = command.make_context(command.name, list(words), parent=context)
        rest = [*context._protected_args, *context.args]  # click gives the words after a group no other way
        if not rest:
            return
        _, found, words = command.resolve_command(context, rest)
        assert found is not None
        command = found
    command.make_context(command.name, list(words), parent=context)


def sections() -> dict[str, str]:
    """The sections of the reference by the name of their command."""
    text = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for part in re.split(r"^### `stepwell ", text, flags=re.MULTILINE)[1:]:
        name = re.match(r"[a-z]+", part)
        assert name is not None
        found[name[0]] = found.get(name[0], "") + part
    return found


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, with its path."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def test_every_option_of_every_command_is_in_the_reference():
    everywhere, text = {name for each in cli.params for name in each.opts} | {"--help"}, sections()
    missing = [
        f"{' '.join(path)} {option.opts[0]}"
        for path, command in commands(cli)
        for option in command.params
        if isinstance(option, click.Option)
        and not everywhere & set(option.opts)
        and not re.search(rf"(?<![\w-]){max(option.opts, key=len)}(?![\w-])", text[path[0]])
    ]
    assert missing == []
