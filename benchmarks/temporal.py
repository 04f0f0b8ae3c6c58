"""Measure a one-step workflow through Stepwell on Temporal against plain Temporal, interleaved, on a development server in memory.

``python -m benchmarks.temporal`` prints one JSON object for each figure: medians in milliseconds, and the ratio to plain Temporal.
The base is a workflow with one activity, unsandboxed, without eager start. CPU is that of both workers and the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from stepwell import AsyncStepwell, TemporalWorker, step
from stepwell import workflow as stepwell_workflow
from stepwell.flow import call, define

ALONE, AT_ONCE, ROUNDS = 20, 50, 4


@step
async def work(n: int) -> int:
    """Return the next number."""
    return n + 1


ONE = define("one", call("work", {"n": "{{ trigger.input }}"}, name="w"), output="{{ steps.w.output }}")
TEN = define("ten", *(call("work", {"n": n}, name=f"w{n}") for n in range(10)))


@stepwell_workflow
async def function(calls: int) -> int:
    """Call a step so many times."""
    return sum([await work(number) for number in range(calls)])


@activity.defn(name="plain_work")
async def plain_work(n: int) -> int:
    """Return the next number."""
    return n + 1


@workflow.defn(name="plain", sandboxed=False)
class Plain:
    """One activity."""

    @workflow.run
    async def run(self, n: int) -> int:
        """Run it."""
        return await workflow.execute_activity(plain_work, n, start_to_close_timeout=timedelta(seconds=60))


def cpu_seconds(pid: int) -> float:
    """Return how much CPU a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tell(**figure: Any) -> None:
    """Print one figure."""
    sys.stdout.write(json.dumps(figure) + "\n")
    sys.stdout.flush()


async def timed(one: Callable[[], Awaitable[Any]]) -> float:
    """Return how many milliseconds a call takes."""
    began = time.perf_counter()
    await one()
    return (time.perf_counter() - began) * 1000


async def measure(address: str, server: int, url: str) -> None:
    """Measure everything once."""
    client = await Client.connect(address)
    async with (
        AsyncStepwell(url, worker=False) as well,
        Worker(client, task_queue="plain", workflows=[Plain], activities=[plain_work], workflow_runner=UnsandboxedWorkflowRunner()),
    ):

        async def plain() -> None:
            await client.execute_workflow("plain", 1, id=str(uuid4()), task_queue="plain")

        async def ours() -> None:
            item = await well.enqueue(ONE, 1, engine="temporal")
            await item.result(timeout=60)

        async def as_function() -> None:
            item = await well.enqueue(function, 1, engine="temporal")
            await item.result(timeout=60)

        await asyncio.gather(*(one() for one in (plain, ours, as_function) for _ in range(5)))
        alone: dict[str, list[float]] = {"plain": [], "stepwell": [], "function": []}
        for _ in range(ALONE):
            alone["plain"].append(await timed(plain))
            alone["stepwell"].append(await timed(ours))
            alone["function"].append(await timed(as_function))
        report("alone, latency in ms", alone)
        report("a function alone, latency in ms", {"plain": alone["plain"], "stepwell": alone["function"]})
        batch: dict[str, list[float]] = {"plain": [], "stepwell": []}
        cpu: dict[str, list[float]] = {"plain": [], "stepwell": []}
        for _ in range(ROUNDS):
            for name, one in (("plain", plain), ("stepwell", ours)):
                before = cpu_seconds(os.getpid()) + cpu_seconds(server)
                batch[name].append(await timed(lambda one=one: asyncio.gather(*(one() for _ in range(AT_ONCE)))))
                used = cpu_seconds(os.getpid()) + cpu_seconds(server) - before
                cpu[name].append(used * 1000 / AT_ONCE)
        report(f"{AT_ONCE} at once, ms for all", batch)
        report(f"{AT_ONCE} at once, CPU of workers and server in ms for each", cpu)
        for each, given in ((ONE, 1), (TEN, 1), (function, 1), (function, 10)):
            item = await well.enqueue(each, given, engine="temporal")  # type: ignore[arg-type]
            await item.result(timeout=60)
            await asyncio.sleep(0.5)
            history = await client.get_workflow_handle(f"execution-{item.execution_id}").fetch_history()
            tell(figure=f"history events of {each.name}, {given}", stepwell=len(history.events))


def report(figure: str, found: dict[str, list[float]]) -> None:
    """Print the medians of both, and their ratio."""
    plain, ours = (statistics.median(found[name]) for name in ("plain", "stepwell"))
    tell(figure=figure, plain=round(plain, 1), stepwell=round(ours, 1), ratio=round(ours / plain, 2))


def free_port() -> str:
    """Return a port that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def main() -> None:
    """Start a server, measure, and end it."""
    port = free_port()
    words = ["--ip", "127.0.0.1", "--port", port, "--http-port", free_port(), "--metrics-port", free_port(), "--log-level", "error"]
    program = str(Path(sys.executable).parent / "temporal")
    server = subprocess.Popen([program, "server", "start-dev", "--headless", *words], stdout=subprocess.DEVNULL)
    try:
        time.sleep(5)
        with tempfile.TemporaryDirectory() as folder:
            url, address = f"sqlite:///{folder}/well.db", f"127.0.0.1:{port}"
            with TemporalWorker(url, address=address):
                asyncio.run(measure(address, server.pid, url))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
