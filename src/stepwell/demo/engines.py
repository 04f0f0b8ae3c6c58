"""The flag by which the examples run on Temporal: ``--engine temporal``, with ``--address`` and ``--namespace``."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from stepwell.app.blocking.well import Stepwell
from stepwell.app.temporal_worker import TemporalWorker
from stepwell.errors import InvalidInput
from stepwell.model.external_engines import TEMPORAL
from stepwell.model.scope import DEFAULT_WORKSPACE

__all__ = ["check_server", "on_engine"]


def check_server(address: str) -> None:
    """Raise ``EngineUnavailable`` if no Temporal server answers at an address, and ``InvalidInput`` without its client."""
    try:
        from stepwell.temporal.connection import TemporalAddress, TemporalConnection
    except ModuleNotFoundError as error:
        raise InvalidInput("the engine 'temporal' needs its client; run pip install 'stepwell[temporal]'") from error
    asyncio.run(TemporalConnection.open(TemporalAddress(address)))


@contextmanager
def on_engine(well: Stepwell, arguments: Sequence[str] | None = None) -> Generator[None]:
    """Run what is started inside on the engine that ``--engine`` names, by default on the workers of the well.

    With ``--engine temporal`` the workspace ``default`` is moved there for the time of the block, and a worker serves it.

    - ``arguments``: those of the command line by default.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=["local", TEMPORAL], default="local", help="what runs the workflows")
    parser.add_argument("--address", default="127.0.0.1:7233", help="host and port of the Temporal server")
    parser.add_argument("--namespace", default="default", help="the namespace on the Temporal server")
    given = parser.parse_args(arguments)
    if given.engine == "local":
        yield
        return
    with TemporalWorker(address=given.address, namespace=given.namespace, grace_seconds=1):
        well.choose_engine(TEMPORAL, workspace=DEFAULT_WORKSPACE)
        try:
            yield
        finally:
            well.choose_engine(None, workspace=DEFAULT_WORKSPACE)
