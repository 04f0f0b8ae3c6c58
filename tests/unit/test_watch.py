"""Watches: told of what comes, whatever becomes of the connection, and nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from stepwell.pipeline.watch import Watch

WAIT = 60  # for what must happen; reached only by a failing test


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def not_late() -> None:
    raise AssertionError("it was not late")


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_loop_is_told_when_something_comes(ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.pipeline.watch._LONGEST_SECONDS", WAIT)
    near, far = ends

    async def work() -> None:
        has_come = asyncio.Event()
        watch = Watch(asyncio.get_running_loop())
        assert watch.begin(near.fileno(), has_come.set, not_late)
        descriptor = watch._descriptor
        assert watch.begin(near.fileno(), has_come.set, not_late)
        assert watch._descriptor == descriptor  # once is enough
        assert not has_come.is_set()
        far.send(b"!")
        await has_come.wait()
        watch.end()
        assert not is_open(descriptor)
        watch.end()  # a second time is nothing

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_somebody_is_told_if_nothing_comes(ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.pipeline.watch._LONGEST_SECONDS", 0)

    async def work() -> None:
        is_late = asyncio.Event()
        watch = Watch(asyncio.get_running_loop())
        assert watch.begin(ends[0].fileno(), lambda: None, is_late.set)
        await is_late.wait()
        watch.end()

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_connection_that_others_close_is_taken_for_no_other(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a closed connection is given to the next one; the loop must still know the two apart."""
    monkeypatch.setattr("stepwell.pipeline.watch._LONGEST_SECONDS", WAIT)
    near, _ = ends

    async def work() -> None:
        loop = asyncio.get_running_loop()
        watch = Watch(loop)
        assert watch.begin(near.fileno(), lambda: None, not_late)
        number = near.fileno()
        near.close()
        here, there = socket.socketpair()
        with here, there:
            assert number in (here.fileno(), there.fileno())
            mine, other = (here, there) if here.fileno() == number else (there, here)
            has_come = asyncio.Event()
            loop.add_reader(mine.fileno(), has_come.set)
            other.send(b"!")
            await has_come.wait()
            loop.remove_reader(mine.fileno())
        watch.end()

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_watch_is_ended_from_another_thread(ends: tuple[socket.socket, socket.socket]) -> None:
    async def work() -> None:
        watch = Watch(asyncio.get_running_loop())
        assert watch.begin(ends[0].fileno(), lambda: None, lambda: None)
        descriptor = watch._descriptor
        await asyncio.to_thread(watch.end_soon)
        while is_open(descriptor):  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_nothing_is_left_of_a_watch_whose_loop_is_closed(ends: tuple[socket.socket, socket.socket]) -> None:
    async def work() -> Watch:
        watch = Watch(asyncio.get_running_loop())
        assert watch.begin(ends[0].fileno(), lambda: None, lambda: None)
        return watch

    watch = asyncio.run(work())
    descriptor = watch._descriptor
    watch.end_soon()
    assert not is_open(descriptor)


def test_connection_that_is_closed_cannot_be_watched() -> None:
    async def work() -> None:
        assert not Watch(asyncio.get_running_loop()).begin(-1, lambda: None, not_late)

    asyncio.run(work())
