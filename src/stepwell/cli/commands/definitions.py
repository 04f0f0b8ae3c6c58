"""``check`` and ``draw`` for definitions and runs, and ``workflow`` for the definitions in a store."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepwell.cli.exit_codes import ExitCode
from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import RUN_NAME, WORKFLOW_NAME, complete_file, complete_startable, settings
from stepwell.cli.output import Terminal, printable
from stepwell.cli.report import counted, report, report_rows
from stepwell.cli.workflow_loader import definitions_of, find_workflow, functions_of, source_problems_of
from stepwell.errors import InvalidDefinition, InvalidInput, Problem
from stepwell.flow.function import registered_names, registered_step_names
from stepwell.model.value import parse

if TYPE_CHECKING:
    from stepwell.flow.definition.findings import Findings
    from stepwell.flow.definition.node import Definition
    from stepwell.kernel.soundness.explorer import Exploration
    from stepwell.runtime.run_report import PictureFormat

__all__ = [
    "check",
    "draw",
    "workflow",
]


_PLACE = re.compile(r"(?P<source>.*):(?P<line>\d+):(?P<column>\d+)", re.DOTALL)


@command("check")
@click.argument("files", nargs=-1, metavar="[FILE...]", shell_complete=complete_file)
@click.option(
    "--run",
    "run_id",
    metavar="ID",
    help="Check a run: its definition, or the calls of its function.",
    shell_complete=RUN_NAME,
)
def check(files: tuple[str, ...], run_id: str | None) -> None:
    """Check definitions (.yaml, .json, or those of a .py file) and the code of workflow functions, and print every fault as
    file:line:column.

    A definition without such faults is explored: unreachable steps, deadlocks and livelocks are faults, shown with the path that
    leads there. In the code of a workflow function, time, randomness and sleeping that are not recorded are faults, and
    so are calls without await; each line says what to write instead. Exits with 5 if there is a fault. With -m MODULE,
    steps that no module has are faults, too.
    """
    from stepwell.kernel.soundness.explorer import explore

    given = settings()
    if bool(files) is (run_id is not None):
        raise click.UsageError("give files, or a run by --run ID")
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
        faults = source_problems_of(file)
        problems += faults
        if not faults:
            sound += [{"source": file, "name": each.name, "version": each.version} for each in functions_of(file)]
    if run_id is not None:
        sound, problems = _check_run(run_id)
    if given.is_json:
        given.screen.json({"is_ok": not problems, "definitions": sound, "problems": [_problem(each) for each in problems]})
    else:
        _write(given.screen, sound, problems)
    sys.exit(ExitCode.INVALID if problems else ExitCode.DONE)


def _check_run(run_id: str) -> tuple[list[dict[str, Any]], list[Problem]]:
    with settings().open() as well:
        run = well.run(run_id)
        problems = [Problem(each.code, each.message, f"{run_id}: {each.where}") for each in run.check()]
        facts = {"source": run_id, "name": run.state().metadata.workflow_id}
    return [] if problems else [facts], problems


def _facts(source: str, definition: Definition, found: Exploration) -> dict[str, Any]:
    told = {"source": source, "name": definition.name, "version": definition.version}
    return told | ({} if found.is_complete else {"bound": found.bound})


def _problem(problem: Problem) -> dict[str, Any]:
    place = _PLACE.fullmatch(problem.where)
    told: dict[str, Any] = {"source": problem.where, "line": None, "column": None}
    if place is not None:
        told = {"source": place["source"], "line": int(place["line"]), "column": int(place["column"])}
    return told | {"code": problem.code, "message": problem.message}


def _write(screen: Terminal, sound: list[dict[str, Any]], problems: list[Problem]) -> None:
    for each in sound:
        bound = f" (explored in part: up to {each['bound']})" if "bound" in each else ""
        screen.note(f"{screen.paint('green', 'ok', screen.err)}  {printable(each['source'])}: {printable(each['name'])}{bound}")
    for problem in problems:
        first, *rest = problem.message.split("\n")
        screen.write(f"{screen.paint('bold', printable(problem.where))}: {printable(first)}")
        for line in rest:  # the source text, and a caret under the position
            screen.write(f"    {printable(line)}")
    if problems:
        screen.note(f"{len(problems)} fault{'s' if len(problems) > 1 else ''}")


def _drawn(file: str, kind: PictureFormat) -> tuple[str, str]:
    """Return the name of a definition or run, and its picture."""
    from stepwell.flow.definition.node import Definition
    from stepwell.flow.drawing import draw_mermaid, draw_svg

    found = find_workflow(file)
    if isinstance(found, str) and found not in registered_names():
        with settings().open() as well:
            found = well.definitions.get(found)
    if not isinstance(found, Definition):
        raise InvalidInput(f"{file!r} is code, whose structure is known only from a run; draw a run with --run ID")
    return found.name, draw_svg(found) if kind == "svg" else draw_mermaid(found)


@command("draw")
@click.argument("file", metavar="[FILE]", required=False, shell_complete=complete_startable)
@click.option(
    "--run",
    "run_id",
    metavar="ID",
    help="Draw a run: its definition with its progress, or the calls of its function.",
    shell_complete=RUN_NAME,
)
@click.option(
    "--format",
    "-f",
    "kind",
    type=click.Choice(["svg", "mermaid", "waterfall"]),
    help="Default: by the suffix of the output, else svg. A waterfall is an SVG of when each step of a run ran.",
)
@click.option("--output", "-o", metavar="FILE", help="The output file. Default: standard output.", shell_complete=complete_file)
def draw(file: str | None, run_id: str | None, kind: PictureFormat | None, output: str | None) -> None:
    """Draw a definition (.yaml, .json, module:definition, or the name of a stored one) or a run as SVG or Mermaid."""
    given = settings()
    if (file is None) is (run_id is None):
        raise click.UsageError("give a definition, or a run by --run ID")
    if file is not None and kind == "waterfall":
        raise click.UsageError("a waterfall is drawn of a run: give --run ID")
    given.load_modules()
    kind = kind or ("mermaid" if output and output.endswith((".mmd", ".mermaid", ".md")) else "svg")
    if run_id is not None:
        with given.open() as well:
            name, picture = run_id, well.run(run_id).draw(kind)
    else:
        name, picture = _drawn(file or "", kind)
    if output is not None and output != "-":
        _save(output, picture)
    if given.is_json:
        shown = {} if output else {"picture": picture}
        given.screen.json({"name": name, "format": kind, "output": output} | shown)
    elif output is None or output == "-":
        given.screen.text(picture)
    else:
        given.screen.note(printable(f"{name} is drawn to {output}"))


def _save(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path!r} cannot be written: {error.strerror}") from None


_AT = "stepwell.cli.commands.definitions"


@click.group(
    "workflow",
    cls=Group,
    entries={
        "put": CommandEntry(f"{_AT}:put", "Put definitions into the store."),
        "list": CommandEntry(f"{_AT}:list_", "List the stored definitions."),
        "show": CommandEntry(f"{_AT}:show", "Print a definition as YAML or JSON."),
        "pause": CommandEntry(f"{_AT}:pause", "Pause a workflow: no new runs."),
        "activate": CommandEntry(f"{_AT}:activate", "Activate a workflow."),
        "upgrade": CommandEntry(f"{_AT}:upgrade", "Move live runs to another version."),
    },
)
def workflow() -> None:
    """Manage the definitions in the store. A stored version never changes."""


_name = click.argument("name", metavar="NAME", shell_complete=WORKFLOW_NAME)


@command("put")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=complete_file)
def put(files: tuple[str, ...]) -> None:
    """Put definitions into the store: all, or none if one has a fault. An existing version stays as it is."""
    given = settings()
    steps = registered_step_names() if given.load_modules() else None
    found = [each for file in files for each in definitions_of(file, steps=steps)]
    if not found:
        raise InvalidInput(f"there is no definition in {', '.join(files)}")
    with given.open(creates=True) as well:
        for each in found:
            well.definitions.put(each)
    told = [{"name": each.name, "version": each.version} for each in found]
    report(given, told, ", ".join(f"{each.name} version {each.version}" for each in found) + " is in the store")


@command("list")
def list_() -> None:
    """List the stored definitions. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.definitions.list()
    columns = {"NAME": "name", "VERSION": "version", "STATUS": "status", "VERSIONS": "versions"}
    report_rows(given, found, columns, "no definitions; put one in with: stepwell workflow put FILE")


