"""``token``: who may call the HTTP server."""

from __future__ import annotations

import click

from stepwell.cli.main import CommandEntry, Group, command
from stepwell.cli.options import SPAN, settings
from stepwell.cli.report import report, report_rows
from stepwell.errors import NotFound
from stepwell.model.access import Role
from stepwell.model.scope import DEFAULT_WORKSPACE

__all__ = ["token"]

_AT = "stepwell.cli.commands.token"
_COLUMNS = {
    "ID": "token_id",
    "NAME": "name",
    "ROLE": "role",
    "WORKSPACE": "workspace",
    "CREATED": "created_at",
    "EXPIRES": "expires_at",
}

_ROLES = [str(each) for each in Role]


@click.group(
    "token",
    cls=Group,
    entries={
        "create": CommandEntry(f"{_AT}:create", "Create an access token, and print it once."),
        "list": CommandEntry(f"{_AT}:list_", "List access tokens, without their secrets."),
        "revoke": CommandEntry(f"{_AT}:revoke", "Revoke an access token at once."),
    },
)
def token() -> None:
    """Manage the access tokens of the HTTP server."""


@command("create")
@click.argument("name", metavar="NAME")
@click.option(
    "--role", type=click.Choice([str(each) for each in Role]), default="viewer", show_default=True, help="The rights of its holder."
)
@click.option("--workspace", "-w", default=DEFAULT_WORKSPACE, show_default=True, help="The only workspace that it opens.")
@click.option("--all-workspaces", is_flag=True, help="Open all of the store, also its tiers, queues and definitions.")
@click.option("--ttl", type=SPAN, metavar="SPAN", help="Refuse it after this time, such as 90d. Default: never.")
def create(name: str, role: str, workspace: str, all_workspaces: bool, ttl: float | None) -> None:
    """Create an access token, and print it. The store keeps only its digest: it is not shown again."""
    given = settings()
    with given.open(creates=True) as well:
        issued = well.access.create_token(name, role=role, workspace=None if all_workspaces else workspace, ttl=ttl)
    if given.is_json:
        given.screen.json(
            {"token_id": issued.token.token_id, "text": issued.text, "role": role, "workspace": issued.token.workspace}
        )
    else:
        given.screen.write(issued.text)
        given.screen.note(f"keep it now; revoke it with: stepwell token revoke {issued.token.token_id}")


@command("list")
def list_() -> None:
    """List access tokens, without their secrets. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.access.tokens()
    report_rows(given, found, _COLUMNS, "no tokens; create one with: stepwell token create NAME")


@command("revoke")
@click.argument("token_id", metavar="ID")
def revoke(token_id: str) -> None:
    """Revoke an access token at once, with the sessions that it opened."""
    given = settings()
    with given.open() as well:
        if not well.access.revoke_token(token_id):
            raise NotFound(f"there is no token {token_id!r}; see: stepwell token list")
    report(given, {"token_id": token_id, "revoked": True}, f"token {token_id} is revoked")
