"""Group commit: nobody waits for company, everybody gets their own outcome, and nothing is written twice or lost."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from stepwell.errors import CommitUnknown, Conflict, LimitExceeded, StoreFull, StoreUnavailable
from stepwell.model.commit import Commit, Deletion, Outcome, Unit, Written
from stepwell.pipeline.group_commit import GroupCommit

WAIT = 60  # for what must happen; reached only by a failing test


class Disk:
    """Writes groups as a store would, one at a time; a test can hold it in the middle of a write, or make it fail."""

    def __init__(self, **options: object) -> None:
        self.group = GroupCommit(self.write, **options)
        self.groups: list[list[str]] = []
        self.threads: list[threading.Thread] = []
        self.failure: BaseException | None = None
        self.refused: set[str] = set()
        self.entered, self.may_go = threading.Semaphore(0), threading.Semaphore(0)
        self.is_held = False
        self._busy = threading.Lock()
        self.queued = _Queued()
        self.group._waiting = self.queued

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        assert self._busy.acquire(blocking=False), "two groups were written at the same time"
        try:
            self.threads.append(threading.current_thread())
            if self.is_held:
                self.entered.release()
                assert self.may_go.acquire(timeout=WAIT)
            if self.failure is not None:
                raise self.failure
            names = [unit.execution_id for unit in units]
            self.groups.append(names)
            return [Conflict(name) if name in self.refused else Written([name]) for name in names]
        finally:
            self._busy.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Somebody is in the middle of a write for as long as the block runs, and then goes on."""
        self.is_held = True
        with ThreadPoolExecutor(1) as pool:
            leader = pool.submit(self.group.write, Deletion("leader"))
            assert self.entered.acquire(timeout=WAIT)
            self.is_held = False
            try:
                yield
            finally:
                self.may_go.release()
                if self.failure is None:
                    assert leader.result(WAIT) == Written(["leader"])

    def written(self) -> list[str]:
        return [name for group in self.groups for name in group]


