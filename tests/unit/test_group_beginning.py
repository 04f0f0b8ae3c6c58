"""Units that their callers send off, requests for runs that wait for nobody's commits, and what gives way to those."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepwell.contract.store import Begun
from stepwell.errors import CommitUnknown, StoreUnavailable
from stepwell.model.commit import Deletion, Outcome, Unit, Written
from stepwell.model.queue_item import ClaimItems, Enqueue
from stepwell.pipeline.group_commit import GroupCommit

WAIT = 60  # for what must happen; reached only by a failing test
REQUEST = Enqueue(())
CLAIM = ClaimItems("d", 30, 8)


class Line:
    """Begins requests as a store would; a test can hold their answers, or make either part fail."""

    def __init__(self) -> None:
        self.group = GroupCommit(self.write, begin_group=self.begin, takes_requests_beside=True)
        self.done: list[tuple[str, int, threading.Thread]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.no_begin: BaseException | None = None
        self.no_answer: BaseException | None = None

    def begin(self, units: Sequence[Unit]) -> Begun:
        self.note("begun", units)
        if self.no_begin is not None:
            raise self.no_begin
        return Begun(lambda: self.finish(units))

    def finish(self, units: Sequence[Unit]) -> list[Outcome]:
        self.note("finished", units)
        assert self.may_answer.wait(WAIT)
        if self.no_answer is not None:
            raise self.no_answer
        return [Written() for _ in units]

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        self.note("written", units)
        return [Written() for _ in units]

    def note(self, what: str, units: Sequence[Unit]) -> None:
        self.done.append((what, len(units), threading.current_thread()))

    def words(self) -> list[tuple[str, int]]:
        return [(what, count) for what, count, _ in self.done]


async def awaited(group: GroupCommit, unit: Unit) -> Outcome:
    return await group.write_async(unit)


async def submitted(group: GroupCommit, unit: Unit) -> Outcome:
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    group.submit(unit, lambda outcome: told.set_result(outcome()))
    return await told


def test_request_waits_for_no_commit() -> None:
    is_writing, may_go = threading.Event(), threading.Event()

    def write(units: Sequence[Unit]) -> list[Outcome]:
        if isinstance(units[0], Deletion):
            is_writing.set()
            assert may_go.wait(WAIT)
        return [Written([type(unit).__name__]) for unit in units]

    group = GroupCommit(write, begin_group=lambda units: Begun(lambda: write(units)), takes_requests_beside=True)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(group.write, Deletion("x"))
        assert is_writing.wait(WAIT)
        assert pool.submit(group.write, REQUEST).result(WAIT) == Written(["Enqueue"])
        assert asyncio.run(asyncio.wait_for(awaited(group, REQUEST), WAIT)) == Written(["Enqueue"])
        assert asyncio.run(asyncio.wait_for(submitted(group, REQUEST), WAIT)) == Written(["Enqueue"])
        assert not other.done()
        may_go.set()
        assert other.result(WAIT) == Written(["Deletion"])
    group.close()
    for unit in (REQUEST, Deletion("x")):
        with pytest.raises(StoreUnavailable, match="closed"):
            group.write(unit)


@pytest.mark.parametrize("unit", [REQUEST, Deletion("x")])
@pytest.mark.parametrize("ask", [awaited, submitted])
def test_unit_is_sent_by_its_caller_and_its_answer_waited_for_by_the_writer(ask: Callable[..., Outcome], unit: Unit) -> None:
    line = Line()
    assert asyncio.run(asyncio.wait_for(ask(line.group, unit), WAIT)) == Written()
    (first, _, caller), (second, _, writer) = line.done
    assert (first, second) == ("begun", "finished")
    assert caller is threading.current_thread()
    assert writer.name == "stepwell-writer"
    line.group.close()


def test_those_who_come_meanwhile_are_one_group() -> None:
    line = Line()
    line.may_answer.clear()

    async def ask() -> None:
        first = line.group.write_async(REQUEST)
        others = [line.group.write_async(REQUEST) for _ in range(3)]
        line.may_answer.set()
        assert await asyncio.gather(first, *others) == [Written()] * 4

    asyncio.run(asyncio.wait_for(ask(), WAIT))
    assert line.words() == [("begun", 1), ("finished", 1), ("written", 3)]
    line.group.close()


def test_blocking_caller_writes_all_of_it_by_itself() -> None:
    line = Line()
    assert [line.group.write(unit) for unit in (REQUEST, Deletion("x"))] == [Written()] * 2
    assert line.words() == [("written", 1)] * 2
    line.group.close()


@pytest.mark.parametrize("part", ["no_begin", "no_answer"])
def test_failure_of_either_part_is_told_and_the_next_one_is_written(part: str) -> None:
    line = Line()
    setattr(line, part, CommitUnknown("lost"))

    async def ask() -> None:
        with pytest.raises(CommitUnknown, match="lost"):
            await line.group.write_async(REQUEST)
        setattr(line, part, None)
        assert await line.group.write_async(REQUEST) == Written()

    asyncio.run(asyncio.wait_for(ask(), WAIT))
    line.group.close()


def test_interrupt_while_a_unit_is_sent_leaves_the_place_to_the_next_one() -> None:
    line = Line()
    line.no_begin = KeyboardInterrupt()

    async def ask() -> None:
        with pytest.raises(KeyboardInterrupt):
            line.group.write_async(REQUEST)
        line.no_begin = None
        assert await line.group.write_async(REQUEST) == Written()

    asyncio.run(asyncio.wait_for(ask(), WAIT))
    assert line.group.write(REQUEST) == Written()
    line.group.close()


def test_what_was_begun_is_finished_even_if_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    line = Line()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert asyncio.run(awaited(line.group, REQUEST)) == Written()
    assert line.words() == [("begun", 1), ("finished", 1)]
    line.group.close()


def test_closing_waits_for_the_answer_of_what_was_begun() -> None:
    line = Line()
    line.may_answer.clear()

    async def ask(pool: ThreadPoolExecutor) -> None:
        outcome = line.group.write_async(REQUEST)
        closing = pool.submit(line.group.close)
        line.may_answer.set()
        assert await outcome == Written()
        await asyncio.wrap_future(closing)

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(asyncio.wait_for(ask(pool), WAIT))


async def begin_request(line: Line) -> asyncio.Future[Outcome]:
    """A request that is under way, and not answered."""
    line.may_answer.clear()
    request = asyncio.ensure_future(line.group.write_async(REQUEST))
    assert line.done[0][0] == "begun"
    return request


def test_claim_gives_way_to_a_request_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.pipeline.way._LONGEST_SECONDS", WAIT)
    line = Line()

    async def ask() -> None:
        request = await begin_request(line)
        claims = [asyncio.ensure_future(line.group.write_async(CLAIM)) for _ in range(2)]
        line.may_answer.set()
        assert await asyncio.gather(request, *claims) == [Written()] * 3

    asyncio.run(asyncio.wait_for(ask(), WAIT))
    assert line.words() == [("begun", 1), ("finished", 1), ("written", 2)]
    line.group.close()


@pytest.mark.parametrize("ask_too", [awaited, submitted, lambda group, unit: asyncio.to_thread(group.write, unit)])
def test_who_cannot_wait_is_written_at_once_with_those_who_gave_way(
    ask_too: Callable[..., Coroutine[object, object, Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.pipeline.way._LONGEST_SECONDS", WAIT)
    line = Line()

    async def ask() -> None:
        request = await begin_request(line)
        claim = asyncio.ensure_future(line.group.write_async(CLAIM))
        while line.group._way._gate is None:  # noqa: ASYNC110 - the writer stands aside, and nobody is told of that
            await asyncio.sleep(0)
        assert await ask_too(line.group, Deletion("x")) == Written()
        assert await claim == Written()
        assert not request.done()
        line.may_answer.set()
        assert await request == Written()

    asyncio.run(asyncio.wait_for(ask(), WAIT))
    assert sorted(line.words()) == [("begun", 1), ("finished", 1), ("written", 2)]
    line.group.close()


async def hold_back_after_a_request(line: Line) -> asyncio.Future[Outcome]:
    """A claim that came while something was written, a moment after a request; the writer stands aside."""
    assert await line.group.write_async(REQUEST) == Written()
    line.may_answer.clear()
    before = asyncio.ensure_future(line.group.write_async(Deletion("x")))
    claim = asyncio.ensure_future(line.group.write_async(CLAIM))
    line.may_answer.set()
    assert await before == Written()
    line.done.clear()
    return claim


@pytest.mark.parametrize("unit", [REQUEST, Deletion("y")])
def test_claim_gives_way_for_a_moment_to_a_request_that_may_follow_another(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for one run after another asks for the next when the last one has ended. Whoever cannot wait ends that, too."""
    monkeypatch.setattr("stepwell.pipeline.way._RECENT_SECONDS", WAIT)
    monkeypatch.setattr("stepwell.pipeline.way._MOMENT_SECONDS", WAIT)
    line = Line()

    async def ask() -> None:
        claim = await hold_back_after_a_request(line)
        while line.group._way._gate is None:  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0)
        assert not claim.done()
        assert await line.group.write_async(unit) == Written()
        assert await claim == Written()

    asyncio.run(asyncio.wait_for(ask(), WAIT))
    assert line.words() == ([("begun", 1), ("finished", 1), ("written", 1)] if unit == REQUEST else [("written", 2)])
    line.group.close()


