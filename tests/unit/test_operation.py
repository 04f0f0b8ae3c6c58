"""Operations: written once, driven by callers that block and by callers that await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from stepwell.contract.store import Capabilities
from stepwell.errors import Conflict, NotFound, StoreUnavailable
from stepwell.model.commit import Deletion, Outcome, Unit, Written
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.operations import AsyncDriver, Driver, Operation, read, write, write_or_raise


class Shelf:
    """The part of a store that a driver uses."""

    def __init__(self, *, is_instant: bool = False) -> None:
        self.is_instant = is_instant
        self.opened, self.failures, self.is_shut = 0, 0, False

    def capabilities(self) -> Capabilities:
        return Capabilities(is_shared=False, has_blocking_writes=not self.is_instant)

    def open(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        self.opened += 1

    def close(self) -> None:
        self.is_shut = True


@pytest.fixture
def group() -> Iterator[GroupCommit]:
    group = GroupCommit(
        lambda units: [Conflict("no") if unit.execution_id == "bad" else Written([unit.execution_id]) for unit in units]
    )
    yield group
    group.close()


def whole() -> Operation[list[object]]:
    """Reads, writes, and handles an error of each."""
    found: list[object] = [(yield from read(lambda: 1))]
    outcome = yield from write(Deletion("a"))
    found.append(outcome)
    try:
        yield from read(lambda: 1 // 0)
    except ZeroDivisionError as error:
        found.append(type(error))
    try:
        yield from write_or_raise(Deletion("bad"))
    except Conflict as error:
        found.append(error.message)
    found.append((yield from write(Deletion("bad"))).code)
    return found


EXPECTED = [1, Written(["a"]), ZeroDivisionError, "no", "SW-201"]


def awaited(group: GroupCommit, shelf: Shelf, *operations: Operation[object]) -> list[object]:
    async def main() -> list[object]:
        driver = AsyncDriver(group, shelf)
        try:
            return [await driver.run(operation) for operation in operations]
        finally:
            await driver.close(shelf.close)

    return asyncio.run(main())


def test_both_drivers_do_the_same(group: GroupCommit) -> None:
    assert Driver(group).run(whole()) == EXPECTED
    assert awaited(group, Shelf(), whole()) == [EXPECTED]
    assert awaited(group, Shelf(is_instant=True), whole()) == [EXPECTED]


def failing() -> Operation[None]:
    yield from read(lambda: None)
    raise NotFound("nothing here")


def test_error_that_the_operation_does_not_handle_comes_out(group: GroupCommit) -> None:
    with pytest.raises(NotFound, match="nothing here"):
        Driver(group).run(failing())
    with pytest.raises(NotFound, match="nothing here"):
        awaited(group, Shelf(), failing())


def where() -> Operation[str]:
    return (yield from read(lambda: threading.current_thread().name))


def test_reads_that_may_block_leave_the_event_loop(group: GroupCommit) -> None:
    assert Driver(group).run(where()) == threading.current_thread().name
    assert awaited(group, Shelf(), where())[0].startswith("stepwell-reader")
    assert awaited(group, Shelf(is_instant=True), where())[0] == threading.current_thread().name


def test_store_is_opened_once_by_whoever_comes_first(group: GroupCommit) -> None:
    shelf = Shelf()

    async def main() -> None:
        driver = AsyncDriver(group, shelf)
        await asyncio.gather(*(driver.run(whole()) for _ in range(20)))
        await driver.open()
        await driver.close(shelf.close)

    asyncio.run(main())
    assert shelf.opened == 1
    assert shelf.is_shut


def test_store_that_could_not_be_opened_is_tried_again(group: GroupCommit) -> None:
    shelf = Shelf()
    shelf.failures = 2

    async def main() -> object:
        driver = AsyncDriver(group, shelf)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="away"):
                await driver.run(whole())
        try:
            return await driver.run(whole())
        finally:
            await driver.close(shelf.close)

    assert asyncio.run(main()) == EXPECTED
    assert shelf.opened == 1


def test_caller_cancelled_while_the_store_opens_does_not_stop_the_others(group: GroupCommit) -> None:
    shelf, opening, may_open = Shelf(), threading.Event(), threading.Event()

    def slow() -> None:
        opening.set()
        assert may_open.wait(60)
        Shelf.open(shelf)

    shelf.open = slow

    async def main() -> object:
        driver = AsyncDriver(group, shelf)
        first, second = asyncio.ensure_future(driver.run(whole())), asyncio.ensure_future(driver.run(whole()))
        await asyncio.to_thread(opening.wait, 30)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        may_open.set()
        try:
            return await second
        finally:
            await driver.close(shelf.close)

    assert asyncio.run(main()) == EXPECTED
    assert shelf.opened == 1


def test_closed_driver_says_so_and_may_be_closed_again(group: GroupCommit) -> None:
    async def main() -> None:
        driver = AsyncDriver(group, Shelf())
        await driver.run(whole())
        await driver.close(lambda: None)
        await driver.close(lambda: pytest.fail("closed twice"))
        with pytest.raises(StoreUnavailable, match="closed"):
            await driver.run(whole())

    asyncio.run(main())


def test_driver_that_never_opened_can_be_closed(group: GroupCommit) -> None:
    shelf = Shelf()
    asyncio.run(AsyncDriver(group, shelf).close(shelf.close))
    assert shelf.is_shut
    assert shelf.opened == 0


def test_cancelled_caller_is_seen_by_the_operation(group: GroupCommit) -> None:
    seen, entered, may_go = [], threading.Event(), threading.Event()

    def query() -> None:
        entered.set()
        may_go.wait(60)

    def operation() -> Operation[None]:
        try:
            yield from read(query)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        driver = AsyncDriver(group, Shelf())
        task = asyncio.ensure_future(driver.run(operation()))
        await asyncio.to_thread(entered.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go.set()
        await driver.close(lambda: None)

    asyncio.run(main())
    assert seen == ["cancelled"]


def test_loop_that_has_nothing_else_to_do_writes_by_itself(group: GroupCommit) -> None:
    """As a worker's loop that runs a single execution: it saves two changes of threads."""
    threads: list[str] = []

    def note(units: Sequence[Unit]) -> list[Outcome]:
        threads.append(threading.current_thread().name)
        return [Written() for _ in units]

    async def main() -> None:
        noting, is_alone = GroupCommit(note), [True]
        driver = AsyncDriver(noting, Shelf(), is_open=True, may_block=lambda: is_alone[0])
        await driver.run(write(Deletion("a")))
        is_alone[0] = False
        await driver.run(write(Deletion("b")))
        noting.close()
        driver.let_go()

    asyncio.run(main())
    assert threads == [threading.current_thread().name, "stepwell-writer"]
