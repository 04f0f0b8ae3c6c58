"""Fixtures of the crash tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.callers import go_by_the_given_clock
from tests.faults.crash_case import ACTS, Picture, picture

STORES = ("memory", "sqlite")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Picture]]:
    """For each store, every act as it goes without faults."""
    folder = tmp_path_factory.mktemp("pictures")
    return {store: [picture(act, store, folder) for act in ACTS.values()] for store in STORES}


@pytest.fixture
def given_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commits on a server have the times of the caller's clock: then their digests are those of memory."""
    go_by_the_given_clock(monkeypatch.setattr)


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A folder in memory where there is one: for tests that open many files and need no disk of their own to fail."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)
