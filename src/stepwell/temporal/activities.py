"""The activities of the Temporal workflow: all that it does with the store, and the attempts at steps.

An activity may be made more than once: its worker was lost, or the reply was. So each looks what is there before it writes, and
claims a new fence before it goes on with something that another try could still be doing.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, cast

import msgspec
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from stepwell.errors import (
    AlreadyExists,
    CommitUnknown,
    Conflict,
    InvalidInput,
    LeaseLost,
    LimitExceeded,
    LockHeld,
    NotFound,
    StepwellError,
    StoreUnavailable,
    ValidationFailed,
)
from stepwell.flow.function import registered_step
from stepwell.flow.language.template import StateKey
from stepwell.kernel.protocol import StartChild
from stepwell.model.commit import Claim, Lease, Rest, StateBatch, Written
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY, State, sha256_hex
from stepwell.model.external_engines import HOLD_SECONDS, TEMPORAL, EngineRecord, record_of, recorded, records_path, unrecorded
from stepwell.model.mutation import Mutation
from stepwell.model.queue_item import ACTIVE, Item, ItemStatus
from stepwell.model.record import Metadata, decode_status, decode_token
from stepwell.model.scoped_operations import Delete, Put
from stepwell.model.snapshot import write_snapshot
from stepwell.model.status import FINAL
from stepwell.model.value import canonical, decode, recode
from stepwell.pipeline.operations import read as reading
from stepwell.pipeline.operations import write, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.runtime.crash_suspicion import CrashSuspicion
from stepwell.runtime.inbox import Message, messages, path_of, put
from stepwell.runtime.sessions.call_record import ASKED
from stepwell.runtime.sessions.execution_writer import ExecutionWriter
from stepwell.runtime.sessions.function_session import FunctionSession
from stepwell.runtime.start import Seed
from stepwell.runtime.steps.attempt import AttemptResult, Attempts
from stepwell.runtime.steps.budget import SPENT
from stepwell.runtime.steps.http_step import builtin_step
from stepwell.runtime.steps.outcome import error_names, error_value
from stepwell.runtime.steps.scripts import script_step
from stepwell.state.executions import CachedExecution, CommitTerms, OpenTransaction
from stepwell.state.transaction_buffer import RefusedChange
from stepwell.temporal.function_steps import FunctionSteps
from stepwell.temporal.host import TemporalHost
from stepwell.temporal.messages import (
    MOST_BYTES,
    MOST_TOLD_BYTES,
    NO_CALL,
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
    StateAnswer,
    StateRequest,
    StepAnswer,
    StepRequest,
    payload,
    reference_in,
    sealed,
)
from stepwell.temporal.naming import Activity
from stepwell.temporal.opening import creation_of, mark_of, opening
from stepwell.temporal.payload_store import rows_path

__all__ = ["Activities", "create"]

log = logging.getLogger(__name__)

_NUDGE_POLL_SECONDS = 0.25
_HEARTBEATS_PER_LEASE = 4
_STORE_RETRY_SECONDS = 1.0
_MOST_INBOX_BYTES = 1_000_000
_MOST_TRIGGERS = 1_000
_MOST_CRASHES = 3
"""A step in which so many workers have died has failed. The first one does not count: the fault may be that of another step."""
_ALONE_SECONDS = 30.0
_MARK_TTL_MS = 7 * 86_400_000


async def create(host: TemporalHost, origin: ItemOrigin, record: EngineRecord) -> None:
    """Create the execution of a queue item, and move the item to DISPATCHED, in one commit.

    Raises:
        AlreadyExists: the execution is there.
        LeaseLost: the claim is no longer good; nothing was written.
    """
    who = origin.identity
    live = CachedExecution(who.execution_id, who.workspace_id, State())
    terms = CommitTerms(f"temporal.0.{origin.item_id}.{origin.fence}", None, (), None, (), mark_of(origin))
    batch = [recorded(TEMPORAL, who.execution_id, record)]
    transaction = OpenTransaction(live, terms, host.new_id)
    await host.driver.run(host.executions.commit(transaction, batch, creation_of(origin), opening(origin)))


class _Taken(NamedTuple):
    """An execution that was taken over."""

    live: CachedExecution
    fence: int
    claims: int
    """How often it was claimed since its last commit."""


class Activities:
    """The activities of one worker.

    Args:
        wake_starter: wakes the task that starts what is recorded for Temporal.
    """

    def __init__(self, host: TemporalHost, wake_starter: Callable[[], None]) -> None:
        self._host, self._wake_starter = host, wake_starter
        self._triggers: dict[str, bytes | None] = {}

    def all(self) -> list[Callable[..., Any]]:
        """Return the activities to register."""
        return [
            self.begin,
            self.commit,
            self.inbox,
            self.keep,
            self.leave_messages,
            self.read_state,
            self.start_child,
            self.run_function,
            self.step,
        ]

    # The state of an execution.

    @activity.defn(name=Activity.BEGIN)
    async def begin(self, given: RawValue) -> RawValue:
        """Take an execution over under a new fence, and return where it stands."""
        asked = await self._host.payloads.read(given, FunctionRequest)
        taken = await self._take_over(asked.execution_id)
        if taken is None:
            return sealed(BeginAnswer(), "an answer")
        return sealed(BeginAnswer(taken.fence, _answer_of(taken.live.state)), "an answer")

    async def _take_over(self, execution_id: str) -> _Taken | None:
        """Claim an execution for Temporal; its earlier holder can commit no more. Return None if there is nothing to run."""
        host = self._host
        try:
            head = await host.driver.run(host.executions.head(execution_id))
            if head.status in FINAL:
                return None
            outcome = await host.driver.run(write_or_raise(Claim(execution_id, TEMPORAL, HOLD_SECONDS)))
            live = await host.driver.run(host.executions.newest(execution_id))
        except NotFound:
            return None
        except LockHeld as error:  # a worker of Stepwell's was nudged, and is about to leave it to Temporal
            raise _again(error) from error
        assert isinstance(outcome, Written)  # noqa: S101 - what a claim that is granted gives
        lease = outcome.answers[0]
        assert isinstance(lease, Lease)  # noqa: S101
        is_over = decode_status(live.state.sections["status"][ONLY]) in FINAL
        return None if is_over or live.state.identity.engine != TEMPORAL else _Taken(live, lease.fence, head.claims + 1)

    # Commits.

    @activity.defn(name=Activity.COMMIT)
    async def commit(self, given: RawValue) -> RawValue:
        """Store a planned commit, or say what landed instead."""
        asked = await self._host.payloads.read(given, CommitRequest)
        try:
            answer = await self._commit(asked)
        except (StoreUnavailable, CommitUnknown) as error:
            raise _again(error) from error
        if asked.is_final and asked.has_kept and answer.digest:
            with suppress(StepwellError):  # they stay
                await self._host.payloads.release(asked.execution_id)
        return payload(msgspec.json.encode(answer))

    async def _commit(self, asked: CommitRequest) -> CommitAnswer:
        host = self._host
        try:
            live = await host.driver.run(host.executions.newest(asked.execution_id))
        except NotFound:
            if asked.origin is None:
                return CommitAnswer(is_gone=True)
            created = await self._create(asked.origin)
            if created is None:
                return CommitAnswer(is_gone=True)
            live = created
        if (live.state.revision, live.state.digest) != (asked.revision, asked.before):
            landed = await host.driver.run(host.executions.receipt(asked.execution_id, asked.commit_id))
            if landed is not None:
                return await self._adopted(asked, live, asked.fence, is_own=landed.revision == live.state.revision)
            if asked.origin is not None:  # the item was claimed once more, and its execution created under that fence
                return await self._take_over_and_adopt(asked)
            return await self._adopted(asked, live, asked.fence)
        rest = Rest(None, is_final=True) if asked.is_final else None
        terms = CommitTerms(asked.commit_id, asked.fence, (), rest, tuple(asked.nudges))
        try:
            receipt = await host.driver.run(host.executions.commit(OpenTransaction(live, terms, host.new_id), asked.mutations))
        except LeaseLost:
            # A later claim may have been for this very workflow, as by a dispatcher whose item came back.
            is_mine = await self._is_mine(asked.execution_id)
            return await self._take_over_and_adopt(asked) if is_mine else await self._gone(asked.execution_id)
        except (StoreUnavailable, CommitUnknown):
            raise
        except Conflict as error:
            if error.expected is None:
                return CommitAnswer(refusal=error_value(error), names=error_names(error))
            newest = await host.driver.run(host.executions.newest(asked.execution_id))
            if newest.state.revision == asked.revision:  # scoped state that was expected to be another
                return CommitAnswer(refusal=error_value(error), names=error_names(error))
            return await self._adopted(asked, newest, asked.fence)
        except StepwellError as error:
            return CommitAnswer(refusal=error_value(error), names=error_names(error))
        return CommitAnswer(digest=receipt.after)

    async def _create(self, origin: ItemOrigin) -> CachedExecution | None:
        """Create the execution, since the dispatcher has not yet; None if its item is not to run any more."""
        host = self._host
        try:
            await create(host, origin, _own_record(origin.identity))
        except AlreadyExists:
            pass
        except LeaseLost as error:
            item: Item | None = await host.driver.run(reading(lambda: host.store.item(origin.item_id)))
            waits = item is not None and (item.status == ItemStatus.QUEUED or item.status in ACTIVE)
            if waits and item is not None and item.execution_id == origin.identity.execution_id:
                raise _again(error) from error  # another dispatcher has claimed it, or will, and finds this workflow
            return None
        try:
            return await host.driver.run(host.executions.newest(origin.identity.execution_id))
        except NotFound:
            return None  # deleted

    async def _is_mine(self, execution_id: str) -> bool:
        """Return whether the store says that the workflow of this activity is the one to run an execution."""
        host = self._host
        found = await host.driver.run(reading(lambda: host.store.entries(records_path(TEMPORAL), [execution_id])))
        return execution_id in found and record_of(found[execution_id]).engine_id == activity.info().workflow_id

    async def _gone(self, execution_id: str) -> CommitAnswer:
        return CommitAnswer(is_gone=True, told=await self._end_of(execution_id))

    async def _take_over_and_adopt(self, asked: CommitRequest) -> CommitAnswer:
        taken = await self._take_over(asked.execution_id)
        return await self._gone(asked.execution_id) if taken is None else await self._adopted(asked, taken.live, taken.fence)

    async def _adopted(self, asked: CommitRequest, live: CachedExecution, fence: int, *, is_own: bool = False) -> CommitAnswer:
        """Return the state that is stored, for the workflow to go on from; after its own commit, just that it landed."""
        with live.lock:
            state = live.state
            if is_own and state.revision == asked.revision + 1:
                return CommitAnswer(digest=state.digest)
            is_over, who = decode_status(state.sections["status"][ONLY]) in FINAL, state.identity
            answer = _answer_of(state)
        if is_over or who.engine != TEMPORAL:
            return await self._gone(who.execution_id)
        found = await self._messages(who.execution_id, who.workspace_id)
        return CommitAnswer(state=answer, fence=fence, inbox=[message.key for message in found])

    # The inbox and scoped state.

    async def _messages(self, execution_id: str, workspace_id: str) -> list[Message]:
        host, path = self._host, path_of(execution_id, workspace_id)
        return messages(await host.driver.run(reading(lambda: list(all_entries(host.store, path)))))

    @activity.defn(name=Activity.INBOX)
    async def inbox(self, given: RawValue) -> RawValue:
        """Return the messages that the workflow does not know yet."""
        asked = await self._host.payloads.read(given, InboxRequest)
        known, size = set(asked.known), 0
        chosen: list[Message] = []
        new = [each for each in await self._messages(asked.execution_id, asked.workspace_id) if each.key not in known]
        for message in new:
            size += len(msgspec.json.encode(message))
            if chosen and size > _MOST_INBOX_BYTES:
                break
            chosen.append(message)
        return await self._host.payloads.seal(asked.execution_id, InboxAnswer(chosen, len(chosen) < len(new)))

    @activity.defn(name=Activity.LEAVE_MESSAGES)
    async def leave_messages(self, given: RawValue) -> RawValue:
        """Leave messages in the inbox; one that is there is left as it is."""
        asked = await self._host.payloads.read(given, LeaveMessages)
        ops = tuple(
            put(asked.execution_id, asked.workspace_id, each.kind, each.name, each.value, each.key) for each in asked.messages
        )
        await self._host.driver.run(write_or_raise(StateBatch(ops, (), (asked.execution_id,))))
        return payload(b"{}")

    @activity.defn(name=Activity.READ_STATE)
    async def read_state(self, given: RawValue) -> RawValue:
        """Return the scoped state that a definition reads."""
        asked = await self._host.payloads.read(given, StateRequest)
        keys = [StateKey(*each) for each in asked.keys]
        found = await self._host.services.read_state(keys, asked.identity)
        return await self._host.payloads.keep(asked.identity.execution_id, msgspec.json.encode(found))

    @activity.defn(name=Activity.KEEP)
    async def keep(self, given: RawValue) -> RawValue:
        """Keep a payload in the store, and return the reference to it."""
        asked = await self._host.payloads.read(given, KeepRequest)
        try:
            return await self._host.payloads.keep(asked.execution_id, bytes(asked.data))
        except LimitExceeded as error:
            return sealed(StepAnswer(error=error_value(error), names=error_names(error)), "an error")

    # Steps and children.

    @activity.defn(dynamic=True)
    async def step(self, args: Sequence[RawValue]) -> RawValue:
        """Make one attempt at a step. A failure is raised, so that Temporal shows it, with the answer as its details."""
        request = await self._host.payloads.read(args[0], StepRequest)
        is_suspected = activity.info().attempt > 1  # a worker was lost, or has stopped, inside an earlier try
        answer, done = await self._beating(self._suspected(request) if is_suspected else self._made(request))
        if answer.error is not None:
            kind, message = str(answer.error.get("kind")), str(answer.error.get("message"))
            # Benign to Temporal, which would log each attempt with a traceback: what it means is decided, and logged, by the run.
            raise ApplicationError(
                message,
                msgspec.to_builtins(answer),
                type=kind,
                non_retryable=True,
                category=ApplicationErrorCategory.BENIGN,
            )
        return done

    async def _suspected(self, request: StepRequest) -> tuple[StepAnswer, RawValue]:
        """Make an attempt that may bring this worker down: one at a time, so that no other is blamed, and not again and again."""
        host, asked = self._host, request.asked
        path, key = rows_path(request.identity.execution_id), "crashes." + sha256_hex(f"{asked.key}#{asked.attempt}".encode())
        try:
            row = (await host.driver.run(reading(lambda: host.store.entries(path, [key])))).get(key)
            crashes: int = 0 if row is None else decode(row.data or b"0")
            async with _one_at_a_time(host.services.suspected_steps):
                mark = Put(path, key, msgspec.Raw(recode(crashes + 1)), ttl_ms=_MARK_TTL_MS)
                await host.driver.run(write_or_raise(StateBatch((mark,))))
                try:
                    return await (self._made(request) if crashes < _MOST_CRASHES else _given_up(asked.key, crashes))
                finally:
                    await host.driver.run(write(StateBatch((Delete(path, key),))))
        except (StoreUnavailable, CommitUnknown) as error:
            raise _again(error) from error

    async def _made(self, request: StepRequest) -> tuple[StepAnswer, RawValue]:
        """Make an attempt; return its answer, and that as a payload."""
        answer = await self._attempt(request)
        while True:
            try:
                return answer, await self._host.payloads.seal(request.identity.execution_id, answer)
            except ValidationFailed as error:
                answer = StepAnswer(error=error_value(error), names=error_names(error), is_final=True, took_ms=answer.took_ms)
                return answer, sealed(answer, "an error")
            except (StoreUnavailable, CommitUnknown):  # the step is done: it must not run again because the store is away
                await asyncio.sleep(_STORE_RETRY_SECONDS)

    async def _attempt(self, request: StepRequest) -> StepAnswer:
        asked, host = request.asked, self._host
        attempts = Attempts(host.services, request.identity, _PartOfState(request, await self._trigger(request.identity)))
        attempts.grants = await host.grants(request.identity)
        if asked.language:
            step = script_step(asked, host.services, attempts.budget)
        else:
            step = builtin_step(asked.uses, asked.timeout_seconds) or registered_step(asked.uses)
        if step is None:
            log.warning("execution %r waits: no step %r is registered here", request.identity.execution_id, asked.uses)
            return StepAnswer()
        if asked.timeout_seconds is not None:
            step = copy.copy(step)
            step.timeout_seconds = asked.timeout_seconds
        made: AttemptResult | None = None
        try:
            if request.call == NO_CALL:
                attempts.budget.begin(step, asked.key, is_free=asked.is_undo)
                arguments, keywords = (), step.bind(asked.args)
            else:  # the session of the function has asked its budget
                arguments, keywords = step.decode_call(bytes(request.call))
            seconds = self._seconds_left(request)
            made = await attempts.make(
                step, asked.call, asked.attempt, arguments, keywords, seconds, recorded_as=asked.key, summary=asked.summary
            )
            if made.error is not None:
                raise made.error
            landing = _as_data(made.landing)
        except Exception as error:  # noqa: BLE001 - however it fails, the kernel decides what that means
            told = error_value(error)
            spent, took = (0, 0) if made is None else (made.spent, made.took_ms)
            return StepAnswer(
                error=told,
                names=error_names(error),
                is_final=not told["is_retryable"],
                policy=step.policy,
                chance=random.random(),  # noqa: S311 - spreads retries, guards nothing
                took_ms=took,
                spent=spent,
            )
        return StepAnswer(
            is_completed=True,
            output=msgspec.Raw(made.output),
            landing=landing,
            took_ms=made.took_ms,
            spent=made.spent,
            policy=step.policy,
        )

    def _seconds_left(self, request: StepRequest) -> float | None:
        deadline = request.identity.deadline_ms
        return max(deadline - self._host.store_now_ms(), 0) / 1000 if request.has_limit and deadline is not None else None

    async def _trigger(self, who: Metadata) -> bytes | None:
        """Return what started an execution, for its steps to see. It never changes, so it is read once."""
        known = self._triggers
        if who.execution_id not in known:
            try:
                executions = self._host.executions
                live = executions.at_hand(who.execution_id) or await self._host.driver.run(executions.newest(who.execution_id))
            except NotFound:
                return None
            except (StoreUnavailable, CommitUnknown) as error:
                raise _again(error) from error
            known[who.execution_id] = live.state.sections["trigger"].get(ONLY)
            if len(known) > _MOST_TRIGGERS:
                del known[next(iter(known))]
        return known.get(who.execution_id)

    @activity.defn(name=Activity.START_CHILD)
    async def start_child(self, given: RawValue) -> RawValue:
        """Start a child, unless it was started before."""
        asked = await self._host.payloads.read(given, ChildRequest)
        try:
            news = await self._start_child(asked.asked, asked.parent, Seed(asked.context, asked.variables, asked.metadata))
        except (StoreUnavailable, CommitUnknown) as error:
            raise _again(error) from error
        except StepwellError as error:
            return sealed(ChildAnswer(error=error_value(error), names=error_names(error)), "an error")
        self._wake_starter()
        return await self._host.payloads.seal(asked.parent.execution_id, ChildAnswer(news))

    async def _start_child(self, asked: StartChild, parent: Metadata, seed: Seed) -> Any:
        services = self._host.services
        workflow = await services.workflows.startable(asked.workflow, asked.version)
        return await services.start_child(
            workflow, asked.input, asked.child_id, parent, seed, is_detached=asked.is_detached, is_again=asked.is_again
        )

    # Functions.

    @activity.defn(name=Activity.RUN_FUNCTION)
    async def run_function(self, given: RawValue) -> RawValue:
        """Run a function from its record until it ends, or waits for steps, messages or its time."""
        asked = await self._host.payloads.read(given, FunctionRequest)
        answer = await self._beating(self._run_function(asked))
        if answer.is_over and reference_in(given) is not None:
            with suppress(StepwellError):  # they stay
                await self._host.payloads.release(asked.execution_id)
        return sealed(answer, "an answer")

    async def _run_function(self, asked: FunctionRequest) -> FunctionAnswer:
        host = self._host
        if asked.origin is not None and await self._create(asked.origin) is None:
            return FunctionAnswer(is_over=True, told={"status": "GONE"})
        taken = await self._take_over(asked.execution_id)
        if taken is None:
            return FunctionAnswer(is_over=True, told=await self._end_of(asked.execution_id))
        live, fence = taken.live, taken.fence
        try:
            workflow = await host.services.workflows.of_state(live.state)
        except NotFound:
            if activity.info().is_local:
                return FunctionAnswer(is_unknown=True)
            # Another worker may have it: the activity runs again, here or there, and the run says meanwhile what it waits for.
            who = live.state.identity
            text = f"no worker that was asked has version {who.version} of workflow {who.workflow_id!r}; start one that has"
            await self._note_obstacle(live.execution_id, text)
            log.warning("execution %r waits: %s", live.execution_id, text)
            raise ApplicationError(text, type="NotFound", category=ApplicationErrorCategory.BENIGN) from None
        if asked.is_again:
            await self._note_obstacle(live.execution_id, "")
        writer = _HeldWriter(host.executions, host.driver, live, fence, host.new_id)
        steps = FunctionSteps(asked.answers, asked.under_way, host.limits, host.services.clock)
        lease = Lease(live.execution_id, TEMPORAL, fence, 0)
        session = FunctionSession(host.services, workflow, writer, lease, is_new=False, elsewhere=steps)
        looking = asyncio.ensure_future(self._look(live.execution_id, session))
        try:
            wake_ms = await _run_unless_it_crashes(session, live.state, taken.claims)
        except LeaseLost as error:
            if await self._is_mine(asked.execution_id):
                raise _again(error) from error
            return FunctionAnswer(is_over=True, told=await self._end_of(asked.execution_id) or {"status": "GONE"})
        except (StoreUnavailable, CommitUnknown) as error:
            raise _again(error) from error
        except asyncio.CancelledError:
            session.lose(LeaseLost(f"the activity of execution {live.execution_id!r} was stopped"))
            raise
        finally:
            looking.cancel()
        told = await self._end_of(asked.execution_id)
        if told:
            record = StateBatch((unrecorded(TEMPORAL, asked.execution_id).op,))
            with suppress(StepwellError):  # the sweep removes it
                await host.driver.run(write(record))
            return FunctionAnswer(is_over=True, told=told)
        identity = writer.identity if asked.is_first else None
        still_open = _open_attempts(writer.state)
        return FunctionAnswer(wake_ms=wake_ms, asked=steps.asked, open=still_open, taken=steps.taken, identity=identity)

    async def _note_obstacle(self, execution_id: str, text: str) -> None:
        """Record why an execution does not move, for those who ask."""
        host = self._host
        found = await host.driver.run(reading(lambda: host.store.entries(records_path(TEMPORAL), [execution_id])))
        row = found.get(execution_id)
        if row is not None and (record := record_of(row)).obstacle != text:
            changed = msgspec.structs.replace(record, obstacle=text)
            with suppress(Conflict):  # another holder has it by now
                op = recorded(TEMPORAL, execution_id, changed, expected=row.revision).op
                await host.driver.run(write_or_raise(StateBatch((op,))))

    async def _look(self, execution_id: str, session: FunctionSession) -> None:
        """Give a running function the messages that come."""
        host = self._host
        while True:
            await asyncio.sleep(_NUDGE_POLL_SECONDS)
            with suppress(StepwellError):
                if await host.driver.run(reading(lambda: host.store.nudged([execution_id]))):
                    await session.look()

    async def _end_of(self, execution_id: str) -> dict[str, Any]:
        """Return status and result of an execution that has ended; empty while it has not."""
        try:
            found = await self._host.driver.run(self._host.executions.load(execution_id))
        except NotFound:
            return {"status": "GONE"}
        if found.status not in FINAL:
            return {}
        result = cast("dict[str, Any]", found.result) if isinstance(found.result, dict) else {}
        told = {"status": str(found.status), **result}
        return told if len(msgspec.json.encode(told)) < MOST_TOLD_BYTES else {"status": str(found.status)}

    async def _beating(self, work: Awaitable[Any]) -> Any:
        """Send heartbeats while something is done, so that the server finds out soon when this worker is lost."""

        async def beat() -> None:
            while not activity.info().is_local:
                activity.heartbeat()
                await asyncio.sleep(self._host.lease_seconds / _HEARTBEATS_PER_LEASE)

        beating = asyncio.ensure_future(beat())
        try:
            return await work
        except asyncio.CancelledError:
            if activity.is_worker_shutdown():
                raise ApplicationError("the worker stops; another one runs this again", type="WorkerStops") from None
            raise
        finally:
            beating.cancel()


def _own_record(who: Metadata) -> EngineRecord:
    """Return the record of the execution that this activity's workflow runs."""
    info = activity.info()
    assert info.workflow_id is not None  # noqa: S101 - it is no standalone activity
    return EngineRecord(who.workspace_id, who.workflow_id, info.workflow_id, info.task_queue, is_started=True)


