"""``workflow``: the definitions that a store keeps."""

from __future__ import annotations

import click

from stepwell.cli.command import CommandEntry, Group, command
from stepwell.cli.report import tell, tell_rows
from stepwell.cli.settings import settings
from stepwell.cli.source import definitions_of
from stepwell.errors import InvalidInput
from stepwell.flow.function import registered_step_names
from stepwell.model.value import parse

__all__ = ["workflow"]

_AT = "stepwell.cli.commands.workflow"


@click.group(
    "workflow",
    cls=Group,
    entries={
        "put": CommandEntry(f"{_AT}:put", "Put definitions into the store."),
        "list": CommandEntry(f"{_AT}:list_", "List the stored definitions."),
        "show": CommandEntry(f"{_AT}:show", "Print a definition as YAML or JSON."),
        "pause": CommandEntry(f"{_AT}:pause", "Let no run of a workflow be started."),
        "activate": CommandEntry(f"{_AT}:activate", "Let runs of a workflow be started."),
    },
)
def workflow() -> None:
    """The definitions that the store keeps, every version once and for ever."""


_name = click.argument("name", metavar="NAME")


@command("put")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def put(files: tuple[str, ...]) -> None:
    """Put definitions into the store: all of them, or none if one has a fault. A version that is there stays as it is."""
    given = settings()
    steps = registered_step_names() if given.load_modules() else None
    found = [each for file in files for each in definitions_of(file, steps=steps)]
    if not found:
        raise InvalidInput(f"there is no definition in {', '.join(files)}")
    with given.open(creates=True) as well:
        for each in found:
            well.definitions.put(each)
    told = [{"name": each.name, "version": each.version} for each in found]
    tell(given, told, ", ".join(f"{each.name} version {each.version}" for each in found) + " is in the store")


@command("list")
def list_() -> None:
    """List the stored definitions. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.definitions.list()
    columns = {"NAME": "name", "VERSION": "version", "STATUS": "status", "VERSIONS": "versions"}
    tell_rows(given, found, columns, "no definitions; put one in with: stepwell workflow put FILE")


@command("show")
@_name
@click.option("--version", type=click.IntRange(1), help="Which version; else the newest.")
def show(name: str, version: int | None) -> None:
    """Print a stored definition as YAML, or with --json as JSON; both can be put in again."""
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
    """Let no run of a workflow be started; those that have begun go on."""
    given = settings()
    with given.open() as well:
        well.definitions.pause(name)
    tell(given, {"name": name, "status": "PAUSED"}, f"{name} is paused")


@command("activate")
@_name
def activate(name: str) -> None:
    """Let runs of a workflow be started; its newest version becomes active, if it was a draft."""
    given = settings()
    with given.open() as well:
        well.definitions.activate(name)
    tell(given, {"name": name, "status": "ACTIVE"}, f"{name} is active")
