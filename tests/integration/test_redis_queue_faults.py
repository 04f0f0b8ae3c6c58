"""The queue on Redis when things go wrong on the way: replies that are lost, writes that fail, a server that goes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from tests.faults.hooks import Boom, at
from tests.faults.queue_case import ACTS, RETRYABLE, prepare
from tests.support.proxy import Proxy, Verdict, at_match
from tests.support.redis_indexes import check_indexes
from tests.support.redis_server import RedisServer, RedisSite

from stepwell import CommitUnknown, Stepwell, StoreUnavailable, workflow
from stepwell.clock import FakeClock
from stepwell.fault_points import armed
from stepwell.model.commit import Seen, Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import Item, ItemQuery
from stepwell.stores.memory import MemoryStore
from stepwell.stores.redis.scripts import SCRIPTS
from stepwell.stores.redis.store import RedisStore

T = TypeVar("T")
WAIT = 60
SCRIPT_OF = {"enqueue": "enqueue", "bulk": "enqueue", "claim": "claim_items", "dispatch": "commit", "finish": "commit"}
SCRIPT_OF |= {"return": "return_item", "cancel": "cancel_item", "redrive": "redrive", "recover": "recover_items"}
SCRIPT_OF |= {"again": "commit", "turn": "commit", "give back": "return_item"}


@pytest.fixture
def site(redis_server: RedisServer, redis_url: str) -> Iterator[RedisSite]:
    site = RedisSite(redis_server, redis_url, FakeClock())
    prepare(site.store)
    yield site
    site.close()


def content(site: RedisSite) -> dict[bytes, bytes | None]:
    """Every key of the store, byte by byte."""
    return {name: site.client.dump(name) for name in site.names()}


def shape(items: list[Item]) -> list[object]:
    """Items without their times, in order."""
    return [(item.item_id, item.status, item.attempts, item.fence, item.execution_id, item.holder, item.error) for item in items]


def wanted(act: str) -> list[object]:
    """The items that the memory store comes to."""
    memory = MemoryStore(FakeClock(), Limits())
    prepare(memory)
    memory.write([ACTS[act](memory)])
    return shape(memory.items(ItemQuery()))


def fail() -> None:
    raise Boom


@pytest.mark.parametrize("act", ACTS)
def test_a_write_that_fails_on_the_way_changes_nothing_and_then_lands(act: str, site: RedisSite) -> None:
    """T01: an exception at every point that a write reaches; there is nothing inside a script that anything could fail in."""
    before = content(site)
    for point in ("store.before_begin", "store.begun", "store.before_commit"):
        with armed(at(point, 1, fail)), pytest.raises(Boom):
            site.store.write([ACTS[act](site.store)])
        assert content(site) == before
    with armed(at("store.committed", 1, fail)), pytest.raises(CommitUnknown):
        site.store.write([ACTS[act](site.store)])
    assert content(site) != before
    assert shape(site.store.items(ItemQuery())) == wanted(act)
    check_indexes(site)


@pytest.mark.parametrize("act", ACTS)
def test_a_write_whose_reply_is_lost_is_unknown_and_a_retry_lands_once(
    act: str, site: RedisSite, redis_server: RedisServer
) -> None:
    """T03, T28, T39: it had landed, whole; what may be asked again finds its own first writes."""
    with Proxy(redis_server.port) as proxy:
        through = RedisStore(site.url.replace(f":{redis_server.port}/", f":{proxy.port}/") + "&timeout=20", site.clock, Limits())
        through.open()
        unit = ACTS[act](site.store)
        proxy.on_request = at_match(SCRIPTS[SCRIPT_OF[act]].sha.encode(), Verdict.SWALLOW)
        with pytest.raises(CommitUnknown):
            through.write([unit])
        assert proxy.acted.wait(60)
        assert shape(site.store.items(ItemQuery())) == wanted(act)
        if act in RETRYABLE:
            [outcome] = through.write([unit])
            assert isinstance(outcome, Seen if act in ("dispatch", "finish") else Written)
            assert shape(site.store.items(ItemQuery())) == wanted(act)
        check_indexes(site)
        through.close()


runs: list[int] = []


@workflow(name="redisqueue.note")
async def note(number: int) -> int:
    runs.append(number)
    return number


def until_answered(ask: Callable[[], T]) -> T:
    """Ask until the store is there again."""
    while True:
        try:
            return ask()
        except (StoreUnavailable, CommitUnknown):
            continue


def test_consumption_resumes_after_the_server_was_away(tmp_path: Path) -> None:
    """T16, T41: killed and started again, with its log; what waited and what comes later runs by itself, once."""
    runs.clear()
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server, Stepwell(server.url(timeout=20)) as well:
        assert well.enqueue(note, 1).result(WAIT) == 1
        later = well.enqueue(note, 2, delay=0.3)
        server.kill()
        with pytest.raises((StoreUnavailable, CommitUnknown)):
            well.enqueue(note, 3)
        server.start()
        assert until_answered(lambda: well.enqueue(note, 4, key="four")).result(WAIT) == 4
        assert later.result(WAIT) == 2
    assert sorted(runs) == [1, 2, 4]
