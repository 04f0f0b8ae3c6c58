"""Calls of a plain workflow that are made side by side: its code is in a thread and waits for all of them.

Each lane makes one call after another. A call that must wait for long suspends the code; its lane then makes no more, since the
call holds its place until the run is taken up again, and the other lanes go on. After a failure no more calls are begun; those that
are under way end and are recorded first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stepwell.runtime.branch import branch
from stepwell.runtime.waiting import Suspended

__all__ = ["side_by_side"]

Call = Callable[[], Coroutine[Any, Any, Any]]


async def side_by_side(calls: Sequence[Call], lanes: int, is_stopping: Callable[[], bool]) -> list[Any]:
    """Make calls, so many at a time; their results in order. Of several failures the first in order is raised, so that it is the
    same one when the calls are answered from the record. ``is_stopping`` says whether to begin no more: the worker is to stop."""
    branch.set(None)  # the tasks below are not the workflow's own
    results: dict[int, Any] = {}
    ends: dict[int, BaseException] = {}
    upcoming = iter(enumerate(calls))

    async def lane() -> None:
        for number, call in upcoming:
            if is_stopping():
                ends[number] = Suspended()
                return
            try:
                results[number] = await call()
            except BaseException as error:  # noqa: BLE001 - raised below, when all have ended
                ends[number] = error
                return
            if any(not isinstance(error, Suspended) for error in ends.values()):
                return

    await asyncio.gather(*(lane() for _ in range(min(lanes, len(calls)))))
    if ends:
        raise min((_rank(error), number, error) for number, error in ends.items())[2]
    return [results[number] for number in range(len(calls))]


def _rank(error: BaseException) -> int:
    """That the session is over comes first. A run that rests comes by here again, and tells a failure when it waits no more."""
    return 2 if isinstance(error, Exception) else 1 if isinstance(error, Suspended) else 0
