"""Lets one test drive both faces: an ``AsyncStepwell`` that is used as if it blocked."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from stepwell import AsyncStepwell, StepRecord

__all__ = ["Awaited", "LoopThread", "step_records"]


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="acceptance-loop")
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def close(self) -> None:
        """End the loop and its thread."""
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Awaited:
    """A part of ``AsyncStepwell`` whose awaited calls block. It adds nothing: names, arguments and results are the part's own."""

    def __init__(self, thing: Any, loop: LoopThread) -> None:
        self._thing, self._loop = thing, loop

    @classmethod
    def open(cls, loop: LoopThread, *arguments: Any, **options: Any) -> Awaited:
        """An ``AsyncStepwell`` that is open."""
        return cls(AsyncStepwell(*arguments, **options), loop).__enter__()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        return self._call(found) if inspect.ismethod(found) else self._shown(found)

    def _call(self, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            plain = [_bare(argument) for argument in arguments]
            return self._shown(method(*plain, **{name: _bare(option) for name, option in options.items()}))

        return call

    def _shown(self, found: Any) -> Any:
        if inspect.iscoroutine(found):
            return self._shown(self._loop.run(found))
        if inspect.isasyncgen(found):
            return self._each(found)
        if isinstance(found, list):
            return [self._shown(each) for each in found]
        return Awaited(found, self._loop) if type(found).__name__.startswith("Async") else found

    def _each(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    item = self._loop.run(anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._loop.run(items.aclose())

    def __enter__(self) -> Any:
        return self._shown(self._loop.run(self._thing.__aenter__()))

    def __exit__(self, *error: Any) -> Any:
        return self._loop.run(self._thing.__aexit__(*error))


def _bare(argument: Any) -> Any:
    return argument._thing if isinstance(argument, Awaited) else argument


def step_records(run: Any) -> dict[str, StepRecord]:
    """The steps of a run, by name."""
    return {each.name: each for each in run.steps()}
