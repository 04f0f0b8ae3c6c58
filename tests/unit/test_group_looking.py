"""Answers that a loop looks for itself: taken in the turn that finds them, and left to the writer when more is to be done."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepwell.contract.store import Begun
from stepwell.errors import CommitUnknown
from stepwell.model.commit import Deletion, Outcome, Unit, Written
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.stores.glance import Glance

WAIT = 60  # for what must happen; reached only by a failing test
UNIT = Deletion("x")
LOOP, WRITER = "MainThread", "stepwell-writer"


class Server:
    """Takes what is sent off, and answers when a test lets it."""

    def __init__(self) -> None:
        self.group = GroupCommit(self.write, begin_group=self.begin)
        self.done: list[tuple[str, int, str]] = []
        self.is_here, self.says_it_all = threading.Event(), True
        self._near, self._far = socket.socketpair()
        self.looks = 0
        self.no_look: BaseException | None = None
        self.no_outcome: BaseException | None = None

    def begin(self, units: Sequence[Unit]) -> Begun:
        self.note("begun", units)
        return Begun(lambda: self.finish(units), self)

    @property
    def descriptor(self) -> int:
        return self._near.fileno()

    def answer(self) -> None:
        """Have the answer come."""
        self.is_here.set()
        self._far.send(b"!")

    def close(self) -> None:
        """End; nobody watches any more."""
        self.group.close()
        self._near.close()
        self._far.close()

    def has_come(self) -> bool:
        self.looks += 1
        if self.no_look is not None:
            raise self.no_look
        return self.is_here.is_set()

    def is_final(self) -> bool:
        return self.says_it_all

    def finish(self, units: Sequence[Unit]) -> list[Outcome]:
        assert self.is_here.wait(WAIT)
        self.note("finished", units)
        if self.no_outcome is not None:
            raise self.no_outcome
        return [Written() for _ in units]

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        self.note("written", units)
        return [Written() for _ in units]

    def note(self, what: str, units: Sequence[Unit]) -> None:
        self.done.append((what, len(units), threading.current_thread().name))


@pytest.fixture
def is_worth() -> list[bool]:
    """Whether a look is worth it; a test may change that."""
    return [True]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, is_worth: list[bool]) -> Server:
    """One that has its writer, and whose answers are looked for."""
    server = Server()
    server.is_here.set()
    asyncio.run(in_turn(server, 1))
    server.is_here.clear()
    server.done.clear()
    monkeypatch.setattr(Glance, "is_looking", True)
    monkeypatch.setattr("stepwell.pipeline.group_commit.is_worth_a_look", lambda _: is_worth[0])
    return server


async def awaited(server: Server) -> Outcome:
    return await server.group.write_async(UNIT)


async def in_turn(server: Server, count: int) -> None:
    """Units of which each finds the place free."""
    for _ in range(count):
        assert await awaited(server) == Written()
        while server.group._is_writing:  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0)


async def submitted(server: Server) -> Outcome:
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    server.group.submit(UNIT, lambda outcome: told.set_result(outcome()))
    return await told


async def blocking(server: Server) -> Outcome:
    return await asyncio.to_thread(server.group.write, UNIT)


Ask = Callable[[Server], Coroutine[object, object, Outcome]]


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(work, WAIT))


@pytest.mark.parametrize("ask", [awaited, submitted])
def test_answer_is_taken_on_the_loop_that_sent_for_it(server: Server, ask: Ask) -> None:
    async def work() -> None:
        asked = asyncio.ensure_future(ask(server))
        for _ in range(20):
            await asyncio.sleep(0)  # the loop goes on with all else meanwhile
        assert not asked.done()
        server.is_here.set()
        assert await asked == Written()

    run(work())
    assert server.done == [("begun", 1, LOOP), ("finished", 1, LOOP)]
    assert 2 < server.looks <= 22
    assert server.group.write(UNIT) == Written()  # the place is free
    server.close()


def test_one_after_another_is_looked_for(server: Server) -> None:
    server.is_here.set()
    run(in_turn(server, 3))
    assert server.done == [("begun", 1, LOOP), ("finished", 1, LOOP)] * 3
    server.close()


def test_failure_that_was_looked_for_is_told(server: Server) -> None:
    server.is_here.set()
    server.no_outcome = CommitUnknown("lost")

    async def work() -> None:
        with pytest.raises(CommitUnknown, match="lost"):
            await awaited(server)
        server.no_outcome = None
        assert await awaited(server) == Written()

    run(work())
    server.close()


async def ask_and_watch(server: Server) -> asyncio.Future[Outcome]:
    """Something that was asked, and whose answer is watched for."""
    asked = asyncio.ensure_future(awaited(server))
    while server.group._sent is None or server.group._sent.watch._descriptor < 0:  # noqa: ASYNC110 - nobody is told of that
        await asyncio.sleep(0)
    return asked


async def ask_and_leave_to_the_writer(server: Server) -> asyncio.Future[Outcome]:
    """Something that was asked, and whose answer the loop has left to the writer."""
    asked = asyncio.ensure_future(awaited(server))
    await asyncio.sleep(0)
    while server.group._sent is not None:  # noqa: ASYNC110 - nobody is told of that
        await asyncio.sleep(0)
    return asked


@pytest.mark.parametrize("is_looking", [True, False])
def test_loop_is_told_of_what_does_not_come_soon(
    server: Server, is_worth: list[bool], monkeypatch: pytest.MonkeyPatch, is_looking: bool
) -> None:
    monkeypatch.setattr(Glance, "is_looking", is_looking)
    monkeypatch.setattr("stepwell.pipeline.watch._LONGEST_SECONDS", WAIT)
    is_worth[0] = False

    async def work() -> None:
        asked = await ask_and_watch(server)
        looks = server.looks
        for _ in range(20):
            await asyncio.sleep(0)
        assert server.looks == looks  # nobody looks before something has come
        server.answer()
        assert await asked == Written()

    run(work())
    assert server.done == [("begun", 1, LOOP), ("finished", 1, LOOP)]
    server.close()


def test_answer_that_comes_in_pieces_is_waited_for_to_its_end(
    server: Server, is_worth: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.pipeline.watch._LONGEST_SECONDS", WAIT)
    is_worth[0] = False

    async def work() -> None:
        asked = await ask_and_watch(server)
        looks = server.looks
        server._far.send(b"?")
        while server.looks < looks + 3:  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0)
        assert not asked.done()
        server.answer()
        assert await asked == Written()

    run(work())
    assert server.done == [("begun", 1, LOOP), ("finished", 1, LOOP)]
    server.close()


def test_writer_waits_for_what_is_late(server: Server, is_worth: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.pipeline.watch._LONGEST_SECONDS", 0)
    is_worth[0] = False

    async def work() -> None:
        asked = await ask_and_leave_to_the_writer(server)
        server.answer()
        assert await asked == Written()

    run(work())
    assert server.done == [("begun", 1, LOOP), ("finished", 1, WRITER)]
    server.close()


def test_writer_waits_where_a_loop_cannot_watch(server: Server, is_worth: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("asyncio.selector_events.BaseSelectorEventLoop.add_reader", cannot)
    is_worth[0] = False

    async def work() -> None:
        asked = await ask_and_leave_to_the_writer(server)
        server.is_here.set()
        assert await asked == Written()

    run(work())
    assert server.done == [("begun", 1, LOOP), ("finished", 1, WRITER)]
    server.close()


def test_writer_sees_to_an_answer_that_does_not_say_it_all(server: Server) -> None:
    server.is_here.set()
    server.says_it_all = False
    run(in_turn(server, 1))
    assert server.done == [("begun", 1, LOOP), ("finished", 1, WRITER)]
    server.close()


@pytest.mark.parametrize("ask", [awaited, submitted, blocking])
def test_writer_waits_for_the_answer_as_soon_as_anybody_else_comes(server: Server, ask: Ask) -> None:
    async def work() -> None:
        first = asyncio.ensure_future(awaited(server))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(ask(server))
        while server.group._sent is not None:  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0)
        server.is_here.set()
        assert await asyncio.gather(first, second) == [Written()] * 2

    run(work())
    assert server.done == [("begun", 1, LOOP), ("finished", 1, WRITER), ("written", 1, WRITER)]
    server.close()


def test_closing_does_not_wait_for_the_loop(server: Server) -> None:
    async def work(pool: ThreadPoolExecutor) -> None:
        asked = asyncio.ensure_future(awaited(server))
        await asyncio.sleep(0)
        closing = pool.submit(server.group.close)
        while server.group._sent is not None:
            pass  # the loop stands still
        server.is_here.set()
        closing.result(WAIT)
        assert await asked == Written()

    with ThreadPoolExecutor(1) as pool:
        run(work(pool))
    assert server.done == [("begun", 1, LOOP), ("finished", 1, WRITER)]
    server.close()


def end_loop_while_it_looks(server: Server) -> None:
    async def work() -> None:
        asked = asyncio.ensure_future(awaited(server))
        await asyncio.sleep(0)
        asked.cancel()

    asyncio.run(work())
    assert server.group._sent is not None
    server.is_here.set()


def test_loop_that_ended_while_it_looked_keeps_nobody_waiting(server: Server) -> None:
    end_loop_while_it_looks(server)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(server.group.write, UNIT).result(WAIT) == Written()
    assert server.done == [("begun", 1, LOOP), ("finished", 1, WRITER), ("written", 1, WRITER)]
    server.close()


def test_group_whose_loop_ended_while_it_looked_can_be_closed(server: Server) -> None:
    end_loop_while_it_looks(server)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(server.close).result(WAIT)
    assert server.done == [("begun", 1, LOOP), ("finished", 1, WRITER)]


def test_interrupted_look_is_left_to_the_writer(server: Server) -> None:
    server.no_look = KeyboardInterrupt()
    server.is_here.set()
    loop = asyncio.new_event_loop()
    try:
        asked = loop.create_task(awaited(server))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asked)
        assert loop.run_until_complete(asyncio.wait_for(asked, WAIT)) == Written()
    finally:
        loop.close()
    assert server.done == [("begun", 1, LOOP), ("finished", 1, WRITER)]
    server.close()


def test_both_ways_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[bool] = []
    took_by = Glance.took

    def note(self: Glance, began: float, *, is_looking: bool) -> None:
        took.append(is_looking)
        took_by(self, began, is_looking=is_looking)

    monkeypatch.setattr(Glance, "took", note)
    server = Server()
    server.is_here.set()
    run(in_turn(server, 8))
    assert took == [False] * 4 + [True] * 4
    server.close()
