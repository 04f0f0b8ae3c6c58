"""The Temporal workflow: the kernel runs inside it, steps are activities, and each commit is made by a local activity.

Such a commit is not safe by itself: Temporal stores the marker of a local activity only when the workflow task completes. If
the worker dies before, the task is made again, with later events and another time, and its commit has other content. So the
activity never forces a commit: if another one has landed on the revision, it answers with the stored state, and the kernel is
rebuilt from that. One local activity runs at a time, and none is cancelled: the SDK would replay several in another order.

The code here is replayed. It takes time, ids and randomness from Temporal, and reads the store only through activities. What it
reads beside them (a definition by its version, a state by its revision) never changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from stepwell.errors import StepwellError
from stepwell.kernel.commit_planner import CommitPlanner, EffectDone, PlannedCommit, Refusal, failed_end
from stepwell.kernel.plan import Plan
from stepwell.kernel.protocol import (
    Abandon,
    CancelChild,
    ChildEnded,
    ChildStarted,
    Effect,
    End,
    Note,
    RunStep,
    StartChild,
    TimePassed,
)
from stepwell.model.draft import Planned, quoted
from stepwell.model.execution_state import ONLY, State, sha256_hex
from stepwell.model.external_engines import TEMPORAL, unrecorded
from stepwell.model.limits import Limits
from stepwell.model.mutation import Mutation, SetStatus, SetVariable, WriteState, encode_mutations
from stepwell.model.record import Metadata
from stepwell.model.snapshot import read_snapshot
from stepwell.model.status import Status
from stepwell.model.validation import plan as plan_batch
from stepwell.model.value import Value, canonical, decode
from stepwell.runtime.inbox import CANCEL, CHILD, FROM_PARENT, SIGNAL, Inbox, Message, event_of, put
from stepwell.runtime.start import news_of, seed_of
from stepwell.runtime.steps.budget import SPENT
from stepwell.runtime.steps.kernel_effects import log_note
from stepwell.runtime.steps.outcome import error_names, error_value
from stepwell.temporal.messages import (
    MOST_BYTES,
    MOST_TOLD_BYTES,
    AskedCall,
    AttemptAnswer,
    BeginAnswer,
    ChildAnswer,
    ChildRequest,
    CommitAnswer,
    CommitRequest,
    FunctionAnswer,
    FunctionRequest,
    InboxAnswer,
    InboxRequest,
    ItemOrigin,
    KeepRequest,
    LeaveMessages,
    PayloadReference,
    RunInput,
    StateAnswer,
    StateRequest,
    StepAnswer,
    StepRequest,
    payload,
    read,
    reference_in,
)
from stepwell.temporal.naming import Activity, SignalName, short_summary, step_queue
from stepwell.temporal.opening import opened_state

__all__ = ["StepwellWorkflow", "TryTaskAgain", "WorkflowHost", "workflow_host"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class WorkflowHost(Protocol):
    """The collaborators that a worker gives to its workflows. None of them changes what the workflows do."""

    limits: Limits
    lease_seconds: float

    def plan(self, name: str, version: int) -> Plan:
        """Return the plan of a stored definition. In the workflow's thread; raises to have the task run again."""
        ...

    def state_at(self, execution_id: str, revision: int) -> State:
        """Return the state at a revision that is stored."""
        ...

    def kept(self, reference: PayloadReference) -> bytes:
        """Return a payload that is kept in the store."""
        ...


class TryTaskAgain(Exception):
    """The workflow task cannot run now, for a reason of this worker's: the server gives it out again."""


workflow_host: ContextVar[WorkflowHost] = ContextVar("workflow_host")
"""The host of the workflow whose code runs."""

_RUNNING, _WAITING = quoted(Status.RUNNING), quoted(Status.WAITING)

_LOCAL_TRY_SECONDS = 5.0
"""A store that does not answer for so long is waited for by a timer: a local activity in between holds back signals."""

_LOCAL = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=5))
_REMOTE = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))
"""For attempts whose worker was lost: a step's own failures are never tried again by Temporal, but by the kernel."""

