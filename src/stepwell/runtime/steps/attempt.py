"""Attempts at a step: call its function on the loop, in a thread or in a process, with its context and its timeout.

``SystemExit``, ``KeyboardInterrupt`` and the like that user code raises become step failures. Let through, ``sys.exit()`` would
stop the worker's loop with all its executions; a ``StopIteration`` out of a thread cannot pass a future, so that its waiter would
wait for ever; and a cancellation without a request would leave its execution unfinished.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Executor
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import datetime, timedelta
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from stepwell.flow.function import Step, caller
from stepwell.flow.retry import error_text
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY
from stepwell.model.record import Metadata
from stepwell.runtime.steps.attempt_log import AttemptLog
from stepwell.runtime.steps.budget import Budget, HasState
from stepwell.runtime.steps.context import StepContext, here
from stepwell.runtime.steps.outcome import Told, error_names, error_value
from stepwell.runtime.steps.secret_errors import hide_secrets
from stepwell.runtime.unwinding import Unwinding
from stepwell.state.hooks import StepEvent
from stepwell.telemetry import live_span, live_tracer

if TYPE_CHECKING:
    from stepwell.runtime.services import Services  # which has the engines of scripts, and they make attempts at steps

__all__ = [
    "AttemptResult",
    "Attempts",
    "Escaped",
    "Suspicion",
    "contain",
    "contained",
    "in_thread",
    "run_attempt",
    "running_step",
]

log = logging.getLogger(__name__)


T = TypeVar("T")
_MS = timedelta(milliseconds=1)


class Escaped(Told):
    """A ``SystemExit`` or the like that a step or a workflow raised, as an ordinary error."""

    def __init__(self, error: BaseException) -> None:
        told = error_value(error)
        message = f"the code raised {told['kind']}({told['message']}), which ends this call and nothing else"
        super().__init__(message, told | {"message": message}, error_names(error))


def contained(error: BaseException, task: asyncio.Task[Any] | None) -> BaseException:
    """Return what code on a loop raises instead of an error that is no ``Exception``.

    It is a failure, unless the error unwinds the code, cancels its task, or is the user's Ctrl-C.

    Args: task: the task that the code runs in.
    """
    match error:
        case Unwinding() | BaseExceptionGroup():
            is_meant = _unwinds(error)
        case GeneratorExit():
            # Raised by the code itself while its task runs. When a coroutine is closed, another task runs, or none.
            is_meant = asyncio.current_task() is not task
        case KeyboardInterrupt():
            is_meant = threading.current_thread() is threading.main_thread()  # only the main thread gets the signal
        case asyncio.CancelledError():
            is_meant = task is None or task.cancelling() > 0
        case _:
            is_meant = False
    return error if is_meant else Escaped(error)


def _unwinds(error: BaseException) -> bool:
    """Return whether an error unwinds the code of a workflow, alone or in a group."""
    if isinstance(error, BaseExceptionGroup):
        return any(_unwinds(each) for each in cast("BaseExceptionGroup[BaseException]", error).exceptions)
    return isinstance(error, Unwinding)


def contain(function: Callable[[], T]) -> T:
    """Call a function in a thread of a worker; turn ``SystemExit`` and the like into failures."""
    try:
        return function()
    except (StopIteration, CancelledError) as error:
        raise Escaped(error) from error
    except Exception:
        raise
    except BaseException as error:
        if _unwinds(error):
            raise
        raise Escaped(error) from error


class AttemptResult(NamedTuple):
    """The result of an attempt."""

    output: bytes
    """The step's output as canonical bytes; meaningless if there is an error."""
    error: Exception | None
    took_ms: int
    ended_at: datetime
    landing: Sequence[Planned]
    """The step's writes, to be committed with its output."""
    spending: Sequence[Planned]
    """The cost of the attempt, to be committed even if it failed."""
    spent: float = 0


class Suspicion(Protocol):
    """Told when an attempt of a suspected execution begins and ends."""

    async def begin(self, key: str) -> bool:
        """Note that a step begins; return whether its end is to be noted."""
        ...

    def end(self) -> None:
        """Note that it has ended."""
        ...


