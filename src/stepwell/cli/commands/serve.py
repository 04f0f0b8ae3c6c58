"""``serve``: the HTTP server, with or without a worker."""

from __future__ import annotations

import click

from stepwell.cli.main import command
from stepwell.cli.options import complete_file, settings
from stepwell.cli.output import printable
from stepwell.cli.report import end_server
from stepwell.cli.workflow_loader import definitions_of, is_document
from stepwell.errors import InvalidInput, StepwellError
from stepwell.flow.function import registered_step_names
from stepwell.model.access import Role

__all__ = ["serve"]


@command("serve")
@click.argument("modules", nargs=-1, metavar="[MODULE]...", shell_complete=complete_file)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", "-p", type=click.IntRange(0, 65_535), default=8420, show_default=True, help="The port; 0 for a free one.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name of this server; repeatable. Others are refused.")
@click.option(
    "--open-admin", is_flag=True, help="Answer metrics, details of health, backups and migrations to other machines, too."
)
@click.option("--backups", metavar="FOLDER", help="The folder that backups are made into. Default: none are made.")
@click.option("--worker/--no-worker", default=True, show_default=True, help="Run workflows in this process, too.")
@click.option(
    "--grace-seconds",
    type=click.FloatRange(0),
    default=30,
    show_default=True,
    help="Seconds for running steps to finish after SIGTERM.",
)
@click.option("--identity-header", metavar="NAME", help="Trust the proxy to name who signed in, such as X-Forwarded-User.")
@click.option(
    "--identity-role", type=click.Choice([str(each) for each in Role]), default="viewer", show_default=True, help="Their role."
)
@click.option("--identity-workspace", metavar="ID", help="The only workspace that they reach. Default: all of the store.")
@click.option("--proxy", "proxies", multiple=True, metavar="ADDRESS", help="The proxy's address; repeatable. Default: loopback.")
def serve(
    modules: tuple[str, ...],
    host: str,
    port: int,
    hosts: tuple[str, ...],
    open_admin: bool,
    backups: str | None,
    worker: bool,
    grace_seconds: float,
    identity_header: str | None,
    identity_role: str,
    identity_workspace: str | None,
    proxies: tuple[str, ...],
) -> None:
    """Serve the dashboard and the HTTP API of the store until stopped, and run the workflows of these modules.

    A file with a definition (.yaml, .json) is put into the store.

    On loopback it prints a one-time link that signs in. Other machines need a token: see `stepwell token create`.
    """
    given = settings()
    given.modules += [each for each in modules if not is_document(each)]
    given.load_modules()
    definitions = [each for file in modules if is_document(file) for each in definitions_of(file, steps=registered_step_names())]
    try:
        from stepwell.web.authentication import ProxyIdentity
        from stepwell.web.uvicorn_server import serve as serve_well
    except ModuleNotFoundError as error:
        raise InvalidInput(f"the HTTP server needs {error.name}; install it with: pip install 'stepwell[server]'") from None
    from stepwell import AsyncStepwell

    proxy = None
    if identity_header is not None:
        proxy = ProxyIdentity(
            user_header=identity_header,
            role=Role(identity_role),
            workspace=identity_workspace,
            proxies=proxies or ("127.0.0.1", "::1"),
        )
    elif proxies:
        raise click.UsageError("--proxy says who may send --identity-header; give both")

    async def prepare(well: AsyncStepwell) -> None:
        for each in definitions:
            await well.definitions.put(each)

    def say_ready(address: str) -> None:
        if given.is_json:
            given.screen.json_line({"event": "ready", "url": address})
        else:
            given.screen.note(printable(f"open {address}"))

    try:
        serve_well(
            AsyncStepwell(given.url, worker=worker),
            host=host,
            port=port,
            allowed_hosts=hosts,
            open_admin=open_admin,
            backups=backups,
            proxy=proxy,
            grace_seconds=grace_seconds,
            prepare=prepare,
            on_ready=say_ready,
        )
    except KeyboardInterrupt:
        end_server(given)
    except SystemExit as error:
        if error.code != 1:  # ended by a signal
            raise
        raise StepwellError(f"the server could not listen on {host}:{port}; choose another port with --port") from None
