"""Head digests: concurrent async reads share one query and never get an answer older than their question."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from stepwell.errors import StoreUnavailable
from stepwell.pipeline.operations import HeadBatch

LONG = 60  # a machine that is busy may take its time; nothing waits for this unless it hangs


class Oracle:
    """A store that says how often it was asked, holds its answers back while the gate is shut, and fails when told to."""

    def __init__(self) -> None:
        self.questions: list[list[str]] = []
        self.asked: SimpleQueue[list[str]] = SimpleQueue()
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def head_digests(self, execution_ids: Sequence[str]) -> list[str | None]:
        self.questions.append(list(execution_ids))
        number = len(self.questions)
        self.asked.put(list(execution_ids))
        assert self.gate.wait(LONG)
        if self.failure is not None:
            raise self.failure
        return [None if each == "nobody" else f"{each} of question {number}" for each in execution_ids]


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


class Threads(ThreadPoolExecutor):
    """Threads that count what they are given."""

    given = 0

    def submit(self, *call: Any, **options: Any) -> Any:
        self.given += 1
        return super().submit(*call, **options)


@pytest.fixture
def threads() -> Iterator[Threads]:
    with Threads(2) as threads:
        yield threads


def run(main: Callable[[], Awaitable[object]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LONG):
            await main()

    asyncio.run(bounded())


async def heard(oracle: Oracle) -> list[str]:
    """The next question that reaches the store."""
    return await asyncio.to_thread(oracle.asked.get, timeout=LONG)


async def ask(heads: HeadBatch, execution_id: str) -> str | None:
    return await heads.ask(execution_id)


def test_two_hundred_who_ask_together_are_one_question(oracle: Oracle, threads: Threads) -> None:
    async def main() -> None:
        heads = HeadBatch(oracle, threads)
        names = [*(f"run-{number}" for number in range(199)), "nobody"]
        answers = await asyncio.gather(*(ask(heads, name) for name in names))
        assert answers == [*(f"{name} of question 1" for name in names[:-1]), None]
        assert oracle.questions == [names]

    run(main)


def test_who_asks_while_a_question_is_under_way_is_answered_by_the_next(oracle: Oracle, threads: Threads) -> None:
    """T05: the answer that is under way may be older than the moment when it was asked for."""

    async def main() -> None:
        heads = HeadBatch(oracle, threads)
        oracle.gate.clear()
        first = asyncio.ensure_future(ask(heads, "a"))
        assert await heard(oracle) == ["a"]
        later = [asyncio.ensure_future(ask(heads, name)) for name in ("a", "b")]
        for _ in range(5):
            await asyncio.sleep(0)
        assert threads.given == 1
        oracle.gate.set()
        assert await asyncio.gather(first, *later) == ["a of question 1", "a of question 2", "b of question 2"]

    run(main)


def test_failure_is_told_to_each_by_an_error_of_its_own(oracle: Oracle, threads: Threads) -> None:
    async def main() -> None:
        heads = HeadBatch(oracle, threads)
        oracle.failure = StoreUnavailable("away")
        errors = await asyncio.gather(*(ask(heads, name) for name in "abc"), return_exceptions=True)
        assert [(type(error), str(error)) for error in errors] == [(StoreUnavailable, str(oracle.failure))] * 3
        assert len({id(error) for error in errors}) == 3
        oracle.failure = None
        assert await ask(heads, "a") == "a of question 2"

    run(main)


def test_who_was_cancelled_holds_nobody_back(oracle: Oracle, threads: Threads) -> None:
    async def main() -> None:
        heads = HeadBatch(oracle, threads)
        oracle.gate.clear()
        under_way = asyncio.ensure_future(ask(heads, "a"))
        await heard(oracle)
        waiting = [asyncio.ensure_future(ask(heads, name)) for name in ("b", "c")]
        await asyncio.sleep(0)
        under_way.cancel()
        waiting[0].cancel()
        await asyncio.sleep(0)
        oracle.gate.set()
        assert await waiting[1] == "c of question 2"
        assert oracle.questions == [["a"], ["c"]]

    run(main)


def test_question_has_a_limit_and_the_rest_follows(oracle: Oracle, threads: Threads) -> None:
    async def main() -> None:
        heads = HeadBatch(oracle, threads)
        await asyncio.gather(*(ask(heads, f"run-{number}") for number in range(2_500)))
        assert [len(question) for question in oracle.questions] == [1_000, 1_000, 500]

    run(main)


def test_who_asks_after_the_end_is_told_so(oracle: Oracle, threads: Threads) -> None:
    async def main() -> None:
        heads = HeadBatch(oracle, threads)
        threads.shutdown()
        with pytest.raises(StoreUnavailable, match="closed"):
            await ask(heads, "a")
        with pytest.raises(StoreUnavailable, match="closed"):
            await ask(heads, "b")

    run(main)


def test_loop_that_ended_in_the_middle_does_not_hold_the_next_one_back(oracle: Oracle, threads: Threads) -> None:
    heads = HeadBatch(oracle, threads)

    async def abandoned() -> None:
        oracle.gate.clear()
        asyncio.ensure_future(ask(heads, "a")).add_done_callback(lambda done: done.cancelled() or done.exception())
        await heard(oracle)

    async def next_one() -> None:
        oracle.gate.set()
        assert await ask(heads, "b") == "b of question 2"

    run(abandoned)
    run(next_one)
    threads.shutdown()  # a thread that is about to rest may still hold the loop that it told last
    gc.collect()
    assert not heads._loops
