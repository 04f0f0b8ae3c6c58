"""Workers and their leases: who takes over from whom, and that nobody else does (T30 to T33).

These are real processes, which a busy machine may stop for a while; the times themselves are tested in
``tests/simulation/test_lease_times.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import Child
from tests.faults.worker_program import held, left, many, spins, stuck
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy, Verdict
from tests.support.store_urls import url_of

from stepwell import Stepwell, step, workflow
from stepwell.model.commit import Claim
from stepwell.testing.store_access import store_under, write_unit_or_raise

WAIT = 60
LONG = 600


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Where several processes can work."""
    return url_of(request.param, request)


def worker(url: str, lease_seconds: float = 1) -> Child:
    """A worker that is ready."""
    child = Child("worker_program", url, lease_seconds)
    assert child.hear() == "ready"
    return child


def test_killed_workers_step_is_made_again_when_its_lease_is_over(url: str, tmp_path: Path) -> None:
    """T30, T33: its successor on the same host, started at once, is somebody else and still takes over; the key is the same."""
    with Stepwell(url, worker=False) as well:
        run = well.start(held, str(tmp_path), execution_id="h")
        with worker(url) as first:
            assert first.hear() == "entered"
            first.kill()
        dead = _head(well, "h")
        with worker(url) as second:
            assert second.hear() == "entered"
            _check_heirs([dead, _head(well, "h")])
            assert _head(well, "h").holder != dead.holder
            (tmp_path / "release").touch()
            assert run.result(WAIT) == second.pid
        assert [line.split()[3] for line in left(tmp_path, "entered")] == ["h:hold", "h:hold"]
        assert left(tmp_path, "noted") == ["noted after"]
        assert run.verify().ok


def test_dead_workers_executions_are_each_taken_by_one_of_many(url: str, tmp_path: Path) -> None:
    """T31: all of them see the same list of what is due; only the one whose claim lands runs it."""
    names = [f"m{number}" for number in range(60)]
    with Stepwell(url, worker=False) as well:
        runs = [well.start(many, [str(tmp_path), name], execution_id=name) for name in names]
        for name in names:
            write_unit_or_raise(well, Claim(name, "dead", 0.3))
        # Their own leases are long: one that a busy machine stops for a second is not dead.
        with worker(url, LONG), worker(url, LONG), Stepwell(url, lease_seconds=LONG):
            assert [run.result(WAIT) for run in runs] == names
    assert Counter(left(tmp_path)) == {f"noted {name}": 1 for name in names}


def test_worker_that_renews_is_never_rescued_however_long_its_step_takes(url: str, tmp_path: Path) -> None:
    """T32, T31: a step of many leases, while others look for work and one more starts up.

    Should the machine stop the worker for longer than its lease, another may have it; but then the lease was over.
    """
    with Stepwell(url, worker=False) as well, worker(url) as first:
        run = well.start(held, str(tmp_path), execution_id="h")
        assert first.hear() == "entered"
        heads, ends = [_head(well, "h")], dict[int, set[int]]()
        with worker(url) as second:
            while max(map(len, ends.values()), default=0) < 5:  # renewed four times, which takes more than a lease
                heads.append(_head(well, "h"))
                ends.setdefault(heads[-1].fence, set()).add(heads[-1].lease_until_ms)
                threading.Event().wait(0.05)
            (tmp_path / "release").touch()
            assert run.result(WAIT) in (first.pid, second.pid)
    _check_heirs(heads)
    if len(ends) == 1:
        assert len(left(tmp_path, "entered")) == 1


def test_worker_whose_loop_is_stuck_past_its_lease_keeps_it(url: str, tmp_path: Path) -> None:
    """T32: a thread that the step cannot block renews the lease, so that nobody takes over; its output counts."""
    with Stepwell(url, worker=False) as well, worker(url) as first:
        run = well.start(stuck, str(tmp_path), execution_id="s")
        assert first.hear() == "entered"
        with worker(url):
            ends: set[int] = set()
            while len(ends) < 5:  # renewed four times, which takes more than a lease
                ends.add(_head(well, "s").lease_until_ms)
                threading.Event().wait(0.05)
            (tmp_path / "release").touch()
            assert run.result(WAIT) == first.pid
        assert len(left(tmp_path, "entered")) == 1
        assert run.verify().ok


def test_stopped_worker_that_wakes_up_writes_nothing(url: str, tmp_path: Path) -> None:
    """T32: paused past its lease in the middle of a step; its successor's output is the one that counts."""
    with Stepwell(url, worker=False) as well, worker(url) as first:
        run = well.start(held, str(tmp_path), execution_id="h")
        assert first.hear() == "entered"
        first.pause(url)
        with worker(url) as second:
            assert second.hear() == "entered"
            (tmp_path / "release").touch()
            assert run.result(WAIT) == second.pid
            first.signal(signal.SIGCONT)
            assert well.start(many, [str(tmp_path), "later"]).result(WAIT) == "later"
        assert run.state().get_step_output("hold").output == second.pid
        assert run.verify().ok


def test_process_of_a_step_ends_with_the_worker_that_started_it(tmp_path: Path) -> None:
    """T38: a killed worker leaves nobody behind who works for nothing."""
    url, spinning = f"sqlite:///{tmp_path}/well.db", tmp_path / "spinning"
    with Stepwell(url, worker=False) as well, worker(url) as first:
        well.start(spins, str(tmp_path))
        while not (spinning.exists() and spinning.read_text()):
            threading.Event().wait(0.01)
        first.kill()
        while Path(f"/proc/{spinning.read_text()}").exists():  # the test's own time limit ends it
            threading.Event().wait(0.01)


stopped, begun = threading.Event(), threading.Event()


@step
async def endless() -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        stopped.set()


@workflow
async def never_ends() -> None:
    await endless()


def test_worker_that_cannot_renew_stops_itself(postgres_server: PostgresServer, fresh_postgres_url: str) -> None:
    """T32: the database answers nothing any more. The step is ended though nobody says so, and nobody has taken over."""
    stopped.clear()
    begun.clear()
    schema = fresh_postgres_url.rpartition("schema=")[2]
    with Proxy(postgres_server.port) as proxy:
        through: Any = Stepwell(postgres_server.url(schema, port=proxy.port), lease_seconds=3)
        try:
            with Stepwell(fresh_postgres_url, worker=False) as well:
                run = well.start(never_ends)
                assert begun.wait(WAIT)
                proxy.on_request = lambda _: Verdict.HOLD
                head = _head(well, run.execution_id)
                assert stopped.wait(WAIT)
                assert _head(well, run.execution_id).fence == head.fence
        finally:
            proxy.on_request = lambda _: Verdict.PASS
            proxy.cut()
            through.drain(0)
            through.close()


def _head(well: Any, execution_id: str) -> Any:
    return store_under(well).head(execution_id)


def _check_heirs(heads: list[Any], lease_ms: int = 1000) -> None:
    """By the store's own times: whoever had the lease next asked for it when that of the last one was over."""
    for last, heir in itertools.pairwise(heads):
        assert heir.fence == last.fence or heir.lease_until_ms - lease_ms >= last.lease_until_ms
