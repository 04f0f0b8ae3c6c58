"""A tier's ``state_bytes`` on Redis: the room that a write was planned with may be gone when its script runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults.hooks import at
from tests.support.redis_server import RedisServer, RedisSite

from stepwell.clock import FakeClock
from stepwell.errors import LimitExceeded
from stepwell.fault_points import armed
from stepwell.model.commit import StateBatch
from stepwell.testing.conformance.queue_limits import MOST, OWN, TALK, held, limit, put
from stepwell.testing.conformance.samples import SampleExecution, landed, refused, write


@pytest.fixture
def site(redis_server: RedisServer, redis_url: str) -> Iterator[RedisSite]:
    site = RedisSite(redis_server, redis_url, FakeClock())
    yield site
    site.close()


def test_room_that_another_took_meanwhile_is_not_taken_twice(site: RedisSite) -> None:
    """Planned beside each other in different scopes; the script finds more held than the plan knew, and the plan is made anew."""
    other = site.open()
    limit(site.store, MOST)
    with armed(at("store.before_commit", 1, lambda: landed(write(other, StateBatch((put("b", 60, TALK),)))))):
        refused(write(site.store, StateBatch((put("a", 60, OWN),))), LimitExceeded)
    assert held(site.store) == 60


def test_commit_whose_room_another_took_meanwhile_lands_nowhere(site: RedisSite) -> None:
    other, execution = site.open(), SampleExecution(site.store)
    limit(site.store, MOST)
    with armed(at("store.before_commit", 1, lambda: landed(write(other, StateBatch((put("b", 60, TALK),)))))):
        refused(write(site.store, execution.creation(ops=(put("a", 60, OWN),))), LimitExceeded)
    assert site.store.head(execution.id) is None
    landed(write(site.store, execution.creation(ops=(put("a", 40, OWN),))))
    assert held(site.store) == MOST
