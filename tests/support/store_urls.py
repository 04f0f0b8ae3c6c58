"""Where a well can be: the URL of each store of ``tests.support.stores``, on an empty place of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.stores import STORES

__all__ = ["on_servers", "on_shared_stores", "shared_url", "url", "url_of"]

on_shared_stores = pytest.mark.parametrize("url", ["sqlite", "postgres", "redis"], indirect=True)
"""Run a test that uses ``url`` on those stores only that two wells, or two processes, can open."""


on_servers = pytest.mark.parametrize("shared_url", ["postgres", "redis"], indirect=True)
"""Run a test that uses ``shared_url`` on the stores that need a server."""


@pytest.fixture
def shared_url(request: pytest.FixtureRequest) -> str:
    """Where a well is that several processes open: SQLite, unless the test is run ``on_servers``."""
    return url_of(getattr(request, "param", "sqlite"), request)


def url_of(name: str, request: pytest.FixtureRequest) -> str:
    """The URL of a store; those that need a server have a fixture that is called after them."""
    if name == "memory":
        return "memory://"
    if name == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        # No test that shares this place is about a loss of power, and none needs to wait for the disk.
        return f"sqlite:///{folder}/well.db?synchronous=NORMAL"
    return request.getfixturevalue(f"{name}_url")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> str:
    """Where the well is. Opened twice, it is the same well, unless it is one in memory."""
    return url_of(request.param, request)
