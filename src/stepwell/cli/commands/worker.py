"""``worker``: a process that runs workflows until it is stopped."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from stepwell.cli.main import command
from stepwell.cli.options import QUEUE_NAME, complete_file, settings
from stepwell.cli.output import printable
from stepwell.cli.workflow_loader import definitions_of, is_document
from stepwell.config import choose_url, without_secrets
from stepwell.errors import InvalidInput
from stepwell.flow.function import registered_names, registered_step_names
from stepwell.model.cipher import parse_keyring

__all__ = ["worker"]

_TEMPORAL_OPTIONS = (
    "address",
    "namespace",
    "tls",
    "ca_file",
    "cert_file",
    "key_file",
    "api_key",
    "workspaces",
    "deployment",
    "search_attributes",
)


@command("worker")
@click.argument("modules", nargs=-1, metavar="MODULE...", shell_complete=complete_file)
@click.option(
    "--concurrency", "-c", type=click.IntRange(1), default=100, show_default=True, help="The maximum number of concurrent runs."
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(1, 86_400),
    default=30,
    show_default=True,
    help="Seconds after this worker's death until others take over.",
)
@click.option(
    "--grace-seconds",
    type=click.FloatRange(0),
    default=30,
    show_default=True,
    help="Seconds for running steps to finish after SIGTERM.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Dispatch items of this queue only; repeatable.",
    shell_complete=QUEUE_NAME,
)
@click.option(
    "--engine",
    type=click.Choice(["local", "temporal"]),
    default="local",
    show_default=True,
    help="The engine to serve: Stepwell's own or Temporal.",
)
@click.option("--address", default="127.0.0.1:7233", show_default=True, help="Host and port of the Temporal server.")
@click.option("--namespace", default="default", show_default=True, help="The namespace on the Temporal server.")
@click.option("--tls", is_flag=True, help="Speak TLS with the Temporal server.")
@click.option("--tls-ca", "ca_file", metavar="FILE", help="PEM file of the authority that signed the server's certificate.")
@click.option("--tls-cert", "cert_file", metavar="FILE", help="PEM file of this client's certificate.")
@click.option("--tls-key", "key_file", metavar="FILE", help="PEM file of this client's key.")
@click.option("--api-key", envvar="TEMPORAL_API_KEY", show_envvar=True, help="A key for Temporal Cloud.")
@click.option("--workspace", "workspaces", multiple=True, help="Serve the Temporal task queue of this workspace, too; repeatable.")
@click.option("--deployment", nargs=2, metavar="NAME BUILD", help="The Temporal worker deployment and build id of this worker.")
@click.option(
    "--payload-keys",
    metavar="FILE",
    envvar="STEPWELL_PAYLOAD_KEYS",
    show_envvar=True,
    help="JSON file with the keys that encrypt all payloads on Temporal.",
)
@click.option("--search-attributes", is_flag=True, help="Give workflows the search attribute StepwellWorkspace.")
def worker(modules: tuple[str, ...], grace_seconds: float, engine: str, payload_keys: str | None, **options: Any) -> None:
    """Run the workflows and steps of these modules (names or .py files) until stopped.

    A file with a definition (.yaml, .json) is put into the store. At SIGTERM or Ctrl-C the worker claims no more runs, finishes
    running steps within the grace period, and hands everything else back to other workers. A second signal ends it at once.

    With --engine temporal it serves a Temporal server instead: it runs the workflow tasks and steps of runs that were started
    or enqueued with engine="temporal", and dispatches their queue items.
    """
    from stepwell.app.temporal_worker import TemporalWorker
    from stepwell.runtime.host_tuning import host_tuning
    from stepwell.runtime.worker_host import Drains, serve

    given = settings()
    given.modules += [each for each in modules if not is_document(each)]
    given.load_modules()
    if not registered_names() and not registered_step_names():
        if not given.modules:
            raise click.UsageError("name the modules with workflows, as in: stepwell worker shop.py")
        raise InvalidInput("these modules have no workflow and no step")
    definitions = [each for file in modules if is_document(file) for each in definitions_of(file, steps=registered_step_names())]
    temporal = {name: options.pop(name) for name in _TEMPORAL_OPTIONS}
    is_local = engine == "local"
    with host_tuning(), ExitStack() as stack:
        well = stack.enter_context(given.open(creates=True, worker=is_local, **options))
        names = sorted({*registered_names(), *(well.definitions.put(each).name for each in definitions)})
        serving: Drains = well
        if not is_local:
            place = choose_url(given.url)[0]
            keys = None if payload_keys is None else _keys_of(payload_keys)
            serving = stack.enter_context(
                TemporalWorker(
                    place,
                    grace_seconds=grace_seconds,
                    payload_keys=keys,
                    on_failure=lambda: os.kill(os.getpid(), signal.SIGTERM),
                    **temporal,
                    **options,
                )
            )

        def say_ready() -> None:
            if given.is_json:
                given.screen.json_line({"event": "ready", "workflows": names, "steps": sorted(registered_step_names())})
            else:
                place = without_secrets(choose_url(given.url)[0])
                place += "" if is_local else f" and Temporal at {temporal['address']}"
                given.screen.note(printable(f"worker is ready on {place}: {', '.join(names) or 'for declared workflows'}"))

        def say_stopping() -> None:
            given.screen.note("stopping; running steps are finished first")

        serve(serving, grace_seconds, on_ready=say_ready, on_stop=say_stopping)
        if isinstance(serving, TemporalWorker) and serving.failure is not None:
            raise serving.failure
    given.screen.note("worker has ended; unfinished runs are handed back")


def _keys_of(file: str) -> dict[str, bytes]:
    """Return the keys of a key ring file, the active one last."""
    try:
        ring = parse_keyring(Path(file).read_bytes())
    except OSError as error:
        raise InvalidInput(f"the file {file!r} cannot be read: {error.strerror}") from None
    return {name: key for name, key in ring.keys.items() if name != ring.active} | {ring.active: ring.keys[ring.active]}
