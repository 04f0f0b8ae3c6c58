"""The session of a workflow function: runs its code from the start, and executes its calls.

A recorded call is answered from the record. The first call without a record is executed, and its output is committed before the
code continues. If the execution fails or is cancelled, the registered compensations run in reverse order. A token records that
compensation has begun; from then on the code runs only to the end of its record, to register the same compensations again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context, Token, copy_context
from functools import cached_property, partial
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from stepwell.clock import Clock
from stepwell.errors import (
    ExecutionCancelled,
    ExecutionFailed,
    ExecutionTimedOut,
    InvalidInput,
    StepFailed,
    ValidationFailed,
)
from stepwell.flow.function import CALL_OPTIONS, Step, Workflow, caller, check_call_options
from stepwell.model.commit import Lease
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY
from stepwell.model.fan_out import FAN_OUT, FanOut
from stepwell.model.mutation import RemoveToken, SetResult, SetStatus
from stepwell.model.record import COMPENSATION, overran, trigger_input
from stepwell.model.status import Status, StepStatus
from stepwell.model.value import Value, canonical, decode, from_value, recode, to_value
from stepwell.runtime.child_places import ExtraPlaces
from stepwell.runtime.crash_suspicion import cleared_marks
from stepwell.runtime.inbox import Message
from stepwell.runtime.services import Services
from stepwell.runtime.sessions.approval import ApprovalRequest
from stepwell.runtime.sessions.call_positions import CallSequence, CallTree, OutsideSequence, branch, is_before
from stepwell.runtime.sessions.call_record import CallRecord
from stepwell.runtime.sessions.calls import Calls
from stepwell.runtime.sessions.execution_writer import ExecutionWriter
from stepwell.runtime.sessions.session import CHILD_SLOT_POLL_MS, FINAL_REST, Session
from stepwell.runtime.sessions.steps_elsewhere import StepsElsewhere
from stepwell.runtime.sessions.unawaited_calls import UnawaitedCalls
from stepwell.runtime.sessions.waits import LINGER_SECONDS, Waits
from stepwell.runtime.start import news_of_function
from stepwell.runtime.steps.attempt import contained, in_thread
from stepwell.runtime.steps.context import WorkflowContext, here
from stepwell.runtime.steps.outcome import error_value
from stepwell.runtime.steps.secret_errors import hide_secrets, text_without_secrets
from stepwell.runtime.unwinding import Abandoned, Suspended, Undoing

__all__ = [
    "Compensation",
    "CompensationCall",
    "FunctionSession",
    "side_by_side",
]


_LINGER_FOR_STEPS_SECONDS = 0.01
"""The same for a session whose steps are made elsewhere, for other branches to come to their calls: no step is begun meanwhile."""


class CompensationCall(NamedTuple):
    """A compensation that the code registered."""

    position: str
    key: str
    step: Step[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class Compensation:
    """The compensations of one execution, in the order in which they were registered."""

    def __init__(self, writer: ExecutionWriter, record: CallRecord, calls: Calls, waits: Waits) -> None:
        self._writer, self._record, self._calls, self._waits = writer, record, calls, waits
        self._planned: dict[str, CompensationCall] = {}

    @property
    def is_under_way(self) -> bool:
        """True if this or an earlier session has begun compensation."""
        return bool(self._record.token(COMPENSATION))

    def plan(self, undo: CompensationCall) -> None:
        """Register a step to run if the execution fails."""
        self._planned[undo.key] = undo

    async def make(self, status: Status, failure: dict[str, Value]) -> tuple[Status, dict[str, Value]]:
        """Run the compensations, the last registered first; return the status and result that were settled before.

        A failed compensation does not stop the others.
        """
        if not self._planned and not self.is_under_way:
            return status, {"error": failure}
        if not self.is_under_way:
            token = {"status": str(status), "error": failure, "order": list(self._planned), "due_ms": None}
            try:
                await self._writer.commit([self._record.token_put(COMPENSATION, "compensation", token)])
            except ValidationFailed as error:  # the state is full, so what was undone could not be recorded
                left = dict.fromkeys(reversed(list(self._planned)), error_value(error))
                return status, {"error": failure, "compensation": {"undone": [], "failed": left}}
        self._waits.is_shielded = True
        token = self._record.token(COMPENSATION)
        failed = {key: error for key in reversed(token["order"]) if (error := await self._made(key)) is not None}
        undone = [key for key in reversed(token["order"]) if key not in failed]
        return Status(token["status"]), {"error": token["error"], "compensation": {"undone": undone, "failed": failed}}

    async def _made(self, key: str) -> dict[str, Value] | None:
        """Run one compensation; return its error if it failed after its last attempt."""
        undo = self._planned.get(key)
        if undo is None:
            return {"kind": "NotFound", "message": "the workflow's code no longer asks for this compensation", "code": None}
        try:
            await self._calls.step(undo.step, undo.position, undo.key, undo.arguments, undo.keywords)
        except (StepFailed, ValidationFailed) as error:
            return error_value(error)
        return None


class ItemCall(NamedTuple):
    """The call of a ``map`` for one of its items."""

    make: Callable[[], Coroutine[Any, Any, Any]]
    was_reached: bool = False
    """Whether an earlier session has begun it."""
    path: str = ""
    """The path of its branch, if it is the user's code."""
    caught_up: asyncio.Event | None = None
    """Set when the user's code has passed its record: it has ended, or makes a call whose outcome is not recorded."""


