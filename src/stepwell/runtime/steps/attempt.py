"""What user code raises that to Python is no failure but an order to stop. Here it fails a call, like any other error.

Let through, ``sys.exit()`` would stop the worker's loop with everybody's executions on it; a ``StopIteration`` out of a thread
cannot pass a future, so that whoever waits for it waits for ever; and a cancellation that nobody asked for would leave its
execution lying.

One attempt at a step: its function is called where it belongs, with the step's context around it, for as long as it may take.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Executor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol, TypeVar

from stepwell.flow.function import Step, caller
from stepwell.runtime.sessions.call_positions import branch
from stepwell.runtime.sessions.waits import Unwinding
from stepwell.runtime.steps.context import StepContext, here
from stepwell.runtime.steps.outcome import Told, error_names, error_value
from stepwell.runtime.steps.process_pool import ProcessPool

__all__ = [
    "Escaped",
    "Places",
    "attempt",
    "contain",
    "contained",
    "in_thread",
]


T = TypeVar("T")


class Escaped(Told):
    """An order to stop that a step or a workflow gave, told as the error that it was."""

    def __init__(self, error: BaseException) -> None:
        told = error_value(error)
        message = f"the code raised {told['kind']}({told['message']}), which ends this call and nothing else"
        super().__init__(message, told | {"message": message}, error_names(error))


def contained(error: BaseException) -> BaseException:
    """What to raise on a loop instead of what is no ``Exception``: a failure, unless it is the user's, or of whoever cancels the
    task, or unwinds the code. Not ``GeneratorExit``, by which a loop ends coroutines."""
    match error:
        case GeneratorExit() | BaseExceptionGroup() | Unwinding():
            is_meant = True
        case KeyboardInterrupt():
            is_meant = threading.current_thread() is threading.main_thread()  # the only one that gets the signal
        case asyncio.CancelledError():
            task = asyncio.current_task()
            is_meant = task is None or task.cancelling() > 0
        case _:
            is_meant = False
    return error if is_meant else Escaped(error)


def contain(function: Callable[[], T]) -> T:
    """Call a function in a thread of a worker, where no order to stop is meant for the thread."""
    try:
        return function()
    except (BaseExceptionGroup, Unwinding):
        raise
    except (StopIteration, CancelledError) as error:
        raise Escaped(error) from error
    except Exception:
        raise
    except BaseException as error:
        raise Escaped(error) from error


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