@pytest.mark.parametrize(("recent", "moment"), [(0, WAIT), (WAIT, 0)])
def test_claim_is_written_if_no_request_follows(monkeypatch: pytest.MonkeyPatch, recent: float, moment: float) -> None:
    monkeypatch.setattr("stepwell.pipeline.way._RECENT_SECONDS", recent)
    monkeypatch.setattr("stepwell.pipeline.way._MOMENT_SECONDS", moment)
    line = Line()

    async def ask() -> None:
        assert await (await hold_back_after_a_request(line)) == Written()

    asyncio.run(asyncio.wait_for(ask(), WAIT))
    line.group.close()


def test_nobody_gives_way_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.pipeline.way._LONGEST_SECONDS", 0)
    line = Line()

    async def ask() -> None:
        request = await begin_request(line)
        assert await line.group.write_async(CLAIM) == Written()
        assert not request.done()
        line.may_answer.set()
        assert await request == Written()

    asyncio.run(asyncio.wait_for(ask(), WAIT))
    line.group.close()


@pytest.mark.parametrize("outcome", [None, CommitUnknown("lost")])
def test_who_gave_way_goes_on_when_the_request_is_done_whatever_came_of_it(
    outcome: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.pipeline.way._LONGEST_SECONDS", WAIT)
    line = Line()
    line.no_answer = outcome

    async def ask() -> None:
        request = await begin_request(line)
        claim = asyncio.ensure_future(line.group.write_async(CLAIM))
        line.may_answer.set()
        assert await claim == Written()
        assert (await asyncio.gather(request, return_exceptions=True))[0].__class__ is (outcome or Written()).__class__

    asyncio.run(asyncio.wait_for(ask(), WAIT))
    line.group.close()


def test_claim_gives_way_to_the_request_of_a_blocking_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.pipeline.way._LONGEST_SECONDS", WAIT)

    async def ask(pool: ThreadPoolExecutor) -> None:
        has_begun, may_end = threading.Event(), threading.Event()

        def write(units: Sequence[Unit]) -> list[Outcome]:
            if isinstance(units[0], Enqueue):
                has_begun.set()
                assert may_end.wait(WAIT)
            return [Written() for _ in units]

        group = GroupCommit(write, takes_requests_beside=True)
        request = pool.submit(group.write, REQUEST)
        assert has_begun.wait(WAIT)
        claim = asyncio.ensure_future(group.write_async(CLAIM))
        may_end.set()
        assert await claim == Written()
        assert request.result(WAIT) == Written()
        group.close()

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(asyncio.wait_for(ask(pool), WAIT))
