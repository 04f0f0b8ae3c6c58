"""A session: one execution being run here, by the code of its workflow function.

The code is run from its start. A call whose output is recorded is answered from the record; the first one that is not is really
made, and its output committed before the code goes on. Waits (sleep, signal, child, a late retry) are tokens in the execution's
state; when nothing but waits is left, the session ends and the execution rests in the store, until its time comes or it is nudged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, copy_context
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from stepwell.clock import Clock
from stepwell.errors import (
    CommitUnknown,
    ExecutionCancelled,
    ExecutionFailed,
    InvalidInput,
    LeaseLost,
    NotFound,
    StepFailed,
    StepwellError,
    StoreUnavailable,
)
from stepwell.flow.program import Step, Workflow, caller
from stepwell.model.commit import Lease, Rest
from stepwell.model.draft import Planned
from stepwell.model.limits import Limits
from stepwell.model.mutation import (
    AddToken,
    IncrementStepCount,
    RecordStep,
    RemoveToken,
    SetResult,
    SetStatus,
    SetVariable,
    UpdateToken,
    WriteState,
)
from stepwell.model.record import (
    Metadata,
    StepOutput,
    Token,
    decode_step,
    decode_token,
    decode_trigger,
    encode_record,
    encode_token,
)
from stepwell.model.state import ONLY
from stepwell.model.status import Status, StepStatus
from stepwell.model.value import Value, canonical, decode
from stepwell.runtime.attempt import attempt, in_thread
from stepwell.runtime.branch import Branch, branch, is_before
from stepwell.runtime.context import StepContext, WorkflowContext, here
from stepwell.runtime.inbox import CHILD, SIGNAL, Letter, fresh_key, put, take
from stepwell.runtime.recorder import Recorder
from stepwell.runtime.waiting import Abandoned, Suspended, Waits

__all__ = ["ExecutionSession", "Surroundings"]

T = TypeVar("T")
log = logging.getLogger(__name__)
Raw = msgspec.Raw


class Surroundings(Protocol):
    """What a session needs of its worker."""

    clock: Clock
    limits: Limits
    threads: Executor
    code_threads: Executor

    def new_id(self) -> str:
        """A fresh id."""
        ...

    async def letters(self, execution_id: str, workspace_id: str) -> list[Letter]:
        """The messages in an execution's inbox."""
        ...

    async def start_child(self, workflow: Workflow[..., Any], value: Value, child_id: str, parent: Metadata) -> None:
        """Start an execution for another one; nothing happens if it was started before."""
        ...


