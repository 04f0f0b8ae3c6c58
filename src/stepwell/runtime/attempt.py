"""One attempt at a step: its function is called where it belongs, with the step's context around it, for as long as it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import Any, TypeVar

from stepwell.flow.program import Step, caller
from stepwell.runtime.branch import branch
from stepwell.runtime.context import StepContext, here

__all__ = ["attempt", "in_thread"]

T = TypeVar("T")


async def attempt(
    step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any], threads: Executor
) -> Any:
    """Call the step's function: an async one on this loop, a plain one in a thread. ``TimeoutError`` if it takes too long."""
    try:
        async with asyncio.timeout(step.timeout_seconds):
            if step.is_async:
                return await _awaited(step, context, arguments, keywords)
            around = copy_context()
            around.run(_enter, context)
            return await in_thread(threads, around, lambda: step.function(*arguments, **keywords))
    except TimeoutError as error:
        if step.timeout_seconds is None:
            raise
        raise TimeoutError(f"step {step.name!r} took longer than {step.timeout_seconds:g} s") from error


def _enter(context: StepContext) -> None:
    caller.set(None)
    branch.set(None)
    here.set(context)


async def _awaited(step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    # In the same task, since making another for every step costs more than most steps do.
    inside, on, at = caller.set(None), branch.set(None), here.set(context)
    try:
        return await step.function(*arguments, **keywords)
    finally:
        here.reset(at)
        branch.reset(on)
        caller.reset(inside)


async def in_thread(threads: Executor, context: Context, function: Callable[[], T]) -> T:
    """Call a function in a thread, inside a context."""
    return await asyncio.get_running_loop().run_in_executor(threads, context.run, function)