async def side_by_side(calls: Sequence[ItemCall], lanes: int, is_stopping: Callable[[], bool]) -> list[Any]:
    """Run calls concurrently up to a limit; return their results in order.

    Of several failures the first in order is raised, so that a run that answers the calls from the record raises the same one.
    After a failure no call begins that had not begun before, also if the failure is answered from the record. The user's code
    takes its time to come to such a failure, so no call begins for the first time before the calls in front of it have caught up.
    ``is_stopping`` returns whether to begin no more, because the worker stops.
    """
    branch.set(None)  # the tasks below are not tasks of the workflow
    results: dict[int, Any] = {}
    ends: dict[int, BaseException] = {}
    upcoming = iter(enumerate(calls))
    replayed = [call.caught_up for call in calls if call.caught_up is not None]

    async def run(number: int, call: ItemCall) -> bool:
        """Run a call; return whether others may follow in its lane."""
        if not call.was_reached and any(not isinstance(error, Suspended) for error in ends.values()):
            return False
        if is_stopping():
            ends[number] = Suspended()
            return False
        try:
            results[number] = await call.make()
        except BaseException as error:  # noqa: BLE001 - raised below, when all have ended
            ends[number] = error
            return False
        return True

    async def lane() -> None:
        for number, call in upcoming:
            if call.caught_up is None:
                for each in replayed:  # all of them are in a lane by now
                    await each.wait()
            try:
                if not await run(number, call):
                    return
            finally:
                if call.caught_up is not None:
                    call.caught_up.set()

    await asyncio.gather(*(lane() for _ in range(min(lanes, len(calls)))))
    if ends:
        raise min((_rank(error), number, error) for number, error in ends.items())[2]
    return [results[number] for number in range(len(calls))]


def _awaitable(function: Callable[[Any], Any], item: Any) -> Awaitable[Any]:
    """Call the function of a ``map`` in an async workflow; raise ``InvalidInput`` if nothing can be awaited."""
    made = function(item)
    if not isawaitable(made):
        name = getattr(function, "__name__", repr(function))
        raise InvalidInput(
            "stepwell.map() in an async def workflow takes a step, a workflow or an async def function; "
            f"{name} gave {type(made).__name__}"
        )
    return made