class ExecutionSession:
    """Runs one execution until it ends or rests. Implements ``flow.program.Caller`` for the code inside."""

    def __init__(
        self, around: Surroundings, workflow: Workflow[..., Any], recorder: Recorder, lease: Lease, *, is_new: bool
    ) -> None:
        self._around, self._workflow, self._recorder, self.lease = around, workflow, recorder, lease
        self._is_new = is_new
        self._loop = asyncio.get_running_loop()
        self._identity = recorder.state.identity
        self._recorded = {decode_step(data).node_id: name for name, data in recorder.state.sections["steps"].items()}
        self._buffered: list[Planned] = []
        self._variables: dict[str, bytes] = {}
        self._patches: dict[str, str] = {}
        self._waits = Waits(around.clock, may_linger=workflow.is_async, is_busy=self._is_busy)
        self._active = 0
        self._task: asyncio.Task[Any] | None = None
        self._end: Abandoned | None = None
        self._is_handing_back = False

    @property
    def execution_id(self) -> str:
        """The execution's id."""
        return self._identity.execution_id

    # The life of a session.

    async def run(self) -> int | None:
        """Run the code to its end or until it rests; the time at which a resting execution wants to be woken, if any."""
        try:
            await self._begin()
            output = await self._run_code()
            await self._finish(Status.COMPLETED, {"output": decode(output)})
        except Suspended:
            return await self._rest()
        except Abandoned as end:
            raise end.reason from None
        except BaseExceptionGroup as group:
            if group.split(Suspended)[1] is None:
                return await self._rest()
            await self._finish(Status.FAILED, {"error": _error_value(group)})
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is how the execution ends
            await self._finish(Status.FAILED, {"error": _error_value(error)})
        finally:
            self._waits.stop()
        return None

    async def _begin(self) -> None:
        status = decode(self._recorder.state.sections["status"][ONLY])
        if status != Status.RUNNING:
            await self._commit([SetStatus(Status.RUNNING)])
        if not self._is_new:
            await self.look()

    async def _run_code(self) -> bytes:
        trigger = decode_trigger(self._recorder.state.sections["trigger"][ONLY])
        arguments = self._workflow.bind(trigger)
        context = copy_context()
        context.run(caller.set, self)
        context.run(branch.set, Branch())
        context.run(here.set, WorkflowContext(self._identity, self))
        if self._workflow.is_async:
            self._task = self._loop.create_task(self._workflow.function(**arguments), context=context)
            result = await self._task
        else:
            result = await in_thread(self._around.code_threads, context, lambda: self._workflow.function(**arguments))
        return self._workflow.encode(result)

    async def _finish(self, status: Status, result: dict[str, Value]) -> None:
        """Record how it ended, tell the parent, and give the lease back, in one commit. What was cancelled ends as cancelled."""
        batch: list[Planned] = [RemoveToken(token_id) for token_id in self._recorder.state.sections["tokens"]]
        if self._waits.cancel is not None:
            status, result = Status.CANCELLED, {"error": _error_value(ExecutionCancelled())}
            batch.append(take(self.execution_id, self._identity.workspace_id, self._waits.cancel))
        batch.append(SetResult(Raw(canonical(result))))
        parent = self._identity.parent_id if self._identity.is_child else None
        if parent is not None:
            news = {"status": str(status), "result": result}
            letter = put(parent, self._identity.workspace_id, CHILD, self.execution_id, news, fresh_key(self._around.new_id()))
            batch.append(WriteState(letter))
        batch.append(SetStatus(status))
        await self._commit(batch, rest=Rest(None, is_final=True), nudges=() if parent is None else (parent,))

    async def _rest(self) -> int | None:
        """Give the execution back to the store. Steps that are still under way in other branches end and are recorded first."""
        while self._is_busy():  # noqa: ASYNC110 - two counters to watch, on a way that is rarely taken
            await asyncio.sleep(0.01)
        wake = self._around.clock.now_ms() if self._is_handing_back else self._waits.soonest_ms
        await self._recorder.commit([*self._buffered, SetStatus(Status.WAITING)], rest=Rest(wake))
        return wake

    def lose(self, error: LeaseLost) -> None:
        """Stop at once: somebody else may run this execution now, and nothing more of this session is taken."""
        self._end = Abandoned(error)
        self._waits.fail(self._end)
        if self._task is not None:
            self._task.cancel()

    def hand_back(self) -> None:
        """Stop soon, so that another worker can go on: at once if nothing is under way, else at the next call."""
        self._is_handing_back = True
        if not self._is_busy():
            self._waits.suspend()

    async def look(self) -> None:
        """Look into the inbox and hand out what came."""
        self._waits.hand_out(await self._around.letters(self.execution_id, self._identity.workspace_id))

    def _is_busy(self) -> bool:
        return bool(self._active) or self._recorder.is_busy

    # What the workflow's code calls.

    def call_step(self, step: Step[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run a step once, or answer from the record."""
        position, key = self._next(step.name)
        return self._coloured(lambda: self._step(step, position, key, arguments, keywords))

    def call_workflow(self, workflow: Workflow[..., Any], value: Value) -> Any:
        """Run another workflow as a child execution and give its result."""
        position, key = self._next(workflow.name)
        return self._coloured(lambda: self._child(workflow, value, position, key))

    def sleep(self, seconds: float) -> Any:
        """Wait for a time, durably."""
        position, key = self._next("sleep")
        return self._coloured(lambda: self._sleep(seconds, position, key))

    def wait_signal(self, name: str, seconds: float | None) -> Any:
        """Wait for a signal, durably; ``TimeoutError`` if it does not come in time."""
        position, key = self._next(f"signal:{name}")
        return self._coloured(lambda: self._signal(name, seconds, position, key))

    def map(self, function: Callable[[Any], Any], items: list[Any], concurrency: int) -> Any:
        """Call a step for each item, so many at a time; the outputs in order of the items."""
        if self._workflow.is_async:
            return self._map(function, items, concurrency)
        return [function(item) for item in items]

    def patched(self, name: str) -> bool:
        """Whether the code takes its new way: yes, unless this execution passed this place before the patch."""
        on = branch.get()
        key = f"patched:{name}"
        place = "" if on is None else on.upcoming()
        data = self._recorder.state.sections["steps"].get(key)
        since = self._patches.get(key) or (None if data is None else decode_step(data).output)
        if since is not None:
            return not is_before(place, since)
        if self._is_replaying():
            return False
        self._patches[key] = place
        self._buffered.append(self._record(key, key, StepStatus.COMPLETED, canonical(place), 0))
        return True

    # Variables: read from the state, written with the next commit.

    def get_variable(self, name: str) -> Value:
        """A variable; ``KeyError`` if it was never set."""
        data = self._variables.get(name) or self._recorder.state.sections["variables"].get(name)
        if data is None:
            raise KeyError(name)
        return decode(data)

    def set_variable(self, name: str, value: Value) -> None:
        """Set a variable with the next commit; what is done again after a crash is already in the state."""
        if self._is_replaying():
            return
        data = canonical(value, self._around.limits, what=f"variable {name!r}")
        self._variables[name] = data
        self._buffered.append(SetVariable(name, Raw(data)))

    def variable_names(self) -> list[str]:
        """The names of all variables."""
        return sorted({*self._recorder.state.sections["variables"], *self._variables})

    # Calls, each answered from the record or made and recorded.

    async def _step(
        self, step: Step[..., Any], position: str, key: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        recorded = self._answer(step.name, position, key)
        if recorded is not None:
            return step.decode(_output_of(recorded, step.name, key))
        self._waits.deliver_cancel(position)
        number, waits_until = self._attempts_so_far(key)
        if waits_until is not None:
            await self._waits.wait(key, position, "retry", step.name, waits_until)
        while True:
            number += 1
            began = self._around.clock.now()
            context = StepContext(self._identity, key, number, self._around.limits)
            try:
                output = step.encode(await self._busily(attempt(step, context, arguments, keywords, self._around.threads)))
            except Exception as error:  # noqa: BLE001 - the policy decides what it means
                await self._failed_attempt(step, position, key, number, error)
                continue
            took = (self._around.clock.now() - began) // timedelta(milliseconds=1)
            done = self._record(key, position, StepStatus.COMPLETED, output, took, step.name)
            await self._commit([*self._drop_token(key), done, IncrementStepCount(), *context.buffer.batch()])
            return step.decode(output)

    async def _failed_attempt(self, step: Step[..., Any], position: str, key: str, attempt: int, error: Exception) -> None:
        """Plan the next attempt and wait for it; if there is none, record the failure and raise it."""
        told = _error_value(error)
        names = [kind.__name__ for kind in type(error).__mro__] + ([error.code] if isinstance(error, StepwellError) else [])
        if isinstance(error, InvalidInput) or not step.retry.allows(attempt, names):
            record = self._record(key, position, StepStatus.FAILED, canonical({"error": told, "attempts": attempt}), 0, step.name)
            await self._commit([*self._drop_token(key), record])
            raise StepFailed(step.name, told["kind"], told["message"], key) from error
        log.info("step %r of execution %r failed (attempt %d): %s", key, self.execution_id, attempt, error)
        due = self._around.clock.now_ms() + round(step.retry.delay(attempt, random.random()) * 1000)  # noqa: S311
        await self._put_token(key, "retry", {"attempt": attempt, "error": told, "due_ms": due})
        await self._waits.wait(key, position, "retry", step.name, due)

    async def _sleep(self, seconds: float, position: str, key: str) -> None:
        if self._answer("sleep", position, key) is not None:
            return
        self._waits.deliver_cancel(position)
        token = self._token(key)
        due = token["due_ms"] if token else self._around.clock.now_ms() + round(seconds * 1000)
        if not token:
            await self._put_token(key, "sleep", {"due_ms": due})
        await self._waits.wait(key, position, "sleep", "", due)
        await self._commit([*self._drop_token(key), self._record(key, position, StepStatus.COMPLETED, b"null", 0, "sleep")])

    async def _signal(self, name: str, seconds: float | None, position: str, key: str) -> Value:
        label = f"signal:{name}"
        recorded = self._answer(label, position, key)
        if recorded is None:
            self._waits.deliver_cancel(position)
            token = self._token(key)
            due = token["due_ms"] if token else None if seconds is None else self._around.clock.now_ms() + round(seconds * 1000)
            if not token:
                await self._put_token(key, "signal", {"name": name, "due_ms": due})
            letter = await self._waits.wait(key, position, SIGNAL, name, due)
            output = {"timed_out": True} if letter is None else {"value": letter.value}
            batch = [*self._drop_token(key), self._record(key, position, StepStatus.COMPLETED, canonical(output), 0, label)]
            await self._commit([*batch, *self._take(letter)])
        else:
            output = recorded.output
        if "timed_out" in output:
            raise TimeoutError(f"signal {name!r} did not come in time")
        return output["value"]

    async def _child(self, workflow: Workflow[..., Any], value: Value, position: str, key: str) -> Any:
        recorded = self._answer(workflow.name, position, key)
        child_id = f"{self.execution_id}:{position}"
        if recorded is None:
            self._waits.deliver_cancel(position)
            if not self._token(key):
                await self._put_token(key, "child", {"execution_id": child_id, "due_ms": None})
            await self._busily(self._around.start_child(workflow, value, child_id, self._identity))
            letter = await self._waits.wait(key, position, CHILD, child_id, None)
            news: Any = None if letter is None else letter.value
            batch = [*self._drop_token(key), self._record(key, position, StepStatus.COMPLETED, canonical(news), 0, workflow.name)]
            await self._commit([*batch, *self._take(letter)])
        else:
            news = recorded.output
        return child_result(workflow, child_id, news)

    async def _map(self, function: Callable[[Any], Any], items: list[Any], concurrency: int) -> list[Any]:
        gate = asyncio.Semaphore(concurrency)

        async def one(item: Any) -> Any:
            async with gate:
                return await function(item)

        tasks = [self._loop.create_task(one(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    # The record.

    def _next(self, name: str) -> tuple[str, str]:
        if self._is_handing_back and not self._waits.is_suspended:
            self._waits.suspend()
        if self._waits.is_suspended:
            raise Suspended
        on = branch.get()
        if on is None:
            raise InvalidInput("steps and waits belong into the workflow's own code, not into threads that it starts by itself")
        return on.next_call(name)

    def _is_replaying(self) -> bool:
        on = branch.get()
        return on is not None and on.upcoming() in self._recorded

    def _answer(self, name: str, position: str, key: str) -> StepOutput | None:
        """What is recorded for a call; an error if the record has another call at its position."""
        was = self._recorded.get(position)
        if was is not None and was != key:
            raise InvalidInput(
                f"the program no longer matches its record: call {position} is {name!r} now, and was {was!r} when it was recorded; "
                f"use stepwell.patched(...) to let old executions go their old way"
            )
        data = self._recorder.state.sections["steps"].get(key)
        return None if data is None else decode_step(data)

    def _record(self, key: str, position: str, status: StepStatus, output: bytes, took_ms: int, name: str = "") -> RecordStep:
        # The output is canonical and in bounds already, so it goes in as it is.
        step = StepOutput(position, name or key, str(status), Raw(output), self._around.clock.now(), max(took_ms, 0))
        self._recorded[position] = key
        return RecordStep(key, Raw(encode_record(step)))

    async def _commit(self, batch: list[Planned], *, rest: Rest | None = None, nudges: tuple[str, ...] = ()) -> None:
        if self._end is not None:
            raise self._end
        buffered, self._buffered = self._buffered, []
        try:
            await self._recorder.commit([*buffered, *batch], rest=rest, nudges=nudges)
        except (LeaseLost, StoreUnavailable, CommitUnknown) as error:
            # Not for the workflow's code to handle: it stops here, and goes on from the record when it is claimed again.
            self._end = Abandoned(error)
            raise self._end from error

    async def _busily(self, work: Awaitable[T]) -> T:
        """Await something that is not a wait: while it is under way, the session does not rest."""
        self._active += 1
        try:
            return await work
        finally:
            self._active -= 1

    # Tokens: where a branch stands while it waits.

    def _token(self, key: str) -> dict[str, Value]:
        data = self._recorder.state.sections["tokens"].get(key)
        return {} if data is None else decode_token(data).value

    async def _put_token(self, key: str, node: str, value: dict[str, Value]) -> None:
        data = Raw(encode_token(Token(key, node, "root", value), self._around.limits))
        exists = key in self._recorder.state.sections["tokens"]
        await self._commit([UpdateToken(key, data) if exists else AddToken(key, data)])

    def _drop_token(self, key: str) -> list[Planned]:
        return [RemoveToken(key)] if key in self._recorder.state.sections["tokens"] else []

    def _attempts_so_far(self, key: str) -> tuple[int, int | None]:
        token = self._token(key)
        return token.get("attempt", 0), token.get("due_ms")

    def _take(self, letter: Letter | None) -> list[Planned]:
        if letter is None:
            return []
        return [take(self.execution_id, self._identity.workspace_id, letter)]

    # Colours: code of an async workflow awaits; code of a plain one is in a thread and blocks.

    def _coloured(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        if self._workflow.is_async:
            return _off_branch(make)
        context = copy_context()
        outer: asyncio.Future[Any] = asyncio.run_coroutine_threadsafe(_in_context(context, make), self._loop)  # pyright: ignore[reportAssignmentType]
        return outer.result()


async def _off_branch(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Make a call outside of its branch: tasks that a call starts are not the workflow's. If they were counted, the workflow's own
    tasks would get other numbers in a run that answers the call from the record."""
    on = branch.get()
    branch.set(None)
    try:
        return await make()
    finally:
        branch.set(on)


async def _in_context(context: Context, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await asyncio.get_running_loop().create_task(make(), context=context)


def child_result(workflow: Workflow[..., Any], child_id: str, news: Any) -> Any:
    """The result of a child from what it told its parent."""
    match news:
        case {"status": "COMPLETED", "result": {"output": output}}:
            return workflow.decode(canonical(output))
        case {"status": "CANCELLED"}:
            raise ExecutionCancelled(f"child execution {child_id!r} was cancelled")
        case {"result": {"error": {"message": message}}}:
            raise ExecutionFailed(f"child execution {child_id!r} failed: {message}")
        case _:
            raise NotFound(f"child execution {child_id!r} left no result")


def _output_of(step: StepOutput, name: str, key: str) -> bytes:
    """A recorded output; a recorded failure is raised as it was the first time."""
    if step.status == StepStatus.FAILED:
        error = step.output["error"]
        raise StepFailed(name, error["kind"], error["message"], key)
    return canonical(step.output)


def _error_value(error: BaseException) -> dict[str, Any]:
    code = error.code if isinstance(error, StepwellError) else None
    told = {"kind": type(error).__name__, "message": str(error)[:10_000], "code": code}
    return {**told, "step": error.key} if isinstance(error, StepFailed) else told
