"""The HTTP server in a process of its own: pages of the dashboard, streams of events, and a start beside one in process."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.measurement import Measurement, Target, at_most
from benchmarks.plan import Plan
from benchmarks.rounds import in_turns, median_ratio
from stepwell import AsyncStepwell, step, workflow
from stepwell.flow.function import registered_alone

__all__ = ["MEASURES"]

_CODE = """
from stepwell import workflow


@workflow(name="benchmark-nothing")
async def nothing(number: int = 0) -> int:
    return number
"""
_AT_ONCE = 200


class _Server:
    """`stepwell serve` on a store, with a token and a session of the dashboard."""

    def __init__(self, url: str, folder: Path) -> None:
        (folder / "served.py").write_text(_CODE)
        command = [sys.executable, "-m", "stepwell", "serve", "served.py", "--port", "0", "--json", "--url", url]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        link = urlsplit(json.loads(self.process.stdout.readline())["url"])
        self.host, self.port = link.hostname or "", link.port or 0
        self.connection = HTTPConnection(self.host, self.port)
        self.token = asyncio.run(_token(url))
        _, head, _ = self.ask("GET", f"{link.path}?{link.query}")
        self.cookie = re.search(r"stepwell_session=[^;]+", head["set-cookie"])[0]  # type: ignore[index]

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
        """Send a request, and return the status, headers and body of the reply."""
        headers = {"Accept-Encoding": "gzip"}
        if path.startswith("/api/"):
            headers["Authorization"] = f"Bearer {self.token}"
        elif hasattr(self, "cookie"):
            headers["Cookie"] = self.cookie
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, {**headers, **({"Content-Type": "application/json"} if data else {})})
        reply = self.connection.getresponse()
        found = reply.status, {key.lower(): value for key, value in reply.getheaders()}, reply.read()
        assert found[0] < 400, (path, found)
        return found

    def milliseconds(self, path: str, rounds: int) -> list[float]:
        """Return how long each of some equal reads took, after one that is not counted."""
        took: list[float] = []
        for number in range(rounds + 1):
            began = time.perf_counter()
            self.ask("GET", path)
            if number:
                took.append((time.perf_counter() - began) * 1000)
        return took

    @property
    def megabytes(self) -> float:
        """The resident memory of the server."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) / 1024  # type: ignore[index]

    def close(self) -> None:
        """End the server."""
        self.connection.close()
        self.process.terminate()
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()


async def _token(url: str) -> str:
    async with AsyncStepwell(url, worker=False) as well:
        return (await well.access.create_token("benchmark", role="operator", workspace="default")).text


@contextmanager
def _serving(url: str, folder: Path) -> Generator[_Server]:
    server = _Server(url, folder)
    try:
        yield server
    finally:
        server.close()


def pages(plan: Plan) -> Iterator[Measurement]:
    """Measure the first page of many runs: of the API, and of the dashboard."""
    count = plan.size(100_000, 200)
    url = f"sqlite:///{plan.folder}/pages.db?synchronous=NORMAL"
    plan.say(f"{count:,} runs")
    asyncio.run(_create(url, count))
    with _serving(url, plan.folder) as server:
        for name, path, most in (("api", "/api/v1/runs?limit=50", 100), ("dashboard", "/runs", 100)):
            took = median(server.milliseconds(path, plan.rounds))
            yield Measurement(f"{plan.name}.{name}", took, "ms", target=at_most(f"first page of {count:,} runs, ms", took, most))


async def _create(url: str, count: int) -> None:
    async with AsyncStepwell(url, worker=False) as well:
        for first in range(0, count, _AT_ONCE):
            await asyncio.gather(*(well.create(f"run-{number}") for number in range(first, min(first + _AT_ONCE, count))))


def long_run(plan: Plan) -> Iterator[Measurement]:
    """Measure opening the page of a run with many steps."""
    count = plan.size(5_000, 50)
    url = f"sqlite:///{plan.folder}/long.db?synchronous=NORMAL"
    plan.say(f"a run of {count:,} steps")
    with registered_alone():
        asyncio.run(_run_steps(url, count))
    with _serving(url, plan.folder) as server:
        for name, path in (("timeline", "/runs/long"), ("steps", "/runs/long?tab=steps"), ("state", "/runs/long/state")):
            took = median(server.milliseconds(path, plan.rounds))
            target = at_most(f"page of a run of {count:,} steps, ms", took, 1_000)
            yield Measurement(f"{plan.name}.{name}", took, "ms", target=target)


async def _run_steps(url: str, count: int) -> None:
    @step(name="benchmark-step")
    async def one(number: int) -> int:
        return number

    @workflow(name="benchmark-long")
    async def many() -> int:
        for first in range(0, count, _AT_ONCE):
            await asyncio.gather(*(one(number) for number in range(first, min(first + _AT_ONCE, count))))
        return count

    async with AsyncStepwell(url) as well:
        run = await well.start(many, execution_id="long")
        await run.result(timeout="10m")


