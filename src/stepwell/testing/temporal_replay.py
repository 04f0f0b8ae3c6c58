"""Replay Temporal histories with the code of this program, before a worker is deployed to live runs.

``python -m stepwell.testing.temporal_replay URL --address HOST:PORT`` takes every history that the server has in a namespace, and
ends with 1 if one of them cannot be replayed. Nothing is written.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from stepwell.app.composition import Parts
from stepwell.app.sealing import sealing_of
from stepwell.model.cipher import parse_keyring
from stepwell.temporal.connection import TemporalAddress, TemporalConnection
from stepwell.temporal.service import HostInterceptor
from stepwell.temporal.workflow import StepwellWorkflow

__all__ = ["replay"]


async def replay(url: str, address: TemporalAddress) -> tuple[int, dict[str, Exception]]:
    """Replay every history of a namespace; return how many there were, and the errors of those that failed, by run id.

    - ``url``: the store, where definitions are found.
    - ``address``: the server and its namespace.
    """
    parts = Parts(url, None, None, None, sealing_of(None, None, ()))
    parts.open()
    try:
        connection = await TemporalConnection.open(address)
        host = parts.temporal_host(concurrency=1, lease_seconds=30)
        count = 0

        async def histories() -> AsyncIterator[WorkflowHistory]:
            nonlocal count
            async for found in connection.client.list_workflows():
                count += 1
                yield await connection.client.get_workflow_handle(found.id, run_id=found.run_id).fetch_history()

        replayer = Replayer(
            workflows=[StepwellWorkflow],
            interceptors=[HostInterceptor(host)],
            workflow_runner=UnsandboxedWorkflowRunner(),
            data_converter=connection.client.data_converter,
        )
        results = await replayer.replay_workflows(histories(), raise_on_replay_failure=False)
        return count, dict(results.replay_failures)
    finally:
        parts.close()


def main() -> int:
    """Replay the histories that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.testing.temporal_replay")
    parser.add_argument("url")
    parser.add_argument("--address", default="127.0.0.1:7233")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--payload-keys", metavar="FILE", help="the key ring, if payloads are encrypted")
    given = parser.parse_args()
    keys = None if given.payload_keys is None else parse_keyring(Path(given.payload_keys).read_bytes())
    count, failures = asyncio.run(replay(given.url, TemporalAddress(given.address, given.namespace, payload_keys=keys)))
    for run_id, error in failures.items():
        sys.stdout.write(f"run {run_id}: {error}\n")
    sys.stdout.write(f"{count} histories, {len(failures)} failed\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
