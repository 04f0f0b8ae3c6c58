"""Tips for callers that await: whoever begins a transaction asks for the newest receipt, and many who ask at once share a question.

What is asked for while an answer is under way goes out with the next question, never with the present one: an answer is always
newer than the moment when its caller asked.
"""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import Executor
from weakref import WeakKeyDictionary

from stepwell.contract.store import Store
from stepwell.errors import StoreUnavailable

__all__ = ["HeadBatch"]

# A larger question makes nothing faster, but holds its first caller back.
_MOST = 1_000


class _Asking:
    """The questions of one event loop: one under way at a time."""

    def __init__(self, store: Store, threads: Executor) -> None:
        self._store, self._threads = store, threads
        self._waiting: list[tuple[str, asyncio.Future[str | None]]] = []
        self._is_asking = False

    def add(self, execution_id: str) -> asyncio.Future[str | None]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str | None] = loop.create_future()
        self._waiting.append((execution_id, answer))
        if not self._is_asking:
            # Not at once: all who are ready to run now come along.
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
            question = asyncio.get_running_loop().run_in_executor(self._threads, self._store.tips, ids)
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
            for (_, answer), tip in zip(asked, done.result(), strict=True):
                if not answer.done():
                    answer.set_result(tip)
        self._ask()

    def _fail(self, asked: list[tuple[str, asyncio.Future[str | None]]], error: BaseException) -> None:
        for _, answer in asked:
            if not answer.done():
                # An object of its own for each: they are raised in different places.
                answer.set_exception(copy.copy(error))


class HeadBatch:
    """Asks a store for the newest receipts of executions."""

    def __init__(self, store: Store, threads: Executor) -> None:
        self._store, self._threads = store, threads
        # Nothing in here holds a loop, so that one that ended is forgotten.
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Asking] = WeakKeyDictionary()

    def ask(self, execution_id: str) -> asyncio.Future[str | None]:
        """The digest of an execution's newest receipt as it is after this call; None if there is no such execution."""
        loop = asyncio.get_running_loop()
        asking = self._loops.get(loop)
        if asking is None:
            asking = self._loops[loop] = _Asking(self._store, self._threads)
        return asking.add(execution_id)