async def _run_unless_it_crashes(session: FunctionSession, state: State, claims: int) -> int | None:
    """Run a session, or end its execution if the function's code brings its workers down again and again."""
    if claims > 1 or CrashSuspicion.has_marks(state):
        message = session.suspect(claims, is_forgiven=False)
        if message is not None:
            await session.give_up("WorkerCrashed", message)
            return None
    return await session.run()


@asynccontextmanager
async def _one_at_a_time(slot: asyncio.Lock) -> AsyncGenerator[None]:
    """Hold a slot, but do not wait for it for ever."""
    held = False
    with suppress(TimeoutError):
        async with asyncio.timeout(_ALONE_SECONDS):
            held = await slot.acquire()
    try:
        yield
    finally:
        if held:
            slot.release()


async def _given_up(key: str, crashes: int) -> tuple[StepAnswer, RawValue]:
    """Return the failure of a step that brings its workers down."""
    message = (
        f"step {key!r} brought down its worker again and again: {crashes} times in a row it was under way when its worker died"
    )
    answer = StepAnswer.failed("WorkerCrashed", message, is_final=True)
    return answer, sealed(answer, "an error")


def _open_attempts(state: State) -> list[tuple[str, int]]:
    """Return key and number of the attempts that an execution waits for."""
    tokens = [decode_token(data) for data in state.sections["tokens"].values()]
    return [(each.token_id, each.value["attempt"] + 1) for each in tokens if each.node == ASKED]


