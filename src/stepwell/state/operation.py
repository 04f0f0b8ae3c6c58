"""Operations: what the faces do, written once and driven in either colour.

An operation is a generator that yields what it needs done outside itself, a ``Read`` or a ``Write``, and returns its result. The
blocking driver does these on the spot; the async one awaits them. Everything between is ordinary code that neither waits nor
knows who drives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from stepwell.contract.store import Store
from stepwell.errors import StepwellError
from stepwell.model.commit import Outcome, Seen, Unit, Written
from stepwell.stores.group import GroupCommit

__all__ = ["AsyncDriver", "Driver", "Operation", "Read", "Write", "read", "write", "write_or_raise"]

T = TypeVar("T")


class Read:
    """Something to be read from a store."""

    __slots__ = ("query",)

    def __init__(self, query: Callable[[], Any]) -> None:
        self.query = query


class Write:
    """A unit to be written, together with whatever else is waiting."""

    __slots__ = ("unit",)

    def __init__(self, unit: Unit) -> None:
        self.unit = unit


Operation = Generator[Read | Write, Any, T]


def read(query: Callable[[], T]) -> Operation[T]:
    """Have something read."""
    return (yield Read(query))


def write(unit: Unit) -> Operation[Outcome]:
    """Have a unit written; its outcome."""
    return (yield Write(unit))


def write_or_raise(unit: Unit) -> Operation[Written | Seen]:
    """Have a unit written; a refusal is raised."""
    outcome = yield from write(unit)
    if isinstance(outcome, StepwellError):
        raise outcome
    return outcome


class Driver:
    """Drives operations for callers that block."""

    def __init__(self, group: GroupCommit) -> None:
        self._group = group

    def run(self, operation: Operation[T]) -> T:
        """Do everything the operation asks for; its result."""
        try:
            effect = operation.send(None)
            while True:
                try:
                    answer = self._group.write(effect.unit) if isinstance(effect, Write) else effect.query()
                except BaseException as error:  # noqa: BLE001 - the operation decides what to do about it
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as end:
            return end.value


class AsyncDriver:
    """Drives operations for callers that await. Reads of stores that may block go to a few threads."""

    def __init__(self, group: GroupCommit, store: Store, *, readers: int = 8) -> None:
        self._group, self._store = group, store
        self._opening: asyncio.Future[None] | None = None
        self._is_instant = not store.capabilities().has_blocking_writes
        self._threads = ThreadPoolExecutor(readers, thread_name_prefix="stepwell-reader")

    async def open(self) -> None:
        """Open the store, once, whoever asks first; a failure is tried again by the next."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self.call(self._store.open))
        await asyncio.shield(self._opening)

    async def run(self, operation: Operation[T]) -> T:
        """Do everything the operation asks for; its result."""
        if self._opening is None or not self._opening.done():
            await self.open()
        try:
            effect = operation.send(None)
            while True:
                try:
                    if isinstance(effect, Write):
                        answer = await self._group.write_async(effect.unit)
                    else:
                        answer = await self._read(effect.query)
                except BaseException as error:  # noqa: BLE001 - the operation decides what to do about it
                    effect = operation.throw(error)
                else:
                    effect = operation.send(answer)
        except StopIteration as end:
            return end.value

    async def call(self, function: Callable[[], T]) -> T:
        """Run something that blocks, and await it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def _read(self, query: Callable[[], Any]) -> Any:
        return query() if self._is_instant else await self.call(query)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False)
