"""Workers that are told to stop, and whose store goes away and comes back (T41, T42)."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import Child
from tests.faults.worker_program import held, left, many, waits
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy, Verdict
from tests.support.store_urls import url_of

from stepwell import Status, Stepwell
from stepwell.testing.store_access import store_under

WAIT = 60
LONG = 600


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Where several processes can work."""
    return url_of(request.param, request)


def worker(url: str, grace_seconds: float = 30) -> Child:
    """A worker that is ready, with leases that nobody waits for."""
    child = Child("worker_program", url, LONG, grace_seconds)
    assert child.hear() == "ready"
    return child


def test_step_that_ends_in_time_is_recorded_and_the_rest_handed_back(url: str, tmp_path: Path) -> None:
    """T42: SIGTERM during a step; what it gave is kept, and another worker goes on after it, without waiting for a lease."""
    with Stepwell(url, worker=False) as well:
        run = well.start(held, str(tmp_path), execution_id="h")
        with worker(url) as first:
            assert first.hear() == "entered"
            first.signal(signal.SIGTERM)
            (tmp_path / "release").touch()
            assert [first.hear(), first.hear()] == ["stopping", "ended"]
            assert first.end() == 0
            pid = first.pid
        head = _head(well, "h")
        assert (head.holder, head.claims) == (None, 0)
        with worker(url):
            assert run.result(WAIT) == pid
    assert len(left(tmp_path, "entered")) == 1
    assert left(tmp_path, "noted") == ["noted after"]


@pytest.mark.parametrize("how", ["no grace", "second signal"])
def test_step_that_does_not_end_is_left_and_its_execution_handed_back_at_once(url: str, tmp_path: Path, how: str) -> None:
    """T42: long before its lease is over, and no claim is used up, so that many deployments do not look like crashes."""
    with Stepwell(url, worker=False) as well:
        run = well.start(held, str(tmp_path), execution_id="h")
        for _ in range(2):
            with worker(url, grace_seconds=0 if how == "no grace" else LONG) as child:
                assert child.hear() == "entered"
                child.signal(signal.SIGTERM)
                assert child.hear() == "stopping"
                if how == "second signal":
                    child.signal(signal.SIGTERM)
                _wait_until(lambda: _head(well, "h").holder is None)
                child.end()
            assert _head(well, "h").claims == 0
        (tmp_path / "release").touch()
        with worker(url) as last:
            assert run.result(WAIT) == last.pid
    assert run.execution_id == "h"
    assert left(tmp_path, "noted") == ["noted after"]


def test_waiting_executions_are_handed_back_and_taken_up_elsewhere(url: str, tmp_path: Path) -> None:
    """T42: one that waits is in nobody's way."""
    with Stepwell(url, worker=False) as well:
        with worker(url) as first:
            run = well.start(waits, str(tmp_path))
            _wait_until(lambda: left(tmp_path, "noted before") != [])
            first.signal(signal.SIGTERM)
            assert first.end() == 0
        run.signal("go", "on")
        with worker(url):
            assert run.result(WAIT) == "on"


def test_killed_at_the_end_of_its_grace_it_is_a_crash_like_any_other(url: str, tmp_path: Path) -> None:
    """T42: SIGKILL after SIGTERM; the lease ends, and another goes on."""
    with Stepwell(url, worker=False) as well:
        run = well.start(held, str(tmp_path), execution_id="h")
        with Child("worker_program", url, 1, LONG) as first:
            assert [first.hear(), first.hear()] == ["ready", "entered"]
            first.signal(signal.SIGTERM)
            first.kill()
        (tmp_path / "release").touch()
        with Child("worker_program", url, 1) as second:
            assert run.result(WAIT) == second.pid


def test_worker_takes_up_its_work_when_its_database_is_back(
    postgres_server: PostgresServer, fresh_postgres_url: str, tmp_path: Path
) -> None:
    """T41: away, flapping, and back: consumption resumes by itself, and health says so meanwhile."""
    schema = fresh_postgres_url.rpartition("schema=")[2]
    with Stepwell(fresh_postgres_url, worker=False) as well, Proxy(postgres_server.port) as proxy:
        through = Stepwell(postgres_server.url(schema, port=proxy.port), lease_seconds=2)
        try:
            assert well.start(many, [str(tmp_path), "before"]).result(WAIT) == "before"
            waiting = well.start(waits, str(tmp_path))
            _wait_until(lambda: waiting.status() == Status.WAITING)
            for _ in range(3):
                proxy.on_request = lambda _: Verdict.CUT
                proxy.cut()
                assert not through.health().is_ok
                proxy.on_request = lambda _: Verdict.PASS
            in_vain: list[bytes] = []
            proxy.on_request = lambda data: in_vain.append(data) or Verdict.CUT
            proxy.cut()
            waiting.signal("go", "on")
            during = well.start(many, [str(tmp_path), "during"])
            _wait_until(lambda: len(in_vain) > 3)  # more than one poll comes to nothing
            assert (during.status(), waiting.status()) == (Status.PENDING, Status.WAITING)
            proxy.on_request = lambda _: Verdict.PASS
            assert during.result(WAIT) == "during"
            assert waiting.result(WAIT) == "on"
            _wait_until(lambda: through.health().is_ok)
        finally:
            proxy.on_request = lambda _: Verdict.PASS
            through.close()


def _head(well: Any, execution_id: str) -> Any:
    return store_under(well).head(execution_id)


def _wait_until(is_so: Any) -> None:
    """Look again and again until something is so; the test's own time limit ends it."""
    while not is_so():
        threading.Event().wait(0.005)
