"""Calls of an async workflow that its code made and did not await: such a call never ran, so the run must not end well."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Coroutine, Iterable
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

from stepwell.errors import InvalidInput
from stepwell.flow.function import Step

__all__ = ["UnawaitedCalls"]

T = TypeVar("T")


class UnawaitedCalls:
    """The calls of one session that have been made and have not begun, by position."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Coroutine[Any, Any, Any], str | Step[..., Any], CodeType, int]] = {}

    def add(
        self, position: str, what: str | Step[..., Any], call: Coroutine[Any, Any, T], depth: int = 3
    ) -> Coroutine[Any, Any, T]:
        """Note a call, and return it. This is on the path of every step: what the message needs is worked out only if it is needed.

        Args:
            depth: how many frames below this one the user's code is.
        """
        frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage] - other ways cost as much as a step
        self._calls[position] = call, what, frame.f_code, frame.f_lasti
        return call

    def begun(self, position: str) -> None:
        """Forget a call: its code has awaited it."""
        self._calls.pop(position, None)

    def fault(self, tasks: Iterable[asyncio.Future[Any]]) -> InvalidInput | None:
        """Return the error of a run whose code has ended: its first call that was not awaited.

        Also a call whose task has not begun, since the run would end without it. A call that the code cancelled before it
        began, as a task group does with the others when one fails, is no mistake.
        """
        if not self._calls:
            return None
        cancelled = _calls_of(task for task in tasks if isinstance(task, asyncio.Task) and task.cancelling())
        for call, what, code, instruction in self._calls.values():
            if inspect.getcoroutinestate(call) == inspect.CORO_CREATED and call not in cancelled:
                name = what if isinstance(what, str) else f"step {what.name!r}"
                return InvalidInput(f"{name} was called and not awaited{_place(code, instruction)}; write await before it")
        return None

    def close(self, tasks: Iterable[asyncio.Future[Any]]) -> None:
        """Close what never began, and no task will begin: Python would warn about it, and each call keeps its session alive."""
        if self._calls:
            later = _calls_of(tasks)
            for call, *_ in self._calls.values():
                if call not in later:
                    call.close()
            self._calls.clear()


def _place(code: CodeType, instruction: int) -> str:
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return f", at {Path(code.co_filename).name}:{next(lines, None) or code.co_firstlineno}"


def _calls_of(tasks: Iterable[asyncio.Future[Any]]) -> set[object]:
    return {task.get_coro() for task in tasks if isinstance(task, asyncio.Task)}
