"""One attempt at a step: its function is called where it belongs, with the step's context around it, for as long as it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol, TypeVar

from stepwell.flow.function import Step, caller
from stepwell.runtime.branch import branch
from stepwell.runtime.context import StepContext, here
from stepwell.runtime.escape import contain, contained
from stepwell.runtime.processes import ProcessPool

__all__ = ["Places", "attempt", "in_thread"]

T = TypeVar("T")


class Places(Protocol):
    """Where steps are made."""

    threads: Executor

    @property
    def processes(self) -> ProcessPool:
        """Processes for steps that ask for one."""
        ...


def attempt(
    step: Step[..., Any],
    context: StepContext,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    places: Places,
    seconds: float | None = None,
) -> Awaitable[bytes]:
    """Make a step: an async one on this loop, a plain one in a thread, one that asks for it in a process. Its output as canonical
    bytes; ``TimeoutError`` if it takes longer than it may, or than the ``seconds`` that its execution has left."""
    limit = step.timeout_seconds
    if seconds is not None:
        limit = seconds if limit is None else min(limit, seconds)
    if limit is None and not step.process:  # a timeout that never comes is not free
        return _made(step, context, arguments, keywords, places.threads)
    return _limited(step, context, arguments, keywords, places, limit)


async def _limited(
    step: Step[..., Any],
    context: StepContext,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    places: Places,
    limit: float | None,
) -> bytes:
    timer = asyncio.timeout(limit)
    try:
        if step.process:
            async with places.processes.borrow() as process, timer:
                return await process.call(step, context, arguments, keywords)
        async with timer:
            return await _made(step, context, arguments, keywords, places.threads)
    except TimeoutError as error:
        if not timer.expired():
            raise  # of the step's own making
        raise TimeoutError(f"step {step.name!r} took longer than {limit:g} s") from error


def _made(
    step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any], threads: Executor
) -> Awaitable[bytes]:
    if step.is_async:
        return _awaited(step, context, arguments, keywords)
    return _threaded(step, context, partial(step.function, *arguments, **keywords), threads)


async def _threaded(step: Step[..., Any], context: StepContext, make: Callable[[], Any], threads: Executor) -> bytes:
    around = copy_context()
    around.run(_enter, context)
    return step.encode(await in_thread(threads, around, make), context.buffer.limits)


def _enter(context: StepContext) -> None:
    caller.set(None)
    branch.set(None)
    here.set(context)


async def _awaited(step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bytes:
    # In the same task, since making another for every step costs more than most steps do. It is off its branch already.
    inside, at = caller.set(None), here.set(context)
    try:
        output = await step.function(*arguments, **keywords)
    except Exception:
        raise
    except BaseException as error:  # noqa: BLE001 - each is raised again, or as what it means here
        raise contained(error) from error.__cause__
    finally:
        here.reset(at)
        caller.reset(inside)
    return step.encode(output, context.buffer.limits)


async def in_thread(threads: Executor, context: Context, function: Callable[[], T]) -> T:
    """Call a function in a thread, inside a context."""
    return await asyncio.get_running_loop().run_in_executor(threads, context.run, partial(contain, function))
