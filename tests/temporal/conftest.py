"""Fixtures of the tests on a real Temporal server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.temporal_server import TemporalServer, temporal_server

from stepwell import Stepwell, TemporalWorker

__all__ = ["temporal_server"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/well.db"


@pytest.fixture
def well(url: str) -> Iterator[Stepwell]:
    """A well without a worker of Stepwell's own."""
    with Stepwell(url, worker=False) as well:
        yield well


@pytest.fixture
def worker(url: str, temporal_server: TemporalServer) -> Iterator[TemporalWorker]:
    with TemporalWorker(url, address=temporal_server.address, grace_seconds=1, lease_seconds=2, sweep_seconds=1) as worker:
        yield worker