@command("show")
@_name
@click.option("--version", type=click.IntRange(1), help="The version. Default: the newest.")
def show(name: str, version: int | None) -> None:
    """Print a stored definition as YAML, or with --json as JSON. `put` accepts both."""
    from stepwell.flow.definition.document import render

    given = settings()
    with given.open() as well:
        found = well.definitions.get(name, version)
    if given.is_json:
        given.screen.json(parse(render(found, "json")))
    else:
        given.screen.text(render(found))


@command("pause")
@_name
def pause(name: str) -> None:
    """Pause a workflow: no new run of it can be started. Running ones continue."""
    given = settings()
    with given.open() as well:
        well.definitions.pause(name)
    report(given, {"name": name, "status": "PAUSED"}, f"{name} is paused")


@command("activate")
@_name
def activate(name: str) -> None:
    """Activate a workflow, so that runs can be started. If its newest version is a draft, that becomes active."""
    given = settings()
    with given.open() as well:
        well.definitions.activate(name)
    report(given, {"name": name, "status": "ACTIVE"}, f"{name} is active")


@command("upgrade")
@_name
@click.option("--to", "to_version", type=click.IntRange(1), required=True, metavar="VERSION", help="The version to move them to.")
@click.option("--workspace", "-w", default=None, help="Move only the runs of this workspace. Default: all.")
@click.option("--dry-run", is_flag=True, help="Move nothing, and print what would be done.")
def upgrade(name: str, to_version: int, workspace: str | None, dry_run: bool) -> None:
    """Move live runs of a workflow to another version of its definition.

    A run keeps its version until then. Its passed nodes and its present ones must be the same in both versions; each run that
    stays is printed with the reasons.
    """
    given = settings()
    with given.open() as well:
        done = well.upgrade_runs(name, to_version=to_version, workspace=workspace, dry_run=dry_run)
    rows = [(each.execution_id, str(each.version), "; ".join(each.reasons)) for each in done.refused]
    rows += [(each, "", "a worker holds it; try again when it waits") for each in done.held]
    if not given.is_json and rows:
        given.screen.table(("STAYS", "VERSION", "WHY"), rows)
    would = "would be " if dry_run else ""
    report(given, done, f"{counted(len(done.moved), 'run')} {would}moved to version {to_version}; {len(rows):,} stay")
