"""Where the queue is tested: the stores that have one, each as a URL on an empty place of the test's own."""

from __future__ import annotations

import pytest
from tests.support.places import url_of

__all__ = ["QUEUE_STORES", "queue_url"]

QUEUE_STORES = ("memory", "sqlite", "postgres")


@pytest.fixture(params=QUEUE_STORES)
def queue_url(request: pytest.FixtureRequest) -> str:
    """A place for a well with a queue."""
    return url_of(request.param, request)