async def _settled(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call; return its output, or its error."""
    try:
        return await call()
    except Exception as error:  # noqa: BLE001 - the workflow's code asked for it
        return error


async def _typed(wait: Callable[[], Awaitable[Value]], name: str, kind: type[Any]) -> Any:
    """Wait for a signal, and return its value as an instance of a class."""
    return from_value(await wait(), kind, what=f"the value of signal {name!r}")


def _rank(error: BaseException) -> int:
    """Return the rank of an error: the end of the session first, then a rest.

    A run that rests comes here again, and raises the failure when it waits no more.
    """
    return 2 if isinstance(error, Exception) else 1 if isinstance(error, Suspended) else 0


T = TypeVar("T")


class FunctionSession(Session):
    """Runs the code of a workflow function. Implements ``flow.function.Caller`` for the code inside.

    Args:
        elsewhere: makes the steps; None to make them here.
    """

    def __init__(
        self,
        services: Services,
        workflow: Workflow[..., Any],
        writer: ExecutionWriter,
        lease: Lease,
        *,
        is_new: bool,
        elsewhere: StepsElsewhere | None = None,
    ) -> None:
        super().__init__(services, writer, lease, is_new=is_new)
        self._workflow = workflow
        self._record = CallRecord(writer, services.clock, services.limits)
        self._elsewhere = elsewhere
        linger = LINGER_SECONDS if elsewhere is None else _LINGER_FOR_STEPS_SECONDS
        may_linger = workflow.is_async
        self._waits = Waits(services.clock, self._inbox, may_linger=may_linger, is_busy=self._is_busy, linger_seconds=linger)
        self._loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = None
        self._patches: dict[str, str] = {}
        self._task: asyncio.Task[Any] | None = None
        self._is_over = False
        self._family = CallTree(self._waits.branch_began)
        self._unawaited = UnawaitedCalls()
        self._catching_up: dict[str, asyncio.Event] = {}
        """Items of a ``map`` whose code may still be answered from the record, by the paths of their branches."""
        self._code_in_threads: set[str] = set()
        """Items of a ``map`` whose code runs in a thread, or waits there, by the paths of their branches."""

    @property
    def is_async(self) -> bool:
        """True if the workflow is ``async def``, so that its calls are awaited."""
        return self._workflow.is_async

    @cached_property
    def _calls(self) -> Calls:
        return Calls(
            self._services,
            self._writer,
            self._record,
            self._waits,
            self._inbox,
            self._attempts,
            self._unawaited,
            self._elsewhere,
            is_new=self._is_new,
        )

    @cached_property
    def _compensation(self) -> Compensation:
        return Compensation(self._writer, self._record, self._calls, self._waits)

    @property
    def is_running_steps(self) -> bool:
        """True while steps or calls of children are under way."""
        return bool(self._waits.making or self._waits.beside)

    @property
    def _places(self) -> ExtraPlaces | None:
        return self._calls.places if "_calls" in vars(self) else None  # without a call it has none

    # From the start to the end.

    async def _work(self) -> None:
        if resuming := self._resuming():
            await self._writer.commit(resuming)
        if self._identity.deadline_ms is not None:
            left = (self._identity.deadline_ms - self._services.clock.now_ms()) / 1000
            self._deadline = self._loop.call_later(max(left, 0), self._time_out)
            if left <= 0:
                self._time_out()
        if self._suspicion is not None and self._is_code_marked:
            await self._suspicion.begin_code()
        await self._run_to_end()

    def _time_out(self) -> None:
        self._waits.interrupt(ExecutionTimedOut(overran(self._identity)))

    async def _run_to_end(self) -> None:
        """Run the code and record how it ended; ``Suspended`` if it rests."""
        try:
            output = await self._run_code()
            if isinstance(self._waits.interruption, ExecutionTimedOut) and self._waits.has_told:
                raise self._waits.interruption
        except Undoing:
            await self._fail(ExecutionFailed())
        except BaseExceptionGroup as group:
            if group.split(Suspended)[1] is None:
                raise Suspended from None
            await self._fail(group)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is how the execution ends
            await self._fail(error)
        else:
            if self._waits.cancel is not None or self._waits.is_undoing:
                await self._fail(ExecutionCancelled())
            elif (forgotten := self._unawaited.fault(self._family.tasks)) is not None:
                await self._fail(forgotten)
            else:
                await self._complete(output)

    async def _complete(self, output: bytes) -> None:
        try:
            await self._finish(Status.COMPLETED, b'{"output":%b}' % output)
        except ValidationFailed as error:  # the result or a variable exceeds a limit of the execution as a whole
            await self._fail(error)

    async def _fail(self, error: BaseException) -> None:
        """End as FAILED, or as CANCELLED after a cancel request. Completed steps are compensated first."""
        if self._writer.end is not None:
            raise self._writer.end
        if self._identity.secrets:
            hide_secrets(self._identity.secrets, error, self._writer.state.sections["trigger"].get(ONLY))
        if self._waits.cancel is None:
            status, result = await self._compensate(Status.FAILED, error_value(error))
        else:
            status, result = await self._compensate(Status.CANCELLED, error_value(ExecutionCancelled()))
        try:
            await self._finish(status, recode(result))
        except ValidationFailed:
            self._writer.drop_buffer()
            await self._finish(status, recode(result))
        if status is Status.FAILED:
            self._log_failure(result["error"]["message"], error)

    async def _finish(self, status: Status, result: bytes) -> None:
        """Commit the end: the canonical result, messages to parent and children, and the end of the lease."""
        batch: list[Planned] = []
        messages: dict[str, Planned] = {}
        if tokens := self._writer.state.sections["tokens"]:
            messages = {child_id: message for child_id, (message, _) in self._cancelled_children().items()}
            removed = self._writer.tokens_removed_ahead()
            batch += [RemoveToken(token_id) for token_id in tokens if token_id not in removed]
        messages |= self._message_to_parent(lambda: self._news(status, decode(result)))
        batch += cleared_marks(self._writer.state)
        batch += [*messages.values(), *self._inbox.taking(self._waits.cancel), SetResult(msgspec.Raw(result)), SetStatus(status)]
        await self._writer.commit(batch, rest=FINAL_REST, nudges=tuple(messages))
        if self._places is not None:
            await self._places.give_back()

    def _news(self, status: Status, result: Value) -> Value:
        """Return the message to the parent."""
        variables = WorkflowContext(self._identity, self).variables
        return news_of_function(self._writer.state, status, result, variables)

    def _cancelled_children(self, *, is_end: bool = True) -> dict[str, tuple[Planned, Planned]]:
        """Return for each child that still runs the cancel request, and the mark on its token that the request was sent."""
        found: dict[str, tuple[Planned, Planned]] = {}
        for key, token in self._record.tokens("child").items():
            # A fork has its original's tokens, but those children are not its own. Compensation finishes in any event.
            is_own = token.get("parent_id") == self.execution_id
            if is_own and not token.get("is_told") and (is_end or not token.get("is_cleanup")):
                child_id = token["execution_id"]
                [message] = self._message_to_child(child_id).values()
                found[child_id] = message, self._record.token_put(key, "child", {**token, "is_told": True})
        return found

    async def _end_failed(self, error: dict[str, Value]) -> None:
        await self._finish(Status.FAILED, recode({"error": error}))

    async def _receive(self, new: Sequence[Message]) -> None:  # noqa: ARG002 - waits look at all messages
        """Deliver messages to the waits. A cancel request is passed on to children at once."""
        self._waits.deliver_messages()
        self._calls.cancel_steps()
        self._calls.give_child_slots()
        self._calls.look_for_places()
        if self._waits.cancel is not None and (children := self._cancelled_children(is_end=False)):
            # If commits are refused now, because the session ends or lost its lease, the end or the next session tells them.
            with suppress(Abandoned, ValidationFailed):
                batch = [each for pair in children.values() for each in pair]
                await self._writer.commit(batch, nudges=tuple(children))

    async def _count_children(self, ended: Collection[str]) -> int:
        """Return how many children run; one counts as soon as its call has noted its id."""
        own = [each for each in self._record.tokens("child").values() if each.get("parent_id") == self.execution_id]
        return len({each["execution_id"] for each in own}.difference(ended))

    def hand_back(self) -> None:
        """Stop soon: at once if nothing is under way, else at the next call."""
        self._is_handing_back = self._waits.is_holding = True
        if not self._is_busy():
            self._waits.suspend()

    def _wake_ms(self) -> int | None:
        has_no_deadline = self._waits.has_told or self._waits.is_shielded
        if self._waits.is_away and self._waits.interruption is not None:
            has_no_deadline = True  # it has passed; the code learns of it once its steps elsewhere have ended
        times = (self._waits.soonest_ms, None if has_no_deadline else self._identity.deadline_ms, self._child_slot_ms())
        return min((each for each in times if each is not None), default=None)

    def _resting(self) -> list[Planned]:
        """Return the last mutations; while steps are made elsewhere, the execution does not wait, but runs."""
        resting = super()._resting()
        if not self._waits.is_away:
            return resting
        return [*(each for each in resting if not isinstance(each, SetStatus)), *self._calls.asked_tokens()]

    def _child_slot_ms(self) -> int | None:
        """Return when to go on with calls that wait to start a child: at once if one may, else when the limit may be another."""
        if not self._calls.waits_for_child_slot:
            return None
        return self._services.clock.now_ms() + (0 if self._calls.can_start_child else CHILD_SLOT_POLL_MS)

    def _interrupt(self, end: Abandoned) -> None:
        """Stop the code. A plain function learns of it at its next call."""
        self._waits.fail(end)
        if self._task is not None:
            self._task.cancel()

    def _close(self) -> None:
        self._unawaited.close(self._family.tasks)
        self._waits.stop()
        if self._places is not None:
            self._places.close()
        if self._deadline is not None:
            self._deadline.cancel()

    # The code.

    def _run_code(self) -> Awaitable[bytes]:
        """Run the code to its end, and return its output as canonical bytes."""
        # It has failed before: run the code only to the end of its record, to register its compensations.
        self._waits.is_undoing = COMPENSATION in self._writer.state.sections["tokens"]
        arguments = self._workflow.bind(trigger_input(self._writer.state.sections["trigger"][ONLY]))
        return self._in_task(arguments) if self._workflow.is_async else self._in_thread(arguments)

    async def _compensate(self, status: Status, failure: dict[str, Value]) -> tuple[Status, dict[str, Value]]:
        """Run the registered compensations, the last one first; return the execution's status and result.

        Steps of other branches end before that.
        """
        while self._is_busy():  # two counters to watch, on a rare path
            await asyncio.sleep(0.01)
            if not self._is_busy():
                await asyncio.sleep(0)  # a branch whose step has just ended registers its compensation first
        if self._waits.is_away and not self._waits.is_undoing:
            self._waits.suspend()
            raise Suspended
        if self._waits.is_undoing and self._family.tasks:
            # Other branches run to the end of their record, and register their compensations on the way.
            await asyncio.wait(self._family.tasks)
        return await self._compensation.make(status, failure)

    async def _in_thread(self, arguments: dict[str, Any]) -> bytes:
        context = copy_context()
        context.run(self._enter)
        try:
            result = await in_thread(self._services.code_threads, context, lambda: self._workflow.function(**arguments))
        finally:
            self._is_over = True
        return self._workflow.encode(result, self._services.limits)

    def _enter(self) -> tuple[Token[Any], Token[Any], Token[Any]]:
        return (
            caller.set(self),
            branch.set(CallSequence(self._family)),
            here.set(WorkflowContext(self._identity, self, self._writer.state.sections["trigger"].get(ONLY))),
        )

    async def _in_task(self, arguments: dict[str, Any]) -> bytes:
        # In the session's own task: another task would cost as much as the rest of a small workflow.
        task, (inside, on, at) = asyncio.current_task(), self._enter()
        self._task = task
        try:
            result = await self._workflow.function(**arguments)
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - each is raised again, or as what it means here, where it is not the loop's
            raise contained(error, task) from error.__cause__
        finally:
            self._task, self._is_over = None, True
            here.reset(at)
            branch.reset(on)
            caller.reset(inside)
        try:
            return self._workflow.encode(result, self._services.limits)
        except InvalidInput:
            if (forgotten := self._unawaited.fault(self._family.tasks)) is not None:  # the result is, or holds, that call
                raise forgotten from None
            raise

    # Called by the workflow's code.

    def call_step(
        self,
        step: Step[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        call_key: str | None = None,
        summary: str | None = None,
    ) -> Any:
        """Run a step once, or return its recorded output."""
        if keywords and not CALL_OPTIONS.keys().isdisjoint(keywords):
            check_call_options(step, keywords)
        if summary is not None and (names := self._identity.secrets):
            started_by = self._writer.state.sections["trigger"].get(ONLY)
            summary = text_without_secrets(names, summary, started_by, (arguments, keywords))
        if call_key is not None:
            position, _ = self._next(call_key)
            if summary is not None:
                self._record.summarize(call_key, summary)
            keyed = partial(self._calls.keyed_step, step, position, call_key, arguments, keywords)
            return self._unawaited.add(position, step, keyed()) if self._workflow.is_async else self._blocking(keyed)
        position, key = self._next(step.name)
        if summary is not None:
            self._record.summarize(key, summary)
        if self._workflow.is_async:
            return self._unawaited.add(position, step, self._calls.step(step, position, key, arguments, keywords))
        return self._blocking(lambda: self._calls.step(step, position, key, arguments, keywords))

    def call_workflow(self, workflow: Workflow[..., Any], value: Value) -> Any:
        """Run another workflow as a child execution, and return its result."""
        position, key = self._next(workflow.name)
        return self._coloured(lambda: self._calls.child(workflow, value, position, key), position, f"workflow {workflow.name!r}")

    def sleep(self, seconds: float) -> Any:
        """Sleep durably."""
        position, key = self._next("sleep")
        return self._coloured(lambda: self._calls.sleep(seconds, position, key), position, "stepwell.sleep()")

    def wait_signal(self, name: str, seconds: float | None, kind: type[Any] | None = None) -> Any:
        """Wait for a signal, durably, and return its value, as an instance of a class if one is given; ``TimeoutError`` if it does
        not come in time."""
        position, key = self._next(f"signal:{name}")
        wait = partial(self._calls.signal, name, seconds, position, key)
        return self._coloured(wait if kind is None else partial(_typed, wait, name, kind), position, f"wait_signal({name!r})")

    def wait_approval(self, asked: ApprovalRequest) -> Any:
        """Ask people for a decision, durably."""
        position, key = self._next(asked.name)
        wait = partial(self._calls.approval, asked, position, key)
        return self._coloured(wait, position, f"wait_approval({asked.title!r})")

    def map(
        self,
        function: Callable[[Any], Any],
        items: list[Any],
        concurrency: int,
        *,
        is_total: bool = False,
        label: Callable[[Any], str] | None = None,
    ) -> Any:
        """Call a function for each item, concurrently up to a limit; return the outputs in order of the items.

        - ``is_total``: return the errors of failed calls in their places.
        - ``label``: returns the name of an item for people.
        """
        fan_out = FanOut(str(getattr(function, "name", None) or getattr(function, "__name__", "function")), len(items), concurrency)
        if label is not None:
            fan_out.labels = [str(label(item)) for item in items]
        if self._workflow.is_async:
            position = f"map {id(items)}"  # it is no call itself; the list lives as long as this one
            made = self._map(function, items, concurrency, position, is_total, fan_out)
            return self._unawaited.add(position, "stepwell.map()", made)
        if not items:
            return []
        is_call = isinstance(function, Step | Workflow)
        first = self._branch().upcoming() if is_call else self._branch().upcoming_branch()
        # A pool of its own, since the threads of workflow code may all be taken by workflows that wait for such calls.
        threads = ThreadPoolExecutor(min(concurrency, len(items)), thread_name_prefix="stepwell-map")
        with threads, self._fan_out(fan_out, first):
            calls = [self._planned(function, item, threads) for item in items]
            if not is_call:
                calls = self._catching_up_first(calls)
            if is_total:
                calls = [call._replace(make=partial(_settled, call.make)) for call in calls]
            with nullcontext() if is_call else self._lingering():
                return self._blocking(lambda: side_by_side(calls, concurrency, lambda: self._is_handing_back))

    @contextmanager
    def _lingering(self) -> Generator[None]:
        """Let the code of other items go on while that of one waits: which of them waits first depends on their threads."""
        path, may_linger = self._branch().path, self._waits.may_linger
        self._waits.may_linger = True
        self._code_in_threads.discard(path)  # the code around this ``map`` is blocked by it
        try:
            yield
        finally:
            self._waits.may_linger = may_linger
            if path:
                self._code_in_threads.add(path)

    def _is_busy(self) -> bool:
        return super()._is_busy() or len(self._code_in_threads) > self._waits.count

    async def _item_in_thread(self, threads: Executor, context: Context, path: str, call: Callable[[], Any]) -> Any:
        self._code_in_threads.add(path)
        try:
            return await in_thread(threads, context, call)
        finally:
            self._code_in_threads.discard(path)

    def _catching_up_first(self, calls: list[ItemCall]) -> list[ItemCall]:
        """Mark the calls of the user's code that had begun before: calls begin in order, so those up to the last one reached."""
        begun = max((number + 1 for number, call in enumerate(calls) if call.was_reached), default=0)
        marked = [call._replace(was_reached=True, caught_up=asyncio.Event()) for call in calls[:begun]]
        self._catching_up |= {call.path: call.caught_up for call in marked if call.caught_up is not None}
        return marked + calls[begun:]

    def _note_new_call(self, position: str) -> None:
        """Note that a call is made whose outcome is not recorded: the items of a ``map`` around it have passed their records."""
        if position in self._record.positions():
            return
        for path in [position[: end + 1] for end, sign in enumerate(position) if sign == "/"]:
            caught_up = self._catching_up.pop(path, None)
            if caught_up is not None:
                self._loop.call_soon_threadsafe(caught_up.set)

    def _planned(self, function: Callable[[Any], Any], item: Any, threads: Executor) -> ItemCall:
        """Return a call with its position, to be executed later: code that is no step runs in a thread, as a branch of its own."""
        if isinstance(function, Step):
            step = cast("Step[..., Any]", function)
            return self._item(step.name, lambda position, key: self._calls.step(step, position, key, (item,), {}))
        if isinstance(function, Workflow):
            workflow = cast("Workflow[..., Any]", function)
            value = workflow.value_of((item,), {})
            return self._item(workflow.name, lambda position, key: self._calls.child(workflow, value, position, key))
        context, on = copy_context(), self._branch().child()
        context.run(branch.set, on)
        was_reached = self._record.was_reached(on.upcoming(), on.path)
        return ItemCall(lambda: self._item_in_thread(threads, context, on.path, lambda: function(item)), was_reached, on.path)

    def _item(self, name: str, call: Callable[[str, str], Coroutine[Any, Any, Any]]) -> ItemCall:
        """Return the call of a step or workflow for an item. An interruption is delivered to each item that has no outcome."""
        is_cleanup = self._waits.was_told(self._branch().path)
        position, key = self._next(name)

        async def make() -> Any:
            if not is_cleanup and self._record.outcome(key) is None:
                self._waits.deliver_to_item(position)
            return await call(position, key)

        return ItemCall(make, self._record.was_reached(position, ""))

    @contextmanager
    def _fan_out(self, fan_out: FanOut, first: str) -> Generator[None]:
        """Keep a token with the size of a ``map``, from its first commit to its end, so that its progress can be shown."""
        key, fan_out.first = self._branch().next_map(fan_out.name), first
        is_over = self._waits.is_undoing or self._waits.is_suspended
        # If all items are recorded, no commit follows that the token would come with, and none would take it away.
        if not is_over and not self._record.token(key) and fan_out.unbegun(self._record.positions()):
            self._writer.buffer(self._record.token_put(key, FAN_OUT, cast("dict[str, Value]", to_value(fan_out))))
        try:
            yield
        except Exception:
            self._end_fan_out(key)
            raise
        else:
            self._end_fan_out(key)

    def _end_fan_out(self, key: str) -> None:
        self._writer.buffer(*self._record.token_drop(key))

    async def _map(
        self,
        function: Callable[[Any], Any],
        items: list[Any],
        concurrency: int,
        position: str,
        is_total: bool,
        fan_out: FanOut,
    ) -> list[Any]:
        self._unawaited.begun(position)
        gate = asyncio.Semaphore(concurrency)

        async def call(item: Any) -> Any:
            try:
                return await _awaitable(function, item)
            except Exception:
                raise
            except BaseException as error:  # noqa: BLE001 - SystemExit would end the loop, and GeneratorExit the session
                raise contained(error, asyncio.current_task()) from error.__cause__

        async def one(item: Any) -> Any:
            async with gate:
                return await (_settled(partial(call, item)) if is_total else call(item))

        with self._fan_out(fan_out, self._branch().upcoming_branch()):
            tasks = [self._loop.create_task(one(item)) for item in items]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                for task in tasks:
                    task.cancel()

    def compensate(self, step: Step[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Register a step to run if the execution fails or is cancelled later."""
        on = branch.get()
        if on is None or self._waits.is_shielded:
            raise InvalidInput("stepwell.compensate() belongs into the workflow's own code")
        position, key = on.next_undo(step.name)
        self._compensation.plan(CompensationCall(position, key, step, arguments, keywords))

    def patched(self, name: str) -> bool:
        """Return whether the code takes its new branch: yes, unless this execution passed this place before the patch.

        Each branch has its own answer, since places of different branches have no order.
        """
        on = branch.get()
        path, place = ("", "") if on is None else (on.path, on.upcoming())
        key = f"{path}patched:{name}"
        recorded = self._record.outcome(key)
        since = self._patches.get(key) or (None if recorded is None else recorded.output)
        if since is not None:
            return not is_before(place, since)
        if self.is_replaying:
            return False
        self._patches[key] = place
        self._writer.buffer(self._record.put(key, key, StepStatus.COMPLETED, canonical(place), 0))
        return True

    def recorded(self, name: str, make: Callable[[], Value]) -> Value:
        """Return a value that is made once and the same in every run of the code; it lands with the next commit."""
        position, key = self._next(name)
        found = self._record.answer(name, position, key)
        if found is not None:
            return found.output
        if self._waits.is_undoing:
            raise Undoing
        value = make()
        self._writer.buffer(self._record.put(key, position, StepStatus.COMPLETED, canonical(value), 0, name))
        return value

    @property
    def clock(self) -> Clock:
        """The clock of its process."""
        return self._services.clock

    # Variables, as the workflow's context asks for them.

    def get_variable(self, name: str) -> Value:
        """Return a variable. Raise ``KeyError`` if it was never set."""
        return self._record.get_variable(name)

    def set_variable(self, name: str, value: Value) -> None:
        """Set a variable with the next commit. Assignments that are repeated after a crash change nothing."""
        if not self.is_replaying and not self._waits.is_suspended:  # the code is being unwound, and will run again from its start
            self._record.set_variable(name, value)

    def variable_names(self) -> list[str]:
        """Return the names of all variables."""
        return self._record.variable_names()

    # The position of a call, and whether it is awaited or blocks.

    def _next(self, name: str) -> tuple[str, str]:
        if self._is_handing_back and not self._waits.is_suspended and not (self._workflow.is_async and self._is_busy()):
            self._waits.suspend()
        if self._waits.is_suspended or (self._is_over and not self._waits.is_undoing):
            raise Suspended  # the execution is over for tasks that the code started and did not wait for
        position, key = self._branch().next_call(name)
        if self._catching_up:
            self._note_new_call(position)
        return position, key

    def _branch(self) -> CallSequence:
        on = branch.get()
        if on is None:
            raise InvalidInput("steps and waits belong into the workflow's own code, not into threads that it starts by itself")
        return on

    @property
    def is_replaying(self) -> bool:
        """True while the code that asks runs again, up to where an earlier session was."""
        on = branch.get()
        return on is not None and self._record.was_reached(on.upcoming(), on.upcoming_branch())

    def _coloured(self, make: Callable[[], Coroutine[Any, Any, T]], position: str, name: str) -> Any:
        """Return an awaitable to async code; block the thread of plain code."""
        if self._workflow.is_async:
            return self._unawaited.add(position, name, self._off_branch(make, position), depth=4)
        return self._blocking(make)

    async def _off_branch(self, make: Callable[[], Coroutine[Any, Any, T]], position: str) -> T:
        self._unawaited.begun(position)
        with OutsideSequence():
            return await make()

    def _blocking(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        context = copy_context()
        outer: asyncio.Future[Any] = asyncio.run_coroutine_threadsafe(_in_context(context, make), self._loop)  # pyright: ignore[reportAssignmentType]
        return outer.result()


async def _in_context(context: Context, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    context.run(branch.set, None)
    return await asyncio.get_running_loop().create_task(make(), context=context)
