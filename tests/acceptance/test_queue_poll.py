"""Word of a new item can get lost: whoever serves the queue looks by itself from time to time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.queue_urls import SHARED_STORES
from tests.support.store_urls import url_of

from stepwell import Stepwell, workflow
from stepwell.queue.dispatcher import POLL_SECONDS, Dispatcher
from stepwell.testing.store_access import store_under

WAIT = 60


@workflow(name="poll.echo")
async def echo(number: int) -> int:
    return number


def deaf(wake: Callable[[str], None]) -> Callable[[], None]:
    """Listens to nothing."""
    return lambda: None


@pytest.mark.parametrize("store", SHARED_STORES)
def test_item_whose_notification_was_lost_is_found_by_the_poll(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, store: str
):
    """E5: asked for by another process, and no word of it comes."""
    assert POLL_SECONDS == 5
    monkeypatch.setitem(Dispatcher.__init__.__kwdefaults__, "poll_seconds", 0.1)  # so that the tests do not wait for a poll
    url = url_of(store, request)
    with Stepwell(url, worker=False) as asking:
        monkeypatch.setattr(type(store_under(asking)), "listen", lambda _, wake: deaf(wake))
        with Stepwell(url) as serving:
            assert serving.enqueue(echo, 0).result(WAIT) == 0
            items: list[Any] = [asking.enqueue(echo, number) for number in range(1, 4)]
            assert [item.result(WAIT) for item in items] == [1, 2, 3]
