"""Items of which no word comes, since another dispatcher looked at the same moment: whoever has room finds them all the same."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from tests.support.postgres_server import PostgresServer
from tests.support.queue_urls import SHARED_STORES
from tests.support.store_urls import url_of

from stepwell import Stepwell, workflow
from stepwell.clock import SystemClock
from stepwell.contract.store import Store
from stepwell.model.limits import Limits
from stepwell.queue.dispatcher import Dispatcher
from stepwell.stores.url import store_of
from stepwell.testing.conformance.samples import claim_items

WAIT = 60


@workflow(name="overlooked.echo")
async def echo(number: int) -> int:
    return number


@pytest.fixture(autouse=True)
def _no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody finds anything by the poll alone."""
    monkeypatch.setitem(Dispatcher.__init__.__kwdefaults__, "poll_seconds", 3_600)


def opened(url: str) -> Store:
    store = store_of(url, SystemClock(), Limits())
    store.open()
    return store


def before_looking_ahead(store: Store, call: Callable[[], None]) -> None:
    """Have something happen between a dispatcher's claim and its look at what time alone will bring."""
    look = store.next_ready_ms

    def next_ready_ms() -> int | None:
        call()
        return look()

    store.next_ready_ms = next_ready_ms  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", SHARED_STORES)
def test_delayed_item_that_a_claim_of_other_workflows_has_shown_is_started(request: pytest.FixtureRequest, kind: str) -> None:
    """Its time comes after the claim of the one that could start it, and before that one looks for the next delayed item."""
    url = url_of(kind, request)
    other, store = opened(url), store_of(url, SystemClock(), Limits())

    def claim_others() -> None:
        due = other.next_ready_ms()
        while due is not None and other.now_ms() < due:
            pass
        assert claim_items(other, workflows=("overlooked.other",)) == []

    before_looking_ahead(store, claim_others)
    with Stepwell(store) as well:
        assert well.enqueue(echo, 1, delay=0.2).result(WAIT) == 1
    other.close()


def test_item_whose_workspace_another_claimer_had_locked_is_started(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, postgres_schema: str
) -> None:
    """The other one may have taken as much as it had room for, and leave the rest."""
    url: str = request.getfixturevalue("postgres_url")
    store = store_of(url, SystemClock(), Limits())
    with psycopg.connect(postgres_server.dsn) as session, Stepwell(url, worker=False) as asking:
        session.execute(f"SELECT 1 FROM {postgres_schema}.workspaces FOR NO KEY UPDATE")
        item = asking.enqueue(echo, 1)
        before_looking_ahead(store, session.rollback)
        with Stepwell(store):
            assert item.result(WAIT) == 1