class Attempts:
    """Runs attempts at the steps of one execution, within its budget."""

    def __init__(self, services: Services, identity: Metadata, execution: HasState) -> None:
        self._services, self._identity, self._execution = services, identity, execution
        self.budget = Budget(identity, execution)
        self.suspicion: Suspicion | None = None
        """Notified of each attempt if the execution may crash its workers; None for almost all."""
        self.grants: tuple[str, ...] | None = None
        """The grants of a definition; None for a function, which has its own."""

    async def make(
        self,
        step: Step[..., Any],
        key: str,
        number: int,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        seconds: float | None = None,
        *,
        recorded_as: str = "",
        summary: str | None = None,
    ) -> AttemptResult:
        """Make one attempt at a step, no longer than the ``seconds`` that its execution has left.

        ``recorded_as`` is the key of its record, if that is not the key that the step sees; ``summary`` is one line about the call.
        Errors of the step are in the result; only a cancelled task and an unwound workflow pass through.
        """
        services, suspicion = self._services, self.suspicion
        if suspicion is not None and not await suspicion.begin(key):
            suspicion = None
        started_by = self._execution.state.sections["trigger"].get(ONLY)
        context = StepContext(self._identity, key, number, services.limits, services.state_reading, started_by, step.name)
        context.recorded_as, context.grants = recorded_as or key, self.grants
        context.attempt_log = AttemptLog(services.clock)
        if self._identity.secrets:
            context.given = (arguments, keywords)
        began = services.clock.now()
        if services.hooks.is_used:
            self._tell("started", step, key, number, began, None)
        try:
            tracer = live_tracer()
            if tracer is None:
                output = await _attempt(step, context, arguments, keywords, services, seconds)
            else:
                who = self._identity
                about: dict[str, str | int] = {"step": key, "attempt": number, "workflow": who.workflow_id}
                about |= {"summary": summary} if summary else {}
                with live_span(tracer, step.name, who.execution_id, who.trace_id, **about):
                    output = await _attempt(step, context, arguments, keywords, services, seconds)
        except Exception as error:  # noqa: BLE001 - the caller's policy decides what it means
            if self._identity.secrets:
                hide_secrets(self._identity.secrets, error, started_by, (arguments, keywords))
            # No variable of this frame may keep the error: its traceback has the frame, which would be a reference cycle.
            return self._ended(step, key, number, context, began, b"", error)
        finally:
            if suspicion is not None:
                suspicion.end()
        return self._ended(step, key, number, context, began, output, None)

    def _ended(
        self,
        step: Step[..., Any],
        key: str,
        number: int,
        context: StepContext,
        began: datetime,
        output: bytes,
        error: Exception | None,
    ) -> AttemptResult:
        """Return the result of an attempt that has ended; tell observers of it, if there are any."""
        ended, buffer = self._services.clock.now(), context.buffer
        if self._services.hooks.is_used:
            self._tell("ended", step, key, number, ended, error)
        landing = buffer.batch() if error is None else ()
        spending = self.budget.spending(buffer.spent)
        if context.attempt_log is not None:
            spending += context.attempt_log.kept(context.recorded_as, number)
        return AttemptResult(output, error, (ended - began) // _MS, ended, landing, spending, buffer.spent)

    def _tell(self, kind: str, step: Step[..., Any], key: str, number: int, at: datetime, error: Exception | None) -> None:
        hooks, who = self._services.hooks, self._identity
        if hooks.has("on_step"):
            event = StepEvent(
                kind=kind,
                execution_id=who.execution_id,
                workspace_id=who.workspace_id,
                workflow_id=who.workflow_id,
                step=step.name,
                key=key,
                attempt=number,
                at=at,
                error=None if error is None else f"{type(error).__name__}: {error_text(error)}",
            )
            hooks.tell("on_step", event)


def run_attempt(step: Step[..., Any], context: StepContext, keywords: dict[str, Any], services: Services) -> Awaitable[bytes]:
    """Run a step as a part of another one, in a context of its own; return its output as canonical bytes."""
    return _attempt(step, context, (), keywords, services, None)


def _attempt(
    step: Step[..., Any],
    context: StepContext,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    services: Services,
    seconds: float | None,
) -> Awaitable[bytes]:
    """Run a step: an async one on this loop, a plain one in a thread, one with ``process=True`` in a process. Raise
    ``TimeoutError`` after its timeout."""
    limit = step.timeout_seconds
    if seconds is not None:
        limit = seconds if limit is None else min(limit, seconds)
    if limit is None and not step.process:  # a timeout costs time even if it never comes
        return _made(step, context, arguments, keywords, services)
    return _limited(step, context, arguments, keywords, services, limit)


async def _limited(
    step: Step[..., Any],
    context: StepContext,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    services: Services,
    limit: float | None,
) -> bytes:
    timer = asyncio.timeout(limit)
    try:
        if step.process:
            async with services.processes.borrow() as (process, _), timer:
                return await process.call(step, context, arguments, keywords)
        async with timer:
            return await _made(step, context, arguments, keywords, services)
    except TimeoutError as error:
        if not timer.expired():
            raise  # the step raised it itself
        raise TimeoutError(f"step {step.name!r} took longer than {limit:g} s, its timeout_seconds") from error


def _made(
    step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any], services: Services
) -> Awaitable[bytes]:
    if step.is_async:
        return _awaited(step, context, arguments, keywords)
    return _threaded(step, context, partial(step.function, *arguments, **keywords), services)


async def _threaded(step: Step[..., Any], context: StepContext, make: Callable[[], Any], services: Services) -> bytes:
    around = copy_context()
    around.run(_enter, context)
    loop = asyncio.get_running_loop()
    marks: list[str] = []
    """Decides which came first, the end of the step or the end of the wait for it; the second one learns of the first."""

    def make_and_tell() -> Any:
        output = make()
        marks.append("ended")
        if marks[0] != "ended":  # a thread cannot be stopped, so an effect may have happened that the record does not have
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(services.note_late_result, context)
        return output

    try:
        output = await in_thread(services.step_threads, around, make_and_tell)
    except asyncio.CancelledError:
        marks.append("given up")
        if marks[0] == "ended":
            services.note_late_result(context)
        raise
    return step.encode(output, context.buffer.limits)


def _enter(context: StepContext) -> None:
    caller.set(None)
    here.set(context)


async def _awaited(step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bytes:
    # In the same task: another task for every step costs more than most steps do. The code is off its branch already.
    inside, at = caller.set(None), here.set(context)
    try:
        output = await step.function(*arguments, **keywords)
    except Exception:
        raise
    except BaseException as error:  # noqa: BLE001 - each is raised again, or as what it means here
        raise contained(error, asyncio.current_task()) from error.__cause__
    finally:
        here.reset(at)
        caller.reset(inside)
    return step.encode(output, context.buffer.limits)


def running_step(frame: FrameType | None) -> tuple[str, str] | None:
    """Return the step and the execution whose async step runs in a stack of frames, innermost first; None if none does."""
    while frame is not None:
        if frame.f_code is _awaited.__code__:
            context: StepContext = frame.f_locals["context"]
            return context.step, context.execution_id
        frame = frame.f_back
    return None


async def in_thread(threads: Executor, context: Context, function: Callable[[], T]) -> T:
    """Call a function in a thread, inside a context."""
    return await asyncio.get_running_loop().run_in_executor(threads, context.run, partial(contain, function))
