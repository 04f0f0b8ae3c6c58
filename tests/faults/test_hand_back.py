"""Handing back while the store does not answer for a moment: nobody has to wait for the end of a lease (T10, T41, T42)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import Child
from tests.faults.worker_program import held, left
from tests.support.outages import Outage, outage_of
from tests.support.proxy import Proxy, Verdict
from tests.support.store_urls import url_of

from stepwell import Stepwell
from stepwell.testing.store_access import store_under

WAIT = 60
LONG = 600
"""A lease that nobody waits for."""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    """Where several processes can work."""
    return request.param


@pytest.fixture
def outage(store: str, request: pytest.FixtureRequest) -> Iterator[Outage]:
    with outage_of(store, request) as made:
        yield made


@pytest.fixture
def url(store: str, outage: Outage, request: pytest.FixtureRequest) -> str:
    """The same place as others see it."""
    return url_of(store, request)


def worker(url: str, grace_seconds: float = LONG) -> Child:
    child = Child("hand_back_worker", url, LONG, grace_seconds)
    hear(child, "ready")
    return child


def hear(child: Child, word: str) -> None:
    """Wait until a child says something."""
    while (line := child.hear()) != word:
        assert line, f"the child ended, and did not say {word!r}"


def head(well: Any, execution_id: str) -> Any:
    return store_under(well).head(execution_id)


def rests(well: Stepwell, execution_id: str) -> int:
    """How often an execution was handed back."""
    changes = [each for receipt in well.receipts(execution_id) for each in receipt.mutations]
    return sum("WAITING" in str(change) for change in changes)


def test_step_that_ends_while_the_store_is_away_is_handed_back_when_it_is_back(url: str, outage: Outage, tmp_path: Path) -> None:
    """T10, T42: SIGTERM, and then the output of the last step meets no store."""
    with Stepwell(url, worker=False) as well:
        run = well.start(held, str(tmp_path), execution_id="h")
        with worker(outage.url) as first:
            hear(first, "entered")
            first.signal(signal.SIGTERM)
            hear(first, "stopping")
            with outage:
                (tmp_path / "release").touch()
                hear(first, "again")
            assert first.end() == 0
        assert (head(well, "h").holder, head(well, "h").claims, rests(well, "h")) == (None, 0, 1)
        with worker(url) as second:
            assert run.result(WAIT) == second.pid
    assert left(tmp_path, "noted") == ["noted after"]


def test_step_that_does_not_end_is_left_when_the_store_is_back(url: str, outage: Outage, tmp_path: Path) -> None:
    """T42: no grace is left, and the store is away: it is asked again until it takes the execution back."""
    with Stepwell(url, worker=False) as well:
        run = well.start(held, str(tmp_path), execution_id="h")
        with worker(outage.url, grace_seconds=0) as first:
            hear(first, "entered")
            with outage:
                first.signal(signal.SIGTERM)
                hear(first, "again")
            first.end()
        assert (head(well, "h").holder, head(well, "h").claims, rests(well, "h")) == (None, 0, 1)
        (tmp_path / "release").touch()
        with worker(url) as second:
            assert run.result(WAIT) == second.pid


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_hand_back_whose_reply_was_lost_is_looked_up_and_not_made_twice(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """T03, T42: it has landed, but nobody can say so for a while. The next who asks is told."""
    server, url = request.getfixturevalue(f"{store}_server"), url_of(store, request)
    in_vain = threading.Event()
    with Stepwell(url, worker=False) as well, Proxy(server.port) as proxy:
        run = well.start(held, str(tmp_path), execution_id="h")
        with worker(url.replace(f":{server.port}/", f":{proxy.port}/"), grace_seconds=0) as first:
            hear(first, "entered")

            def judge(data: bytes) -> Verdict:
                if in_vain.is_set():
                    return Verdict.CUT
                if b"WAITING" not in data:
                    return Verdict.PASS
                in_vain.set()
                return Verdict.SWALLOW

            proxy.on_request = judge
            first.signal(signal.SIGTERM)
            hear(first, "again")
            assert in_vain.is_set()
            proxy.on_request = lambda _: Verdict.PASS
            first.end()
        assert (head(well, "h").holder, rests(well, "h")) == (None, 1)
        (tmp_path / "release").touch()
        with worker(url) as second:
            assert run.result(WAIT) == second.pid
        assert well.verify("h").ok
