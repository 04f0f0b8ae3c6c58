"""Operations: the work of the public classes, written once for blocking and for awaiting callers.

An operation is a generator. It yields what must be done outside itself, a ``Read``, a ``Write`` or a ``WaitEffect``, and returns
its result. ``Driver`` executes these and blocks; ``AsyncDriver`` awaits them. The operation knows neither.

Awaiting callers that ask for newest receipts at the same time share one read (``HeadBatch``). Requests that come during a read go
into the next one, so that an answer is always newer than its request.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from stepwell.contract.store import Store
from stepwell.errors import StepwellError, StoreUnavailable
from stepwell.model.commit import Outcome, Seen, Unit, Written
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.pipeline.notifications import Subscription

__all__ = [
    "AsyncDriver",
    "Driver",
    "Effect",
    "HeadBatch",
    "Operation",
    "Read",
    "ReadHead",
    "SlowRead",
    "WaitEffect",
    "Write",
    "WriteMany",
    "read",
    "read_slowly",
    "wait",
    "write",
    "write_many",
    "write_or_raise",
]


# The most ids in one read. Larger reads are no faster, but delay their first caller.
_MOST = 1_000


class _Asking:
    """The batched reads of one event loop, one at a time."""

    def __init__(self, store: Store, threads: Executor) -> None:
        self._store, self._threads = store, threads
        self._waiting: list[tuple[str, asyncio.Future[str | None]]] = []
        self._is_asking = False

    def add(self, execution_id: str) -> asyncio.Future[str | None]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str | None] = loop.create_future()
        self._waiting.append((execution_id, answer))
        if not self._is_asking:
            # Not at once, so that all tasks that are ready to run now share this read.
            self._is_asking = True
            loop.call_soon(self._ask)
        return answer

    def _ask(self) -> None:
        asked, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
        asked = [(execution_id, answer) for execution_id, answer in asked if not answer.done()]
        if not asked:
            self._is_asking = False
            return
        try:
            ids = [execution_id for execution_id, _ in asked]
            question = asyncio.get_running_loop().run_in_executor(self._threads, self._store.head_digests, ids)
        except RuntimeError:
            self._fail(asked, StoreUnavailable("the store is closed; open it again"))
            self._ask()
        else:
            question.add_done_callback(lambda done: self._answer(asked, done))

    def _answer(self, asked: list[tuple[str, asyncio.Future[str | None]]], done: asyncio.Future[list[str | None]]) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            self._fail(asked, error)
        else:
            for (_, answer), digest in zip(asked, done.result(), strict=True):
                if not answer.done():
                    answer.set_result(digest)
        self._ask()

    def _fail(self, asked: list[tuple[str, asyncio.Future[str | None]]], error: BaseException) -> None:
        for _, answer in asked:
            if not answer.done():
                # A copy for each caller, since each raises it in another place.
                answer.set_exception(copy.copy(error))


class HeadBatch:
    """Reads the newest receipts of executions, for several callers at once."""

    def __init__(self, store: Store, threads: Executor) -> None:
        self._store, self._threads = store, threads
        # Weak keys, so that a loop that has ended is forgotten.
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Asking] = WeakKeyDictionary()

    def ask(self, execution_id: str) -> asyncio.Future[str | None]:
        """Return the digest of an execution's newest receipt, read after this call; None if there is no such execution."""
        loop = asyncio.get_running_loop()
        asking = self._loops.get(loop)
        if asking is None:
            asking = self._loops[loop] = _Asking(self._store, self._threads)
        return asking.add(execution_id)


T = TypeVar("T")


class Read:
    """A read of a store."""

    __slots__ = ("query",)

    def __init__(self, query: Callable[[], Any]) -> None:
        self.query = query


class ReadHead(Read):
    """A read of the digest of an execution's newest receipt, batched with others."""

    __slots__ = ("execution_id",)

    def __init__(self, store: Store, execution_id: str) -> None:
        super().__init__(lambda: store.head_digests((execution_id,))[0])
        self.execution_id = execution_id


class SlowRead(Read):
    """A read that takes long, or calls a function of the user: no event loop makes it itself, even on a store that is instant."""

    __slots__ = ()


class Write(msgspec.Struct, frozen=True, gc=False):
    """A unit to be written, together with other waiting units."""

    unit: Unit


class WriteMany(msgspec.Struct, frozen=True, gc=False):
    """Units to be written in order, in as few transactions as possible. A refused one does not stop the others."""

    units: Sequence[Unit]


class WaitEffect:
    """A wait for a notification, at most for a number of seconds."""

    __slots__ = ("listening", "seconds")

    def __init__(self, listening: Subscription, seconds: float) -> None:
        self.listening, self.seconds = listening, seconds


Effect = Read | Write | WriteMany | WaitEffect
Operation = Generator[Effect, Any, T]


