"""Fixtures for all tests. ``store`` and its companions run a test once on each store of ``tests.support.stores``."""

from __future__ import annotations

import pytest
from tests.support.redis_server import redis_server, redis_url
from tests.support.stores import STORES

from stepwell.testing.conformance.fixtures import MakeStore, clock, execution, group, open_store, other_store, store

__all__ = ["clock", "execution", "group", "open_store", "other_store", "redis_server", "redis_url", "store"]


@pytest.fixture(params=STORES)
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    """Makes stores of one kind, all on the same place within a test."""
    return STORES[request.param](request)