_LONGEST = timedelta(days=3_650)
_MOST_PAST_SUGGESTION = 3
"""A history grows to so many times the length at which Temporal suggests a fresh one: three times 4,096 events, of 51,200."""
_MOST_AT_ONCE = 500
"""How many activities are under way at once; Temporal refuses more than 2,000."""
_MOST_ASKED_BYTES = 2_000_000
"""How much one workflow task asks for: the commands of a task together must fit into one message of 4 MB."""
_LOOK_AGAIN_SECONDS = 5.0
_LOOK_AGAIN_AT_MOST = 300.0
_OFTEN = 10
_MOST_CONFLICTS = 20


class _Gone(Exception):
    """The execution is no longer this workflow's to run: it has ended, another life of it has begun, or it was never created."""

    def __init__(self, told: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.told = told


class _Refused(Exception):
    """The store does not take what an activity is to be given."""

    def __init__(self, answer: StepAnswer) -> None:
        super().__init__()
        self.answer = answer


class _Attempt:
    """An attempt or start that is under way."""

    __slots__ = ("key", "number", "task")

    def __init__(self, key: str, number: int, task: asyncio.Task[None]) -> None:
        self.key, self.number, self.task = key, number, task


@workflow.defn(dynamic=True, sandboxed=False)
class StepwellWorkflow:
    """Runs one life of one execution."""

    def __init__(self) -> None:
        self._sent: list[Message] = []
        """Signals that were sent with Temporal's tools and are not in the inbox yet."""
        self._is_to_look = False
        self._is_cancelled_outside = False

    @workflow.signal(dynamic=True)
    def signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Look into the inbox, or take a signal that was sent with Temporal's own tools."""
        if name != SignalName.LOOK:
            self._sent.append(Message(_outside_key(len(self._sent)), SIGNAL, name, _value_of(args)))
        self._is_to_look = True

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Any:
        """Run the execution to its end."""
        given = input_of(args[0])
        run = (_DeclaredRun if given.is_declared else _FunctionRun)(given, self)
        work = asyncio.create_task(run.work())
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.done() or workflow.cancellation_reason() is None or self._is_cancelled_outside:
                    raise  # the SDK takes the workflow from its cache
                # Cancelled with Temporal's tools. Stepwell's own cancel compensates, so the request goes the same way.
                self._is_cancelled_outside = True
                self._sent.append(Message("temporal.cancel", CANCEL, "", None))
                self._is_to_look = True
            except Exception:  # noqa: BLE001 - raised below
                break
        try:
            end = await work
        except _Gone as gone:
            end = gone.told
        return self._told(end or {"status": "GONE"})

    def _told(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return what Temporal shows as the result, or raise how else the execution ended."""
        if end.get("status") == Status.CANCELLED and self._is_cancelled_outside:
            raise asyncio.CancelledError
        if end.get("status") == Status.FAILED:
            error: dict[str, Any] = end.get("error") or {}
            raise ApplicationError(str(error.get("message")), type=str(error.get("kind")), non_retryable=True)
        return end

    def take_sent(self) -> list[Message]:
        """Return the messages that came by Temporal's tools since the last call."""
        sent, self._sent = self._sent, []
        return sent

    @property
    def has_sent(self) -> bool:
        """True if messages came by Temporal's tools since they were last taken."""
        return bool(self._sent)

    def look(self) -> None:
        """Note that the inbox is to be read."""
        self._is_to_look = True

    def take_look(self) -> bool:
        """Return whether the inbox is to be read."""
        is_to_look, self._is_to_look = self._is_to_look, False
        return is_to_look

    @property
    def has_news(self) -> bool:
        """True if the inbox is to be read."""
        return self._is_to_look


class _Local:
    """Calls of activities, local ones one at a time: a single task of an execution makes them."""

    def __init__(self, given: RunInput, outside: StepwellWorkflow) -> None:
        self._given, self._outside = given, outside
        self._host = workflow_host.get()
        self._heartbeat = timedelta(seconds=self._host.lease_seconds)
        self._has_kept = given.has_kept

    async def _local(self, activity: str, request: msgspec.Struct, kind: type[T], what: str) -> T:
        return self._read(await self._local_payload(activity, request, what), kind)

    async def _local_payload(
        self, activity: str, request: msgspec.Struct, what: str, limit: timedelta = timedelta(seconds=60)
    ) -> RawValue:
        data = msgspec.json.encode(request)  # what a local activity is given does not go to the server, whatever its size
        return await workflow.execute_local_activity(
            activity,
            payload(data),
            result_type=RawValue,
            start_to_close_timeout=limit,
            local_retry_threshold=timedelta(seconds=_LOCAL_TRY_SECONDS),
            retry_policy=_LOCAL,
            summary=short_summary(what),
        )

    def _read(self, value: RawValue, kind: type[T]) -> T:
        """Return the value of a payload, wherever it is."""
        self._has_kept |= reference_in(value) is not None
        return _value_in(value, kind, self._host)

    async def _sealed(self, request: msgspec.Struct) -> RawValue:
        """Return what an activity is given as a payload, or as a reference to one that is kept in the store.

        Raise ``_Refused`` if even the store does not take it.
        """
        data = msgspec.json.encode(request)
        if len(data) <= MOST_BYTES:
            return payload(data)
        self._has_kept = True
        given = KeepRequest(self._given.execution_id, msgspec.Raw(data))
        answer = await self._local_payload(Activity.KEEP, given, "keep a payload")
        if reference_in(answer) is None:
            raise _Refused(read(answer, StepAnswer))
        return answer

    async def _leave_sent(self) -> None:
        """Put messages that came by Temporal's tools into the inbox, where they are as safe as any other."""
        sent = self._outside.take_sent()
        if sent:
            request = LeaveMessages(self._given.execution_id, self._given.workspace_id, sent)
            await self._local(Activity.LEAVE_MESSAGES, request, dict, "leave messages")


class _Attempts(_Local):
    """The attempts that are under way as activities, and those that wait until fewer are."""

    def __init__(self, given: RunInput, outside: StepwellWorkflow) -> None:
        super().__init__(given, outside)
        self._attempts: dict[str, _Attempt] = {}
        self._waiting: dict[str, tuple[RunStep | StartChild, RawValue]] = {}
        """What is to be asked for, with the payload of each."""
        self._asked_bytes = 0
        self._long_from = 0
        """How long the history was when Temporal first suggested a fresh one."""
        self._stopped: TryTaskAgain | None = None
        """The reason why the present task cannot run here. The main coroutine raises it: errors of attempts are not awaited."""

    def _took(self, asked: RunStep | StartChild, answer: StepAnswer) -> None:
        """Take the outcome of an attempt."""
        raise NotImplementedError

    def _start_child(self, asked: StartChild, request: RawValue) -> Coroutine[Any, Any, None]:
        """Start a child."""
        raise NotImplementedError

    async def _ask(self, asked: RunStep | StartChild, request: StepRequest | ChildRequest) -> None:
        found = self._attempts.get(asked.token_id)
        if found is not None and (found.key, found.number) == (asked.key, asked.attempt):
            return
        self._abandon(asked.token_id)
        try:
            self._waiting[asked.token_id] = asked, await self._sealed(request)
        except _Refused as refused:
            answer = refused.answer
            self._took(asked, StepAnswer(error=answer.error or {}, names=answer.names, is_final=True))

    def _may_continue_as_new(self) -> bool:
        """Return whether the history is long, and nothing is under way that a fresh one would not ask for again."""
        return workflow.info().is_continue_as_new_suggested() and not self._attempts and not self._outside.has_sent

    def _is_to_continue_as_new(self) -> bool:
        """Return whether the history is so long that no more attempts begin until it is a fresh one.

        Some are always under way in a wide run, which would then never come to a moment for that.
        """
        info = workflow.info()
        if not info.is_continue_as_new_suggested():
            return False
        length = info.get_current_history_length()
        self._long_from = self._long_from or length
        return length >= _MOST_PAST_SUGGESTION * self._long_from

    def _start_waiting(self) -> None:
        while self._waiting and len(self._attempts) < _MOST_AT_ONCE and not self._is_to_continue_as_new():
            if self._asked_bytes > _MOST_ASKED_BYTES:
                asyncio.create_task(self._start_in_next_task())  # noqa: RUF006 - Temporal's loop keeps its tasks
                return
            self._start(*self._waiting.pop(next(iter(self._waiting))))

    async def _start_in_next_task(self) -> None:
        await workflow.sleep(0.001)
        self._asked_bytes = 0
        self._start_waiting()

    def _start(self, asked: RunStep | StartChild, request: RawValue) -> None:
        self._asked_bytes += len(request.payload.data)
        making = self._make(asked, request) if isinstance(asked, RunStep) else self._start_child(asked, request)
        self._attempts[asked.token_id] = _Attempt(asked.key, asked.attempt, asyncio.create_task(making))

    def _abandon(self, token_id: str) -> None:
        self._waiting.pop(token_id, None)
        found = self._attempts.pop(token_id, None)
        if found is not None:
            found.task.cancel()

    def _abandon_all(self) -> None:
        for token_id in [*self._attempts, *self._waiting]:
            self._abandon(token_id)

    def _is_over(self, asked: RunStep | StartChild) -> bool:
        """Note that an attempt has ended; return False if it was abandoned before."""
        found = self._attempts.get(asked.token_id)
        if found is None or (found.key, found.number) != (asked.key, asked.attempt):
            return False
        del self._attempts[asked.token_id]
        return True

    async def _make(self, asked: RunStep, request: RawValue) -> None:
        name = asked.uses or f"script:{asked.language}"
        try:
            given = await workflow.execute_activity(
                name,
                request,
                task_queue=step_queue(asked.place, workflow.info().task_queue),
                result_type=RawValue,
                start_to_close_timeout=_LONGEST,
                heartbeat_timeout=self._heartbeat,
                retry_policy=_REMOTE,
                summary=short_summary(f"{asked.key}: {asked.summary}" if asked.summary else asked.key),
            )
            answer = self._read(given, StepAnswer)
        except TryTaskAgain as error:
            self._stopped = error
            return
        except ActivityError as error:
            if is_cancelled_exception(error):
                return
            answer = _answer_in(error)
        if self._is_over(asked):
            self._took(asked, answer)
            self._start_waiting()


class _DeclaredRun(_Attempts):
    """Drives the kernel."""

    def __init__(self, given: RunInput, outside: StepwellWorkflow) -> None:
        super().__init__(given, outside)
        self._plan = self._host.plan(given.workflow, given.version)
        self._limits = self._host.limits
        self._inbox = Inbox(given.execution_id, given.workspace_id)
        self._missing: set[str] = set()
        self._alarm: tuple[int, asyncio.Task[None]] | None = None
        self._is_timer_due = False
        self._origin = given.origin

    async def work(self) -> dict[str, Any]:
        await self._begin()
        try:
            await self._commit_until_over()
        except (_Gone, TryTaskAgain):
            raise
        except Exception as error:  # noqa: BLE001 - the task would run again for ever, and meet it each time
            workflow.logger.exception("the execution fails, since it could not be run on")
            await self._fail(error)
        self._stop()
        status, kept = decode(self._state.sections["status"][ONLY]), self._state.sections["result"].get(ONLY, b"null")
        result: Any = decode(kept) if len(kept) < MOST_TOLD_BYTES else None
        return {"status": status, **(result if isinstance(result, dict) else {})}

    async def _commit_until_over(self) -> None:
        while not self._planner.is_over:
            if self._stopped is not None:
                raise self._stopped
            if self._outside.has_news:
                await self._look()
            if self._planner.has_events:
                await self._commit_next()
            elif self._may_continue_as_new():
                _continue_as_new(self._given, has_kept=self._has_kept)
            else:
                await self._idle()

    async def _fail(self, error: Exception) -> None:
        """End the execution as FAILED: what it met would meet it again at every try."""
        planned = failed_end(self._state, {key: error_value(error)[key] for key in ("kind", "message", "code")})
        messages = self._messages(planned)
        batch = planned.batch([*messages.values(), unrecorded(TEMPORAL, self._given.execution_id)])
        for _ in range(_MOST_CONFLICTS):  # the state is another one after each
            if await self._commit(batch, tuple(messages), is_final=True):
                return
            batch = failed_end(self._state, {"kind": type(error).__name__, "message": str(error), "code": None}).batch()
        raise error

    # Its state.

    async def _begin(self) -> None:
        if self._origin is not None:
            self._fence, self._revision = self._origin.fence, 0
            self._state = opened_state(self._origin)
        else:
            request = FunctionRequest(self._given.execution_id, self._given.workspace_id)
            answer = await self._local(Activity.BEGIN, request, BeginAnswer, "begin")
            if answer.state is None:
                raise _Gone
            self._fence, self._revision = answer.fence, answer.state.revision
            self._state = self._state_of(answer.state)
            self._outside.look()
        self._identity = self._state.identity
        self._planner = CommitPlanner(self._plan, self._state, self._limits)
        self._planner.begin(self._resuming())
        self._spent = self._spent_so_far()

    def _resuming(self) -> list[Planned]:
        return [] if self._state.sections["status"][ONLY] in (_RUNNING, _WAITING) else [SetStatus(Status.RUNNING)]

    def _state_of(self, answer: StateAnswer) -> State:
        if answer.snapshot:
            return read_snapshot(answer.snapshot)[1]
        return self._host.state_at(self._given.execution_id, answer.revision)

    def _spent_so_far(self) -> float:
        spent = self._state.sections["variables"].get(SPENT)
        return 0 if spent is None else decode(spent)

    def _now_ms(self) -> int:
        return workflow.time_ns() // 1_000_000

    # Events.

    async def _look(self) -> None:
        """Give the kernel the messages that have come."""
        await self._leave_sent()
        while self._outside.take_look():
            has_more = True
            while has_more:
                request = InboxRequest(self._given.execution_id, self._given.workspace_id, list(self._inbox.waiting))
                found = await self._local(Activity.INBOX, request, InboxAnswer, "read the inbox")
                has_more = found.has_more
                for message in self._inbox.receive(found.messages):
                    self._planner.add(EffectDone(event_of(message)))

    async def _idle(self) -> None:
        """Wait for an event or the next timer."""
        self._set_alarm()
        await workflow.wait_condition(
            lambda: self._planner.has_events or self._outside.has_news or self._is_timer_due or self._stopped is not None
        )
        if self._is_timer_due:
            self._is_timer_due = False
            if self._missing:
                self._missing.clear()
                self._planner.begin()  # asks again for all that is under way, among it the steps that no worker knew
            self._planner.add(EffectDone(TimePassed()))

    def _set_alarm(self) -> None:
        soonest = self._planner.kernel.soonest_ms
        if self._missing:
            looked = min((self._planner.kernel.looked(token_id) for token_id in sorted(self._missing)), default=0)
            seconds = min(_LOOK_AGAIN_SECONDS * 2 ** min(looked, _OFTEN), _LOOK_AGAIN_AT_MOST)
            again = self._alarm[0] if self._alarm else self._now_ms() + round(seconds * 1000)
            soonest = again if soonest is None else min(again, soonest)
        if self._alarm is not None and (soonest is None or self._alarm[0] != soonest):
            self._alarm[1].cancel()
            self._alarm = None
        if soonest is not None and self._alarm is None:
            self._alarm = soonest, asyncio.create_task(self._ring(soonest))

    async def _ring(self, due_ms: int) -> None:
        # A millisecond more: the kernel's time is cut to milliseconds, and Temporal's timer counts from the task's start.
        await workflow.sleep(max(due_ms - self._now_ms(), 0) / 1000 + 0.001)
        self._alarm, self._is_timer_due = None, True

    # Events to mutations, one commit, then effects.

    async def _commit_next(self) -> None:
        keys = self._plan.state_keys
        scoped: Any = None
        if keys:
            request = StateRequest.of(keys, self._identity)
            scoped = await self._local(Activity.READ_STATE, request, dict[str, Any], "read scoped state")
        planned = self._planner.next(self._now_ms(), scoped)
        if planned is None:
            return
        messages = self._messages(planned)
        taking = [each for key in planned.removed for each in self._inbox.taking(self._inbox.waiting.get(key))]
        ending = [] if planned.end is None else [unrecorded(TEMPORAL, self._given.execution_id)]
        beside = [*messages.values(), *taking, *ending]
        batch = planned.batch(beside)
        if batch:
            batch = planned.batch([*self._status_after(planned), *beside])
        if batch and not await self._commit(batch, tuple(messages), is_final=planned.end is not None):
            return
        for key in planned.taken:
            self._inbox.forget(key)
        effects = self._planner.landed(self._state)
        if self._may_continue_as_new():
            _continue_as_new(self._given, has_kept=self._has_kept)
        await self._carry_out(effects)

    def _status_after(self, planned: PlannedCommit) -> list[Planned]:
        """Return the change of the status, if the execution only waits after a commit, or waits no more.

        It rides in that commit: what rests without one has the status that it had.
        """
        running = {*self._attempts, *self._waiting}
        for effect in planned.effects:
            if isinstance(effect, RunStep):
                running.add(effect.token_id)
            elif isinstance(effect, Abandon):
                running.discard(effect.token_id)
        is_waiting = not (running or self._planner.has_events or planned.end)
        was_waiting = self._state.sections["status"][ONLY] == _WAITING
        return [] if is_waiting == was_waiting else [SetStatus(Status.WAITING if is_waiting else Status.RUNNING)]

    async def _commit(self, batch: list[Planned], nudges: tuple[str, ...], *, is_final: bool) -> bool:
        """Commit a batch, and return whether it landed. If not, the next one is planned anew."""
        try:
            draft = plan_batch(self._state, batch, self._limits)
        except StepwellError as error:
            self._refused(error_value(error), error_names(error))
            return False
        mutations = draft.mutations
        answer = await self._local(Activity.COMMIT, self._request(mutations, nudges, is_final=is_final), CommitAnswer, "commit")
        if answer.is_gone:
            raise _Gone(answer.told)
        if answer.refusal is not None:
            self._refused(answer.refusal, answer.names)
            return False
        self._origin = None
        if answer.state is None:
            assert answer.digest == draft.digest  # noqa: S101 - the activity compares the digest before the commit
            draft.apply()
            self._revision += 1
            return True
        self._begin_anew(answer.state, answer.fence, answer.inbox)
        return False

    def _request(self, mutations: list[Mutation], nudges: tuple[str, ...], *, is_final: bool) -> CommitRequest:
        # The same commit made twice has the same id, and lands once. Another one has another id, and is found not to follow.
        made_of = sha256_hex(encode_mutations(mutations) + workflow.info().run_id.encode())
        return CommitRequest(
            execution_id=self._given.execution_id,
            commit_id=f"temporal.{self._revision + 1}.{made_of}",
            fence=self._fence,
            revision=self._revision,
            mutations=mutations,
            nudges=list(nudges),
            is_final=is_final,
            before=self._state.digest,
            origin=self._origin,
            has_kept=self._has_kept,
        )

    def _begin_anew(self, stored: StateAnswer, fence: int, inbox: Sequence[str]) -> None:
        """Continue from the state that another commit led to."""
        workflow.logger.info("another commit came first; going on from revision %d", stored.revision)
        self._fence, self._revision = fence, stored.revision
        self._state = self._state_of(stored)
        known = set(inbox)
        for key in [key for key in self._inbox.waiting if key not in known]:
            self._inbox.forget(key)
        self._planner.rebuild(self._state, known, self._resuming())
        self._spent = self._spent_so_far()
        self._outside.look()

    def _refused(self, error: dict[str, Any], names: Sequence[str]) -> None:
        refusal = Refusal(error, tuple(names), workflow.random().random())
        if not self._planner.refused(refusal, self._state):
            raise RuntimeError(f"the end of execution {self._given.execution_id!r} was refused: {error.get('message')}")

    def _messages(self, planned: PlannedCommit) -> dict[str, Planned]:
        messages: dict[str, Planned] = {}
        who = self._identity
        for effect in planned.effects:
            if isinstance(effect, CancelChild):
                messages[effect.child_id] = WriteState(put(effect.child_id, who.workspace_id, CANCEL, "", None, FROM_PARENT))
        if planned.end is not None and who.is_child and who.parent_id is not None:
            news = news_of(self._planner.kernel.changes, planned.end.status, planned.end.result)
            key = f"{workflow.time_ns():020d}.{workflow.uuid4()}"
            messages[who.parent_id] = WriteState(put(who.parent_id, who.workspace_id, CHILD, who.execution_id, news, key))
        return messages

    # Effects.

    async def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case RunStep():
                    await self._ask(effect, StepRequest(effect, self._identity, self._spent, self._step_count()))
                case StartChild():
                    seed = seed_of(effect.rule, self._state)
                    request = ChildRequest(effect, self._identity, seed.context, seed.variables, seed.metadata)
                    await self._ask(effect, request)
                case Abandon(token_id=token_id):
                    self._abandon(token_id)
                case Note():
                    if not workflow.unsafe.is_replaying():
                        log_note(self._identity, effect)
                case CancelChild() | End():
                    pass
        self._start_waiting()

    def _step_count(self) -> int:
        """Return how many steps are recorded or under way."""
        return decode(self._state.sections["step_count"].get(ONLY, b"0")) + len(self._attempts) + len(self._waiting)

    def _abandon(self, token_id: str) -> None:
        self._missing.discard(token_id)
        super()._abandon(token_id)

    def _stop(self) -> None:
        self._abandon_all()
        if self._alarm is not None:
            self._alarm[1].cancel()

    def _may_continue_as_new(self) -> bool:
        return super()._may_continue_as_new() and not self._planner.is_over

    def _took(self, asked: RunStep | StartChild, answer: StepAnswer) -> None:
        """Give the outcome of an attempt to the kernel."""
        done = answer.done(asked)
        if answer.spent:
            self._spent += answer.spent
            done = done._replace(spending=[SetVariable(SPENT, msgspec.Raw(canonical(self._spent)))])
        if answer.is_missing:
            self._missing.add(asked.token_id)
        self._planner.add(done)

    def _child_started(self, asked: StartChild, event: ChildStarted | ChildEnded) -> None:
        if self._is_over(asked):
            self._planner.add(EffectDone(event))
            self._start_waiting()

    async def _start_child(self, asked: StartChild, request: RawValue) -> None:
        given = await workflow.execute_activity(
            Activity.START_CHILD,
            request,
            result_type=RawValue,
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=_REMOTE,
            summary=short_summary(asked.key),
        )
        try:
            answer = self._read(given, ChildAnswer)
        except TryTaskAgain as error:
            self._stopped = error
            return
        if answer.error is not None:
            if self._is_over(asked):
                self._took(asked, StepAnswer(error=answer.error, names=answer.names, is_final=True))
                self._start_waiting()
        elif answer.news is not None and not asked.is_detached:
            self._child_started(asked, ChildEnded("", asked.child_id, answer.news))
        else:
            self._child_started(asked, ChildStarted(asked.token_id, asked.key))


class _FunctionRun(_Attempts):
    """Runs a function in sessions, which end where nothing but waits is left, and its steps as activities between them.

    The session's record says where it goes on. The workflow has only what the record does not have yet: the attempts that are
    under way, and the outcomes of those that have ended.
    """

    def __init__(self, given: RunInput, outside: StepwellWorkflow) -> None:
        super().__init__(given, outside)
        self._answers: dict[tuple[str, int], StepAnswer] = {}
        self._has_answer = False
        origin = given.origin
        self._identity: Metadata | None = None if origin is None else origin.identity

    async def work(self) -> dict[str, Any]:
        origin = self._given.origin
        while True:
            answer = await self._session(origin)
            origin = None
            if answer.is_over:
                self._abandon_all()
                return answer.told
            self._settle(answer)
            if self._may_continue_as_new():  # the session of the next life asks again for what this one has asked for
                _continue_as_new(self._given, has_kept=self._has_kept)
            await self._ask_for(answer.asked)
            await self._wait(answer.wake_ms)

    async def _session(self, origin: ItemOrigin | None) -> FunctionAnswer:
        """Run the function until it ends or waits."""
        self._outside.take_look()
        self._has_answer = False
        await self._leave_sent()
        who = self._given
        answers = [AttemptAnswer(*each, answer) for each, answer in self._answers.items()]
        under_way = [(each.key, each.number) for each in self._attempts.values()]
        under_way += [(asked.key, asked.attempt) for asked, _ in self._waiting.values()]
        is_first = self._identity is None
        request = FunctionRequest(who.execution_id, who.workspace_id, origin, answers, under_way, is_first=is_first)
        given = await self._local_payload(Activity.RUN_FUNCTION, request, who.workflow, _LONGEST)
        answer = self._read(given, FunctionAnswer)
        return await self._session_of_others(request) if answer.is_unknown else answer

    async def _session_of_others(self, request: FunctionRequest) -> FunctionAnswer:
        """Run the function in whatever worker knows it, since this one does not."""
        request = msgspec.structs.replace(request, is_again=True)
        running = workflow.start_activity(
            Activity.RUN_FUNCTION,
            await self._sealed(request),
            result_type=RawValue,
            start_to_close_timeout=_LONGEST,
            heartbeat_timeout=self._heartbeat,
            retry_policy=_REMOTE,
            summary=short_summary(self._given.workflow),
        )
        while not running.done():
            await workflow.wait_condition(lambda: running.done() or self._outside.has_sent)
            await self._leave_sent()
        return self._read(await running, FunctionAnswer)

    def _settle(self, answer: FunctionAnswer) -> None:
        """Forget the outcomes that the record has, and give up what the function waits for no more."""
        self._identity = self._identity or answer.identity
        for each in answer.taken:
            self._answers.pop(each, None)
        still_open = set(answer.open)
        self._answers = {each: told for each, told in self._answers.items() if each in still_open}
        under_way = {key: each.number for key, each in self._attempts.items()}
        under_way |= {key: asked.attempt for key, (asked, _) in self._waiting.items()}
        for each in under_way.items():
            if each not in still_open:
                self._abandon(each[0])

    async def _ask_for(self, calls: Sequence[AskedCall]) -> None:
        for call in calls:
            asked = RunStep(call.key, call.key, call.step, None, call.number, summary=call.summary)
            assert self._identity is not None  # noqa: S101 - the first session tells it
            await self._ask(asked, StepRequest(asked, self._identity, call=call.call, has_limit=call.has_limit))
        self._start_waiting()

    def _took(self, asked: RunStep | StartChild, answer: StepAnswer) -> None:
        """Keep the outcome of an attempt for the next session."""
        self._answers[asked.key, asked.attempt] = answer
        self._has_answer = True

    def _may_continue_as_new(self) -> bool:
        return super()._may_continue_as_new() and not self._answers

    async def _wait(self, wake_ms: int | None) -> None:
        left = None if wake_ms is None else max(wake_ms - workflow.time_ns() // 1_000_000, 0) / 1000 + 0.001
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._has_answer or self._outside.has_news or self._stopped is not None, timeout=left
            )
        if self._stopped is not None:
            raise self._stopped


def input_of(value: RawValue) -> RunInput:
    """Return the input of a workflow."""
    given = _value_in(value, RunInput, workflow_host.get())
    return given if reference_in(value) is None else msgspec.structs.replace(given, has_kept=True)


def _value_in(value: RawValue, kind: type[T], host: WorkflowHost) -> T:
    reference = reference_in(value)
    return read(value, kind) if reference is None else msgspec.json.decode(host.kept(reference), type=kind)


def _continue_as_new(given: RunInput, *, has_kept: bool) -> NoReturn:
    """Continue as new, with an empty history. The state is in the store; messages that come meanwhile are in the inbox."""
    workflow.continue_as_new(payload(msgspec.json.encode(msgspec.structs.replace(given, origin=None, has_kept=has_kept))))


def _answer_in(error: ActivityError) -> StepAnswer:
    """Return the failure of an attempt: the worker's, or the reason why it reported none."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.details:
        return msgspec.convert(cause.details[0], StepAnswer)
    return StepAnswer.failed(type(cause or error).__name__, str(cause or error), is_final=False)


def _outside_key(number: int) -> str:
    """Return the key of a message that came by Temporal's tools: in the order of its coming, and never twice."""
    return f"{workflow.time_ns():020d}.{workflow.info().run_id}.{number}"


def _value_of(args: Sequence[RawValue]) -> Value:
    if not args:
        return None
    try:
        return decode(args[0].payload.data)
    except (ValueError, StepwellError):
        return args[0].payload.data.decode(errors="replace")