def read(query: Callable[[], T]) -> Operation[T]:
    """Read, and return the result."""
    return (yield Read(query))


def read_slowly(query: Callable[[], T]) -> Operation[T]:
    """Read what takes long, or calls a function of the user, and return the result."""
    return (yield SlowRead(query))


def wait(listening: Subscription, seconds: float) -> Operation[None]:
    """Sleep until a notification."""
    yield WaitEffect(listening, seconds)


def write(unit: Unit) -> Operation[Outcome]:
    """Write a unit, and return its outcome."""
    return (yield Write(unit))


def write_or_raise(unit: Unit) -> Operation[Written | Seen]:
    """Write a unit, and return its outcome. Raise a refusal."""
    outcome = yield from write(unit)
    if isinstance(outcome, StepwellError):
        raise outcome
    return outcome


def write_many(units: Sequence[Unit]) -> Operation[list[Outcome]]:
    """Write units in order, and return the outcome of each."""
    return (yield WriteMany(units))


class Driver:
    """Runs operations for callers that block."""

    def __init__(self, group: GroupCommit) -> None:
        self._group = group

    def run(self, operation: Operation[T]) -> T:
        """Run an operation, and return its result."""
        try:
            effect = operation.send(None)
            while True:
                try:
                    if isinstance(effect, Write):
                        answer = self._group.write(effect.unit)
                    elif isinstance(effect, WriteMany):
                        answer = self._group.write_many(effect.units)
                    else:
                        answer = _answer(effect)
                except BaseException as error:  # noqa: BLE001 - the operation decides what to do about it
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as end:
            return end.value

    def run_blocking(self, operation: Operation[T]) -> T:
        """Run an operation, and return its result, as ``AsyncDriver.run_blocking`` does."""
        return self.run(operation)


def _answer(effect: Read | WaitEffect) -> Any:
    return effect.query() if isinstance(effect, Read) else effect.listening.wait(effect.seconds)


class AsyncDriver:
    """Runs operations for callers that await. Reads of stores that may block run in a few threads."""

    def __init__(
        self,
        group: GroupCommit,
        store: Store,
        *,
        readers: int = 8,
        is_open: bool = False,
        open_store: Callable[[], None] | None = None,
        may_block: Callable[[], bool] = lambda: False,
    ) -> None:
        """Serve a store, which ``open_store`` opens, by default its own ``open``.

        ``may_block`` returns whether the event loop has nothing else to do, so that it may block for a write itself. That saves
        two thread switches.
        """
        self._group, self._store, self._may_block = group, store, may_block
        self._is_open, self._open_store = is_open, open_store or store.open
        self._opening: asyncio.Future[None] | None = None
        self._is_instant = not store.capabilities().has_blocking_writes
        self._threads = ThreadPoolExecutor(readers, thread_name_prefix="stepwell-reader")
        self._heads = HeadBatch(store, self._threads)
        self._is_closed = False

    async def open(self) -> None:
        """Open the store once, for all callers; after a failure the next caller tries again."""
        if self._is_closed:
            raise StoreUnavailable("the store is closed; open it again")
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opening = asyncio.ensure_future(self.call(self._open_store))
        await asyncio.shield(opening)
        self._is_open = True

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation, and return its result."""
        if self._is_closed or not self._is_open:
            await self.open()
        try:
            effect = operation.send(None)
            while True:
                try:
                    if isinstance(effect, Write):
                        unit = effect.unit
                        answer = self._group.write(unit) if self._may_block() else await self._group.write_async(unit)
                    elif isinstance(effect, WriteMany):
                        answer = await asyncio.gather(*(self._group.write_async(each) for each in effect.units))
                    elif isinstance(effect, WaitEffect):
                        answer = await effect.listening.wait_async(effect.seconds)
                    elif self._is_instant and not isinstance(effect, SlowRead):
                        answer = effect.query()
                    elif isinstance(effect, ReadHead):
                        answer = await self._heads.ask(effect.execution_id)
                    else:
                        answer = await self.call(effect.query)
                except BaseException as error:  # noqa: BLE001 - the operation decides what to do about it
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as end:
            return end.value

    def run_blocking(self, operation: Operation[T]) -> T:
        """Run an operation, and return its result. Its thread blocks: for callers that cannot await.

        Raise ``StoreUnavailable`` if the store was not opened yet, since opening is awaited.
        """
        if not self._is_open:
            raise StoreUnavailable("the store is not open yet; await a call first")
        return Driver(self._group).run(operation)

    async def call(self, function: Callable[[], T]) -> T:
        """Run a blocking function in a thread, and await it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def close(self, function: Callable[[], None]) -> None:
        """Run ``function``, which closes the store, then end the threads. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            await self.call(function)
            self._threads.shutdown(wait=False)

    def let_go(self) -> None:
        """End the threads of a driver whose store others close."""
        self._is_closed = True
        self._threads.shutdown(wait=False)