class _PartOfState:
    """The part of an execution's state that a step and its budget read."""

    def __init__(self, request: StepRequest, trigger: bytes | None) -> None:
        self.state = State()
        if trigger is not None:
            self.state.sections["trigger"][ONLY] = trigger
        self.state.sections["step_count"][ONLY] = recode(request.step_count)
        if request.spent:
            self.state.sections["variables"][SPENT] = canonical(request.spent)


class _HeldWriter(ExecutionWriter):
    """Writes the commits of a function. Where a worker gives its lease back to rest, Temporal keeps it: it knows when to go on."""

    async def leave(self, batch: Sequence[Planned], rest: Rest, retrying: Any) -> None:  # noqa: ARG002 - it does not rest in the store
        """Record what the execution waits for, if that is not recorded yet."""
        last = self._resting_batch(batch)
        if last or self._buffered:
            await retrying(lambda: self.commit(last))


def _as_data(landing: Sequence[Planned]) -> list[Mutation]:
    """Return what a step wrote as mutations; a fault in it is raised."""
    found: list[Mutation] = []
    for each in landing:
        if not callable(each):
            found.append(each)
            continue
        if isinstance(each, RefusedChange):
            raise each.error
        raise InvalidInput("a step on Temporal writes values, not functions of the present value")
    return found


def _answer_of(state: State) -> StateAnswer:
    snapshot = write_snapshot(state)
    # In JSON, bytes take a third more.
    return StateAnswer(state.revision, snapshot if len(snapshot) < MOST_BYTES * 2 // 3 else b"")


def _again(error: Exception) -> ApplicationError:
    """Return the error by which Temporal makes the activity again."""
    return ApplicationError(str(error), type=type(error).__name__, category=ApplicationErrorCategory.BENIGN)
