"""``serve``: the HTTP server, with or without a worker."""

from __future__ import annotations

import click

from stepwell.cli.main import command
from stepwell.cli.options import settings
from stepwell.cli.output import printable
from stepwell.errors import InvalidInput, StepwellError

__all__ = ["serve"]


@command("serve")
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", "-p", type=click.IntRange(0, 65_535), default=8420, show_default=True, help="The port; 0 for a free one.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name of this server; repeatable. Others are refused.")
@click.option("--open-admin", is_flag=True, help="Answer metrics and details of health to other machines, too.")
@click.option("--worker/--no-worker", default=True, show_default=True, help="Run workflows in this process, too.")
def serve(modules: tuple[str, ...], host: str, port: int, hosts: tuple[str, ...], open_admin: bool, worker: bool) -> None:
    """Serve the HTTP API of the store until stopped, and run the workflows of these modules.

    On loopback it prints a one-time link that signs in. Other machines need a token: see `stepwell token create`.
    """
    given = settings()
    given.modules += modules
    given.load_modules()
    try:
        from stepwell.web.serve import serve as serve_well
    except ModuleNotFoundError as error:
        raise InvalidInput(f"the HTTP server needs {error.name}; install it with: pip install 'stepwell[server]'") from None
    from stepwell import AsyncStepwell

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
            on_ready=say_ready,
        )
    except SystemExit as error:
        if error.code != 1:  # ended by a signal
            raise
        raise StepwellError(f"the server could not listen on {host}:{port}; choose another port with --port") from None
