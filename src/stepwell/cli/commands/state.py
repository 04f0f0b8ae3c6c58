"""``state``: read and write scoped state."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from stepwell.cli.main import CliCommand, CommandEntry, Group
from stepwell.cli.options import SPAN, VALUE, settings
from stepwell.cli.output import json_text
from stepwell.cli.report import report
from stepwell.errors import InvalidInput, NotFound
from stepwell.model.scope import DEFAULT_WORKSPACE, Scope

__all__ = ["scope_of", "scope_text", "state"]

_AT = "stepwell.cli.commands.state"


@click.group(
    "state",
    cls=Group,
    entries={
        "get": CommandEntry(f"{_AT}:get", "Print the value of a key."),
        "set": CommandEntry(f"{_AT}:set_", "Set a key."),
        "list": CommandEntry(f"{_AT}:list_", "List keys with their values."),
        "delete": CommandEntry(f"{_AT}:delete", "Remove a key."),
        "export": CommandEntry(f"{_AT}_files:export", "Write scoped state into a file."),
        "import": CommandEntry(f"{_AT}_files:import_", "Set the keys of an exported file."),
    },
)
def state() -> None:
    """Read and write scoped state.

    SCOPE is global, workspace, workflow/NAME, step/WORKFLOW/STEP, conversation/ID, user/NAME or custom/NAME. A slash inside a
    name is written as %2F, and a percent sign as %25.
    """


_scope = click.argument("scope", metavar="SCOPE")
_key = click.argument("key", metavar="KEY")
_shown = click.option("--show-secrets", "shows_secrets", is_flag=True, help="Show values that are declared secret.")
_workspace = click.option("--workspace", "-w", default=DEFAULT_WORKSPACE, show_default=True, help="The workspace of the scope.")


@click.command("get", cls=CliCommand)
@_scope
@_key
@_workspace
@_shown
def get(scope: str, key: str, workspace: str, shows_secrets: bool) -> None:
    """Print the value of a key, as JSON."""
    given, where = settings(), scope_of(scope, workspace)
    with given.open() as well:
        entry = well.state.at(where).entry(key)
    if entry is None:
        raise NotFound(f"there is no key {key!r} in {scope}; see stepwell state list {scope}")
    value = entry.value if shows_secrets else well.redact({key: entry.value})[key]
    facts: Any = {"key": key} | msgspec.to_builtins(entry) | {"value": value}
    given.screen.json(facts if given.is_json else value)


@click.command("set", cls=CliCommand)
@_scope
@_key
@click.argument("value", type=VALUE, metavar="JSON|@FILE|-")
@click.option("--ttl", type=SPAN, metavar="SPAN", help="Remove the key after 30s, 5m, ...")
@click.option("--revision", type=click.IntRange(0), help="Set it only if the key is at this revision; 0: only if there is none.")
@_workspace
def set_(scope: str, key: str, value: Any, ttl: float | None, revision: int | None, workspace: str) -> None:
    """Set a key to a value."""
    given, where = settings(), scope_of(scope, workspace)
    with given.open(creates=True) as well:
        at = well.state.at(where)
        now = at.set(key, value, ttl) if revision is None else at.compare_and_set(key, value, revision=revision, ttl=ttl)
    report(given, {"key": key, "revision": now}, f"{key} is set, at revision {now}")


@click.command("list", cls=CliCommand)
@click.argument("scope", metavar="[SCOPE]", required=False)
@click.option("--prefix", default="", help="Show only keys with this prefix.")
@_workspace
@_shown
def list_(scope: str | None, prefix: str, workspace: str, shows_secrets: bool) -> None:
    """List the keys of a scope with their values; without SCOPE, the scopes that hold anything."""
    given = settings()
    screen = given.screen
    with given.open() as well:
        if scope is None:
            rows = [(scope_text(each), each.workspace) for each in well.state.scopes()]
            facts: list[Any] = [{"scope": text, "workspace": of} for text, of in rows]
            headings = ("SCOPE", "WORKSPACE")
        else:
            found = well.state.at(scope_of(scope, workspace)).all(prefix)
            if not shows_secrets:
                found = well.redact(found)
            rows = [(key, json_text(value)) for key, value in found.items()]
            facts = [{"key": key, "value": value} for key, value in found.items()]
            headings = ("KEY", "VALUE")
    if given.is_json:
        for each in facts:
            screen.json_line(each)
    else:
        screen.table(headings, rows)


@click.command("delete", cls=CliCommand)
@_scope
@_key
@_workspace
def delete(scope: str, key: str, workspace: str) -> None:
    """Remove a key."""
    given, where = settings(), scope_of(scope, workspace)
    with given.open() as well:
        was_there = well.state.at(where).delete(key)
    if not was_there:
        raise NotFound(f"there is no key {key!r} in {scope}")
    report(given, {"key": key, "deleted": True}, f"{key} is deleted")


def scope_text(scope: Scope) -> str:
    """Return the argument that names a scope in its workspace; ``scope_of`` parses it."""
    kind, _workspace, *names = scope.path.split("/")
    return "/".join([kind, *names])


def scope_of(text: str, workspace: str) -> Scope:
    """Return the scope of an argument: the kind, then its names, separated by slashes."""
    kind, *names = text.split("/")
    if kind == "global":
        workspace = ""
    encoded = "/".join([kind, Scope.of_workspace(workspace).path.partition("/")[2] if workspace else "", *names])
    try:
        return Scope.parse(encoded)
    except InvalidInput:
        raise InvalidInput(
            f"{text!r} is not a scope; use global, workspace, workflow/NAME, step/WORKFLOW/STEP, conversation/ID, user/NAME or "
            "custom/NAME, with %2F for a slash inside a name and %25 for a percent sign"
        ) from None
