"""``check`` and ``draw``: definitions, without running them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepwell.cli.command import command
from stepwell.cli.ending import ExitCode
from stepwell.cli.plaintext import printable
from stepwell.cli.screen import Screen
from stepwell.cli.settings import settings
from stepwell.cli.source import definitions_of, find_workflow
from stepwell.errors import InvalidDefinition, InvalidInput, Problem
from stepwell.flow.program import registered_names, registered_step_names

if TYPE_CHECKING:
    from stepwell.flow.definition import Definition
    from stepwell.flow.finding import Findings
    from stepwell.kernel.exploration import Exploration

__all__ = ["check", "draw"]

_PLACE = re.compile(r"(?P<source>.*):(?P<line>\d+):(?P<column>\d+)", re.DOTALL)


@command("check")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def check(files: tuple[str, ...]) -> None:
    """Check definitions (.yaml, .json, or those of a .py file), and say every fault as file:line:column.

    What has no fault that can be seen is explored: steps that are never reached, deadlocks and livelocks are faults, with the way
    that leads there. Exit code 5 if there is a fault. With -m MODULE, steps that no module has are faults, too.
    """
    from stepwell.kernel.exploration import explore

    given = settings()
    steps = registered_step_names() if given.load_modules() else None
    sound: list[dict[str, Any]] = []
    problems: list[Problem] = []
    explored: dict[str, Exploration] = {}

    def further(definition: Definition) -> Findings:
        explored[definition.name] = found = explore(definition)
        return found.findings(definition)

    for file in files:
        try:
            sound += [_facts(file, each, explored[each.name]) for each in definitions_of(file, steps=steps, further=further)]
        except InvalidDefinition as error:
            problems += error.errors
    if given.is_json:
        given.screen.json({"is_ok": not problems, "definitions": sound, "problems": [_problem(each) for each in problems]})
    else:
        _write(given.screen, sound, problems)
    sys.exit(ExitCode.INVALID if problems else ExitCode.DONE)


def _facts(source: str, definition: Definition, found: Exploration) -> dict[str, Any]:
    told = {"source": source, "name": definition.name, "version": definition.version}
    return told | ({} if found.is_complete else {"bound": found.bound})


def _problem(problem: Problem) -> dict[str, Any]:
    place = _PLACE.fullmatch(problem.where)
    told: dict[str, Any] = {"source": problem.where, "line": None, "column": None}
    if place is not None:
        told = {"source": place["source"], "line": int(place["line"]), "column": int(place["column"])}
    return told | {"code": problem.code, "message": problem.message}


def _write(screen: Screen, sound: list[dict[str, Any]], problems: list[Problem]) -> None:
    for each in sound:
        bound = f" (explored in part: up to {each['bound']})" if "bound" in each else ""
        screen.note(f"{screen.paint('green', 'ok', screen.err)}  {printable(each['source'])}: {printable(each['name'])}{bound}")
    for problem in problems:
        first, *rest = problem.message.split("\n")
        screen.write(f"{screen.paint('bold', printable(problem.where))}: {printable(first)}")
        for line in rest:  # the text, and a caret under the place
            screen.write(f"    {printable(line)}")
    if problems:
        screen.note(f"{len(problems)} fault{'s' if len(problems) > 1 else ''}")


@command("draw")
@click.argument("file", metavar="FILE")
@click.option("--format", "-f", "kind", type=click.Choice(["svg", "mermaid"]), help="Else by the name of the output; else svg.")
@click.option("--output", "-o", metavar="FILE", help="Where to write it; else to standard output.")
def draw(file: str, kind: str | None, output: str | None) -> None:
    """Draw a definition (.yaml, .json, module:definition, or the name of a stored one) as SVG or Mermaid."""
    from stepwell.flow.definition import Definition
    from stepwell.flow.drawing import draw_mermaid, draw_svg

    given = settings()
    given.load_modules()
    found = find_workflow(file)
    if isinstance(found, str) and found not in registered_names():
        with given.open() as well:
            found = well.definitions.get(found)
    if not isinstance(found, Definition):
        raise InvalidInput(f"{file!r} is code, and its structure is known only from a run; draw a definition")
    kind = kind or ("mermaid" if output and output.endswith((".mmd", ".mermaid", ".md")) else "svg")
    picture = draw_svg(found) if kind == "svg" else draw_mermaid(found)
    if output is not None and output != "-":
        _save(output, picture)
    if given.is_json:
        shown = {} if output else {"picture": picture}
        given.screen.json({"name": found.name, "format": kind, "output": output} | shown)
    elif output is None or output == "-":
        given.screen.text(picture)
    else:
        given.screen.note(printable(f"{found.name} is drawn to {output}"))


def _save(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path!r} cannot be written: {error.strerror}") from None
