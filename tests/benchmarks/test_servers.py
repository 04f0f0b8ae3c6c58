"""The servers of a benchmark run are started once, and end with the process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

_CHILD = """
import json, pathlib, tempfile
from benchmarks import servers
from benchmarks.plan import Plan

folder = pathlib.Path(tempfile.gettempdir()) / "run" / "1"
first, second = Plan("one", folder), Plan("two", folder)
assert servers.postgres(first) is servers.postgres(second)
assert servers.redis(first) is servers.redis(second)
urls = [servers.URLS[name](plan) for name in servers.URLS for plan in (first, second)]
servers.postgres_connection(first).execute("SELECT 1")
servers.redis_client(first).ping()
ports = servers.postgres(first).port, servers.redis(first).port
print(json.dumps([urls, str(servers.postgres(first).folder), ports]))
"""


@pytest.fixture(scope="module")
def ended_run() -> tuple[list[str], Path, list[int]]:
    done = subprocess.run([sys.executable, "-c", _CHILD], check=True, capture_output=True, text=True, timeout=240)
    urls, folder, ports = json.loads(done.stdout)
    return urls, Path(folder), ports


def test_every_measure_has_a_well_of_its_own(ended_run: tuple[list[str], Path, list[int]]):
    shared = [url for url in ended_run[0] if url != "memory://"]
    assert len(shared) == len(set(shared)) == 6


def test_nothing_of_a_run_is_left(ended_run: tuple[list[str], Path, list[int]]):
    _, folder, ports = ended_run
    assert not folder.exists()
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