def assets(plan: Plan) -> Iterator[Measurement]:
    """Measure what a browser fetches once, packed."""
    from stepwell.web.dashboard.assets import ASSETS, asset_url

    url = f"sqlite:///{plan.folder}/assets.db"
    with _serving(url, plan.folder) as server:
        sizes = {name: len(server.ask("GET", asset_url("", name))[2]) for name in ASSETS}
        _, head, body = server.ask("GET", "/runs")
    total = sum(sizes.values()) / 1024
    page = len(body if head.get("content-encoding") == "gzip" else gzip.compress(body)) / 1024
    note = ", ".join(f"{name} {size / 1024:.1f}" for name, size in sizes.items())
    yield Measurement(f"{plan.name}.files", total, "KiB", target=at_most("files, gzip, KiB", total, 40), note=note)
    yield Measurement(f"{plan.name}.page", page, "KiB", note="an empty list of runs, gzip")


def streams(plan: Plan) -> Iterator[Measurement]:
    """Measure reads while many clients follow a workspace whose runs change."""
    clients, seconds, rate = plan.size(1_000, 20), plan.size(20, 2), plan.size(200, 50)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most_files, 8_192), most_files))
    url = f"sqlite:///{plan.folder}/streams.db?synchronous=NORMAL"
    with _serving(url, plan.folder) as server:
        server.ask("POST", "/api/v1/runs", {"workflow": "benchmark-nothing"})
        before = server.megabytes
        alone, _, _ = asyncio.run(_read_beside(server, 0, seconds, rate, plan))
        took, middle, events = asyncio.run(_read_beside(server, clients, seconds, rate, plan))
        after = server.megabytes
    p99, raw = (sorted(each)[int(len(each) * 0.99) - 1] for each in (took, alone))
    flat = after <= middle * 1.05 + 2
    yield Measurement(
        f"{plan.name}.p99",
        p99,
        "ms",
        raw,
        "the same reads without streams",
        p99 / raw,
        target=at_most(f"{rate} reads/s beside {clients:,} streams, p99 ms", p99, 50),
        note=f"{len(took):,} reads in {seconds} s, p50 {median(took):.1f} ms; {events:,} events were received",
    )
    growth = f"{before:.0f} MB without streams, {middle:.0f} MB when all were open"
    yield Measurement(f"{plan.name}.memory", after, "MB", target=Target("memory stays flat", flat), note=growth)


async def _read_beside(server: _Server, clients: int, seconds: float, rate: int, plan: Plan) -> tuple[list[float], float, int]:
    received = 0
    tasks: set[asyncio.Task[None]] = set()
    opened = asyncio.Semaphore(0)

    async def follow() -> None:
        nonlocal received
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(_request(server, "/api/v1/events", "text/event-stream"))
        await reader.readuntil(b"event: snapshot")
        opened.release()
        try:
            while chunk := await reader.read(65_536):
                received += chunk.count(b"event: ")
        finally:
            writer.close()

    for first in range(0, clients, 50):
        tasks |= {asyncio.ensure_future(follow()) for _ in range(min(50, clients - first))}
        for _ in range(min(50, clients - first)):
            await opened.acquire()
    plan.say(f"{clients:,} streams are open")
    middle = server.megabytes
    took: list[float] = []

    async def read(number: int) -> None:
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(_request(server, "/api/v1/runs?limit=20", "application/json"))
        await reader.read()
        took.append((time.perf_counter() - began) * 1000)
        writer.close()

    async def change() -> None:
        while True:  # one change a second reaches every stream
            await asyncio.to_thread(server.ask, "POST", "/api/v1/runs", {"workflow": "benchmark-nothing"})
            await asyncio.sleep(1)

    changing = asyncio.ensure_future(change())
    reads: set[asyncio.Task[None]] = set()
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        reads.add(asyncio.ensure_future(read(number)))
    await asyncio.gather(*reads)
    for task in (changing, *tasks):
        task.cancel()
    await asyncio.gather(changing, *tasks, return_exceptions=True)
    return took, middle, received


def _request(server: _Server, path: str, accept: str) -> bytes:
    lines = (f"GET {path} HTTP/1.1", f"Host: {server.host}", f"Authorization: Bearer {server.token}", f"Accept: {accept}")
    return "\r\n".join((*lines, "Connection: close", "", "")).encode()


def start(plan: Plan) -> Iterator[Measurement]:
    """Measure a start over HTTP beside one in process, each on the same kind of store, one after another."""
    count = plan.size(300, 10)
    url = f"sqlite:///{plan.folder}/start.db?synchronous=NORMAL"
    with registered_alone(), _serving(url, plan.folder) as server:
        flow = workflow(name="benchmark-nothing")(_nothing)

        def over_http() -> float:
            began = time.perf_counter()
            for _ in range(count):
                server.ask("POST", "/api/v1/runs", {"workflow": "benchmark-nothing"})
            return (time.perf_counter() - began) / count * 1000

        def in_process() -> float:
            return asyncio.run(_start_here(f"sqlite:///{plan.folder}/here.db?synchronous=NORMAL", flow, count))

        ours, raws = in_turns(plan.rounds, over_http, in_process)
    yield Measurement(
        f"{plan.name}.api", median(ours), "ms", median(raws), "well.start in process, with its worker", median_ratio(ours, raws)
    )


async def _nothing(number: int = 0) -> int:
    return number


async def _start_here(url: str, flow: Any, count: int) -> float:
    async with AsyncStepwell(url) as well:
        await well.start(flow)
        began = time.perf_counter()
        for _ in range(count):
            await well.start(flow)
        return (time.perf_counter() - began) / count * 1000


MEASURES = {"pages": pages, "long_run": long_run, "assets": assets, "streams": streams, "start": start}
