"""Where the queue is tested: the stores that have one, each as a URL on an empty place of the test's own."""

from __future__ import annotations

import pytest
from tests.support.store_urls import url_of

__all__ = ["CLOCKED_STORES", "QUEUE_STORES", "SHARED_STORES", "clocked_url", "queue_url", "shared_url"]

CLOCKED_STORES = ("memory", "sqlite")
"""Those whose clock is the one that they are given; others have their own, and it cannot be made to stand still."""

QUEUE_STORES = (*CLOCKED_STORES, "postgres", "redis")

SHARED_STORES = ("sqlite", "postgres", "redis")
"""Those that many processes can work on: every fault of the queue is tried on each of them."""


@pytest.fixture(params=QUEUE_STORES)
def queue_url(request: pytest.FixtureRequest) -> str:
    """A place for a well with a queue."""
    return url_of(request.param, request)


@pytest.fixture(params=CLOCKED_STORES)
def clocked_url(request: pytest.FixtureRequest) -> str:
    """A place for a well with a queue, in a time that the test moves."""
    return url_of(request.param, request)


@pytest.fixture(params=SHARED_STORES)
def shared_url(request: pytest.FixtureRequest) -> str:
    """A place for many processes with a queue."""
    return url_of(request.param, request)
