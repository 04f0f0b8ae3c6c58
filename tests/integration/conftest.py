"""Stores on real servers, opened by URL and closed at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.support.redis_server import RedisServer, RedisSite

from stepwell.clock import FakeClock
from stepwell.model.limits import Limits
from stepwell.stores.postgres.store import PostgresStore

OpenUrl = Callable[..., PostgresStore]


@pytest.fixture
def open_url() -> Iterator[OpenUrl]:
    """Opens PostgreSQL stores, with limits of their own if some are given."""
    opened: list[PostgresStore] = []

    def open_one(url: str, **limits: int) -> PostgresStore:
        opened.append(PostgresStore(url, FakeClock(), Limits(**limits)))
        opened[-1].open()
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def postgres_store(open_url: OpenUrl, postgres_url: str) -> PostgresStore:
    """A store on the test's schema: for modules that say ``store = postgres_store``."""
    return open_url(postgres_url)


@pytest.fixture
def other_postgres_store(open_url: OpenUrl, postgres_url: str) -> PostgresStore:
    """A second store on the same schema, as another process would open it."""
    return open_url(postgres_url)


@pytest.fixture
def site(redis_server: RedisServer, redis_url: str, clock: FakeClock) -> Iterator[RedisSite]:
    """A Redis store with a look behind it."""
    site = RedisSite(redis_server, redis_url, clock)
    yield site
    site.close()