class _Queued(deque[object]):
    """The queue of the group committer, which tells when somebody has joined it."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = threading.Semaphore(0)

    def append(self, item: object) -> None:
        super().append(item)
        self.joined.release()

    def extend(self, items: Iterable[object]) -> None:
        for item in items:
            self.append(item)

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.joined.acquire(timeout=WAIT)


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.group.close()


def submit(pool: ThreadPoolExecutor, disk: Disk, names: Sequence[str]) -> list[Future[Outcome]]:
    """Callers in threads, one after another in the queue."""
    futures = []
    for name in names:
        futures.append(pool.submit(disk.group.write, Deletion(name)))
        disk.queued.wait_for(1)
    return futures


def test_a_caller_alone_writes_in_its_own_thread(disk: Disk) -> None:
    before = set(threading.enumerate())
    assert disk.group.write(Deletion("a")) == Written(["a"])
    assert disk.threads == [threading.current_thread()]
    assert set(threading.enumerate()) <= before  # those of tests before may end meanwhile


def test_whoever_comes_during_a_write_shares_the_next_one(disk: Disk) -> None:
    with ThreadPoolExecutor(5) as pool:
        with disk.held():
            futures = submit(pool, disk, "abcde")
        assert [future.result(WAIT) for future in futures] == [Written([name]) for name in "abcde"]
    assert disk.groups == [["leader"], list("abcde")]
    assert disk.threads[1].name == "stepwell-writer"


def test_the_place_is_free_again_after_the_writer(disk: Disk) -> None:
    with ThreadPoolExecutor(2) as pool:
        with disk.held():
            futures = submit(pool, disk, "ab")
        assert all(future.result(WAIT) for future in futures)
    assert disk.group.write(Deletion("c")) == Written(["c"])
    assert disk.written() == ["leader", "a", "b", "c"]


def test_groups_have_a_largest_size() -> None:
    disk = Disk(most=2)
    with ThreadPoolExecutor(5) as pool:
        with disk.held():
            futures = submit(pool, disk, "abcde")
        assert all(future.result(WAIT) for future in futures)
    assert disk.groups == [["leader"], ["a", "b"], ["c", "d"], ["e"]]
    disk.group.close()


def test_refused_unit_does_not_stop_its_group(disk: Disk) -> None:
    disk.refused = {"b"}
    with ThreadPoolExecutor(3) as pool:
        with disk.held():
            futures = submit(pool, disk, "abc")
        outcomes = [future.result(WAIT) for future in futures]
    assert [type(outcome) for outcome in outcomes] == [Written, Conflict, Written]


# Awaited.


async def awaited(group: GroupCommit, unit: Unit) -> Outcome:
    return await group.write_async(unit)


def test_awaited_writes_leave_the_event_loop_free(disk: Disk) -> None:
    assert asyncio.run(awaited(disk.group, Deletion("a"))) == Written(["a"])
    assert disk.threads[0].name == "stepwell-writer"


def test_awaited_writes_of_one_moment_share_a_group(disk: Disk) -> None:
    async def main() -> list[Outcome]:
        return await asyncio.gather(*(disk.group.write_async(Deletion(str(number))) for number in range(200)))

    with ThreadPoolExecutor(1) as pool:
        with disk.held():
            answer = pool.submit(lambda: asyncio.run(main()))
            disk.queued.wait_for(200)
        assert answer.result(WAIT) == [Written([str(number)]) for number in range(200)]
    assert [len(group) for group in disk.groups] == [1, 200]


def test_awaited_writes_of_an_instant_store_take_no_thread() -> None:
    disk = Disk(is_instant=True)
    assert asyncio.run(awaited(disk.group, Deletion("a"))) == Written(["a"])
    assert disk.threads == [threading.current_thread()]
    disk.group.close()


def cancel_when(disk: Disk, moment: Callable[[], object]) -> None:
    """Await a write, and cancel the caller at a moment."""

    async def main() -> None:
        task = asyncio.ensure_future(disk.group.write_async(Deletion("cancelled")))
        other = asyncio.ensure_future(disk.group.write_async(Deletion("other")))
        await asyncio.to_thread(moment)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        disk.may_go.release()
        assert await other == Written(["other"])

    asyncio.run(main())


def test_caller_cancelled_before_the_write_began_is_not_written(disk: Disk) -> None:
    """T08."""
    disk.is_held = True
    leader = threading.Thread(target=disk.group.write, args=(Deletion("leader"),))
    leader.start()
    assert disk.entered.acquire(timeout=WAIT)
    disk.is_held = False
    cancel_when(disk, lambda: disk.queued.wait_for(2))
    leader.join(WAIT)
    assert disk.written() == ["leader", "other"]


def test_caller_cancelled_during_the_write_is_written(disk: Disk) -> None:
    """T08: it is told nothing but that it was cancelled; the commit id says what became of it."""
    disk.is_held = True

    def in_the_middle() -> None:
        assert disk.entered.acquire(timeout=WAIT)
        disk.is_held = False

    cancel_when(disk, in_the_middle)
    assert sorted(disk.written()) == ["cancelled", "other"]


def test_a_loop_that_is_gone_stops_nobody_else(disk: Disk) -> None:
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(1) as pool:
        with disk.held():
            write = awaited(disk.group, Deletion("gone"))
            task = loop.create_task(write)
            loop.run_until_complete(asyncio.sleep(0))
            disk.queued.wait_for(1)
            task._log_destroy_pending = False
            loop.close()
            futures = submit(pool, disk, ["a"])
        assert futures[0].result(WAIT) == Written(["a"])
    assert disk.group.write(Deletion("b")) == Written(["b"])
    write.close()


# Failures.


def test_failure_reaches_every_caller_as_an_object_of_its_own(disk: Disk) -> None:
    with ThreadPoolExecutor(3) as pool:
        with disk.held():
            disk.failure = StoreFull("no space")
            futures = submit(pool, disk, "abc")
        errors = [future.exception(WAIT) for future in futures]
    assert [type(error) for error in errors] == [StoreFull] * 3
    assert {str(error) for error in errors} == {"no space [SW-301]"}
    assert len({id(error) for error in errors}) == 3
    disk.failure = None
    assert disk.group.write(Deletion("d")) == Written(["d"])


def commit(name: str) -> Commit:
    return Commit(
        execution_id=name, workspace_id="w", commit_id=f"commit-{name}", revision=1, previous="", digest="", header=b"", body=b"",
        committed_ms=0,
    )  # fmt: skip


def test_unknown_result_is_told_to_each_with_its_own_commit_id(disk: Disk) -> None:
    """T03."""
    with ThreadPoolExecutor(2) as pool:
        with disk.held():
            disk.failure = CommitUnknown("the reply was lost")
            futures = [pool.submit(disk.group.write, commit(name)) for name in "ab"]
            disk.queued.wait_for(2)
        errors = [future.exception(WAIT) for future in futures]
    assert [(error.commit_id, error.execution_id) for error in errors] == [("commit-a", "a"), ("commit-b", "b")]
    with pytest.raises(CommitUnknown) as caught:
        disk.group.write(commit("alone"))
    assert caught.value.commit_id == "commit-alone"


class Uncopyable(Exception):
    """An error of a driver whose constructor wants more than its message."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"{code} {detail}")


