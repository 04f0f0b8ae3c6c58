"""A request that waits for a slot on PostgreSQL starts as soon as the slot is free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.postgres_server import fresh_postgres_url

from stepwell import Stepwell, step, workflow
from stepwell.queue.dispatcher import Dispatcher

__all__ = ["fresh_postgres_url"]

WAIT = 20  # not so long that a sweep comes to the rescue
begun, may_end = threading.Event(), threading.Event()


@workflow(name="alone.plain")
async def plain(value: int) -> int:
    return value


@workflow(name="alone.held")
async def held(value: int) -> int:
    """Ends when it may."""
    await hold()
    return value


@step
async def hold() -> None:
    begun.set()
    await asyncio.to_thread(may_end.wait, WAIT)


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each claim of a dispatcher has brought. None is made because time has passed."""
    begun.clear()
    may_end.clear()
    made: list[int] = []
    claim = Dispatcher._claim

    async def count(self: Dispatcher, limit: int, names: tuple[str, ...]) -> Any:
        items = await claim(self, limit, names)
        made.append(len(items))
        return items

    monkeypatch.setattr(Dispatcher, "_claim", count)
    monkeypatch.setattr("stepwell.queue.dispatcher._AGAIN_SECONDS", ())
    monkeypatch.setitem(Dispatcher.__init__.__kwdefaults__ or {}, "poll_seconds", 3_600)
    return made


@pytest.fixture
def well(fresh_postgres_url: str, claims: list[int]) -> Iterator[Stepwell]:
    """A store whose dispatcher has come to rest."""
    with Stepwell(fresh_postgres_url) as well:
        well.workspaces.put("acme", tier="free")
        for _ in range(3):  # until the server knows the statements, requests go the long way
            assert well.enqueue(plain, 1, workspace="acme").result(WAIT) == 1
        yield well


def in_vain(claims: list[int]) -> None:
    """Let the first item end once the dispatcher has looked for the second, and found no slot for it."""
    while not claims:
        pass
    assert not any(claims)
    may_end.set()


def test_request_that_came_meanwhile_starts_when_the_slot_is_free(well: Stepwell, claims: list[int]) -> None:
    first = well.enqueue(held, 1, workspace="acme")
    assert begun.wait(WAIT)
    claims.clear()
    second = well.enqueue(plain, 2, workspace="acme")
    in_vain(claims)
    assert [first.result(WAIT), second.result(WAIT)] == [1, 2]


def test_request_of_another_process_that_came_meanwhile_starts_when_the_slot_is_free(
    well: Stepwell, fresh_postgres_url: str, claims: list[int]
) -> None:
    first = well.enqueue(held, 1, workspace="acme")
    assert begun.wait(WAIT)
    with Stepwell(fresh_postgres_url, worker=False) as other:
        claims.clear()
        second = other.enqueue(plain, 2, workspace="acme")
        in_vain(claims)
        assert [first.result(WAIT), second.result(WAIT)] == [1, 2]
