"""A session that has ended is gone at once: thousands of them a second must not wait for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Generator

import pytest

from stepwell import AsyncStepwell, step, workflow
from stepwell.runtime.sessions.function_session import FunctionSession


@step
async def add_one(number: int) -> int:
    return number + 1


@workflow
async def add_two(number: int) -> int:
    return await add_one(await add_one(number))


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Generator[list[weakref.ref[FunctionSession]]]:
    """The sessions that were run, while nothing is collected."""
    begun: list[weakref.ref[FunctionSession]] = []
    run = FunctionSession.run

    async def noted(session: FunctionSession) -> int | None:
        begun.append(weakref.ref(session))
        return await run(session)

    monkeypatch.setattr(FunctionSession, "run", noted)
    gc.collect()
    gc.disable()
    yield begun
    gc.enable()


def are_gone(sessions: list[weakref.ref[FunctionSession]]) -> bool:
    return len(sessions) == 1 and sessions[0]() is None


def test_session_that_completed_leaves_nothing_to_collect(sessions: list[weakref.ref[FunctionSession]]) -> None:
    async def begin() -> None:
        async with AsyncStepwell("memory://") as well:
            assert await (await well.start(add_two, 1)).result() == 3

    asyncio.run(begin())
    assert are_gone(sessions)


def test_session_of_a_queue_item_leaves_nothing_to_collect(sessions: list[weakref.ref[FunctionSession]]) -> None:
    async def begin() -> None:
        async with AsyncStepwell("memory://") as well:
            item = await well.enqueue(add_two, 1)
            assert await item.result(timeout=60) == 3

    asyncio.run(begin())
    assert are_gone(sessions)
