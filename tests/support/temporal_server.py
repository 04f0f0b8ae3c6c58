"""Real Temporal servers for tests: on loopback and free ports, in memory unless a file is named, ended by their pid.

Whatever happens to the test process, a keeper beside it sees its end, and ends the server.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

__all__ = ["EXAMPLES", "TemporalServer", "temporal_server"]

EXAMPLES = 8
"""How many namespaces there are for programs that run side by side, each with a store of its own."""
_ROOMS = 6
"""How many there are of each of the others: the fixtures of a module are made again when pytest-xdist comes back to it."""

_START_SECONDS = 60.0

# Reads its input to the end, which comes when the test process closes it or dies, then ends the server.
_KEEPER = """
import os, signal, sys
pid = 0
for line in sys.stdin:
    pid = int(line)
if pid:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
"""


class TemporalServer:
    """A development server. With a file it can be killed and started again on the same port and data.

    ``namespaces`` are those beside ``default``, ``attributes`` search attributes to register, and ``settings`` those of the
    server's dynamic configuration.
    """

    def __init__(
        self, file: Path | None = None, *, namespaces: tuple[str, ...] = (), attributes: tuple[str, ...] = (), **settings: int
    ) -> None:
        self._file, self._attributes, self._namespaces = file, attributes, namespaces
        self._used: Counter[str] = Counter()
        self._settings = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._ports = _free_ports(3)

    @property
    def address(self) -> str:
        """Host and port for clients."""
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> TemporalServer:
        """Start the server, and wait until it answers."""
        # In a session of its own: a signal to the whole group of the tests must leave it to end the server.
        self._keeper = subprocess.Popen([sys.executable, "-I", "-S", "-c", _KEEPER], stdin=subprocess.PIPE, start_new_session=True)
        self.launch()
        return self

    def launch(self) -> None:
        """Start the server on its ports and data."""
        port, http, metrics = map(str, self._ports)
        words = ["--ip", "127.0.0.1", "--port", port, "--http-port", http, "--metrics-port", metrics, "--log-level", "error"]
        if self._file is not None:
            words += ["--db-filename", str(self._file)]
        words += [word for namespace in self._namespaces for word in ("--namespace", namespace)]
        words += [word for attribute in self._attributes for word in ("--search-attribute", attribute)]
        words += [word for setting in self._settings for word in ("--dynamic-config-value", setting)]
        program = str(Path(sys.executable).parent / "temporal")
        command = [program, "server", "start-dev", "--headless", *words]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{self._process.pid}\n".encode())
        self._keeper.stdin.flush()
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        from temporalio.client import Client

        async def is_ready() -> bool:
            client = await Client.connect(self.address)
            return await client.service_client.check_health()

        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                if asyncio.run(is_ready()):
                    return
            except RuntimeError:
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                raise RuntimeError(f"the Temporal server did not start:\n{self._log.read()[-2000:].decode(errors='replace')}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End the server at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the server, and leave nothing."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait()
        self._log.close()

    def fresh_namespace(self, kind: str) -> str:
        """Return a namespace of a kind in which nothing has run yet."""
        self._used[kind] += 1
        return f"{kind}-{self._used[kind] - 1}"

    def __enter__(self) -> TemporalServer:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    """One server in memory for all tests of this process, with namespaces for stores that have one of their own."""
    counts = {"example": EXAMPLES, "patterns": _ROOMS, "differences": _ROOMS, "faults": _ROOMS}
    with TemporalServer(namespaces=tuple(f"{kind}-{number}" for kind, most in counts.items() for number in range(most))) as server:
        yield server