@pytest.mark.parametrize(
    "failure",
    [
        Uncopyable(5, "x"),
        KeyboardInterrupt(),
        MemoryError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
        LimitExceeded.of("value_bytes", 1, 2, "it"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_goes_wrong_everybody_is_told_and_the_next_write_works(disk: Disk, failure: BaseException) -> None:
    with ThreadPoolExecutor(2) as pool:
        with disk.held():
            disk.failure = failure
            futures = submit(pool, disk, "ab")
        assert [type(future.exception(WAIT)) for future in futures] == [type(failure)] * 2
    with pytest.raises(type(failure)):
        disk.group.write(Deletion("c"))
    disk.failure = None
    assert disk.group.write(Deletion("d")) == Written(["d"])


def test_a_store_that_stops_an_iteration_is_an_error_and_no_hang() -> None:
    """A future takes every error but this one, and the others of the group must be told all the same."""

    def write(units: Sequence[Unit]) -> list[Outcome]:
        raise StopIteration

    group = GroupCommit(write)
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(awaited(group, Deletion("a")), WAIT))
    group.close()


def test_failure_that_nobody_is_left_to_hear_of_is_no_complaint() -> None:
    """As when the caller is cancelled in the moment when it is told."""

    def write(units: Sequence[Unit]) -> list[Outcome]:
        raise StoreUnavailable("away")

    group = GroupCommit(write)

    async def main() -> list[str]:
        complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        written = asyncio.ensure_future(group.write_async(Deletion("a")))
        await asyncio.wait([written], timeout=WAIT)
        assert written.done()
        del written
        gc.collect()
        return complaints

    assert asyncio.run(main()) == []
    group.close()


def test_failure_of_an_awaited_write(disk: Disk) -> None:
    disk.failure = StoreUnavailable("away")

    async def main() -> list[object]:
        writes = [disk.group.write_async(Deletion(name)) for name in "ab"]
        return await asyncio.gather(*writes, return_exceptions=True)

    assert [str(error) for error in asyncio.run(main())] == ["away [SW-300]"] * 2


def test_a_store_that_answers_for_too_few_is_an_error_and_no_hang(disk: Disk) -> None:
    group = GroupCommit(lambda units: [])

    async def main() -> None:
        await group.write_async(Deletion("a"))

    with pytest.raises(ValueError, match="shorter"):
        asyncio.run(main())
    with pytest.raises((IndexError, ValueError)):
        group.write(Deletion("b"))
    group.close()


# Closing.


def test_closed_group_takes_no_more(disk: Disk) -> None:
    disk.group.close()
    disk.group.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        disk.group.write(Deletion("a"))
    with pytest.raises(StoreUnavailable, match="closed"):
        asyncio.run(awaited(disk.group, Deletion("a")))
    assert disk.groups == []


def test_closing_waits_for_everything_that_was_accepted(disk: Disk) -> None:
    closed: list[list[str]] = []

    def close() -> None:
        disk.group.close()
        closed.append(disk.written())

    with ThreadPoolExecutor(4) as pool:
        with disk.held():
            futures = submit(pool, disk, "abc")
            closing = pool.submit(close)
        closing.result(WAIT)
        assert all(future.result(WAIT) for future in futures)
    assert closed == [["leader", "a", "b", "c"]]
    assert not any(thread.name == "stepwell-writer" for thread in disk.threads if thread.is_alive())


# Everything at once.


def test_many_threads_and_coroutines_each_get_their_own_outcome_once() -> None:
    disk = Disk(most=7)
    threads, rounds, coroutines = 8, 40, 100

    def from_a_thread(number: int) -> None:
        for turn in range(rounds):
            name = f"t{number}-{turn}"
            assert disk.group.write(Deletion(name)) == Written([name])

    async def from_a_coroutine(number: int) -> None:
        for turn in range(3):
            name = f"c{number}-{turn}"
            assert await disk.group.write_async(Deletion(name)) == Written([name])

    async def all_coroutines() -> None:
        await asyncio.gather(*(from_a_coroutine(number) for number in range(coroutines)))

    with ThreadPoolExecutor(threads + 1) as pool:
        futures = [pool.submit(from_a_thread, number) for number in range(threads)]
        futures.append(pool.submit(lambda: asyncio.run(all_coroutines())))
        for future in futures:
            future.result(WAIT)
    disk.group.close()
    written = disk.written()
    assert len(written) == len(set(written)) == threads * rounds + coroutines * 3
    assert max(len(group) for group in disk.groups) <= 7
    for number in range(threads):
        mine = [name for name in written if name.startswith(f"t{number}-")]
        assert mine == [f"t{number}-{turn}" for turn in range(rounds)]
