"""A session: one execution being run by a worker, from its claim to its rest or end.

The base of both kinds of sessions has their life cycle: a session runs its workflow, records its end or gives the execution back to
rest until its time comes or a message arrives, and it stops when its lease is lost, its worker stops or its store does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import cached_property
from math import inf

from stepwell.errors import LeaseLost, StepwellError, ValidationFailed
from stepwell.flow.retry import error_text
from stepwell.model.commit import Lease, Rest
from stepwell.model.draft import Planned, quoted
from stepwell.model.execution_state import ONLY
from stepwell.model.mutation import SetStatus, WriteState
from stepwell.model.record import decode_status
from stepwell.model.status import Status
from stepwell.model.value import Value
from stepwell.runtime.child_places import PlacesNeeded
from stepwell.runtime.crash_suspicion import CrashSuspicion, cleared_marks, crash_message
from stepwell.runtime.inbox import CANCEL, CHILD, FROM_PARENT, PAUSE, Inbox, Message, fresh_key, pause_in, put
from stepwell.runtime.services import Services
from stepwell.runtime.sessions.execution_writer import ExecutionWriter
from stepwell.runtime.shutdown import AGAIN_MS, is_away
from stepwell.runtime.steps.attempt import Attempts
from stepwell.runtime.steps.outcome import error_value
from stepwell.runtime.steps.user_traceback import user_traceback
from stepwell.runtime.unwinding import Abandoned, Suspended
from stepwell.telemetry import live_span, live_tracer, mark_failed

__all__ = ["CHILD_SLOT_POLL_MS", "FINAL_REST", "Session"]

log = logging.getLogger(__name__)

FINAL_REST = Rest(None, is_final=True)
"""The rest of an execution that has ended."""

CHILD_SLOT_POLL_MS = 30_000
"""How long an execution rests that has more children to start than may run at once: the limit may have been raised meanwhile."""

_RUNNING = quoted(Status.RUNNING)
_BUSY_POLL_SECONDS = 0.01


class Session(ABC):
    """Runs one execution until it ends or rests.

    Args:
        lease: the lease of this worker on the execution.
        is_new: whether the execution was just created, so that it has no messages yet.
    """

    def __init__(self, services: Services, writer: ExecutionWriter, lease: Lease, *, is_new: bool) -> None:
        self._services, self._writer, self.lease, self._is_new = services, writer, lease, is_new
        self.kept_until = inf
        """Until when the lease is held for sure, by ``time.monotonic``; its worker keeps it up to date."""
        self._identity = writer.identity
        self._inbox = Inbox(self._identity.execution_id, self._identity.workspace_id)
        self._is_handing_back = self._is_abandoned = self._is_paused = False
        writer.on_moved = self._look_for_pause
        self._suspicion: CrashSuspicion | None = None
        self._is_code_marked = False

    @cached_property
    def _attempts(self) -> Attempts:
        return Attempts(self._services, self._identity, self._writer)

    @property
    def execution_id(self) -> str:
        """The execution's id."""
        return self._identity.execution_id

    @property
    def is_created(self) -> bool:
        """True if the execution exists: one from the queue is created by its first commit."""
        return self._writer.is_created

    # The parts in which function and declared sessions differ.

    @property
    @abstractmethod
    def is_running_steps(self) -> bool:
        """True while steps or calls of children are under way."""

    @abstractmethod
    async def _work(self) -> None:
        """Run the workflow and record its end; raise ``Suspended`` if nothing but waits is left."""

    @abstractmethod
    def _wake_ms(self) -> int | None:
        """Return when a resting execution is to be woken, if at any time."""

    @abstractmethod
    async def _receive(self, new: Sequence[Message]) -> None:
        """Act on messages that have come."""

    @abstractmethod
    async def _count_children(self, ended: Collection[str]) -> int:
        """Return how many children run, without those that ``ended``; no call of a child is under way."""

    @abstractmethod
    def _interrupt(self, end: Abandoned) -> None:
        """Stop the workflow's code and its steps; nothing of them is recorded any more."""

    @abstractmethod
    def _close(self) -> None:
        """Stop timers and tasks of a session that is over."""

    @abstractmethod
    def hand_back(self) -> None:
        """Stop soon, so that another worker can resume: at once if nothing is under way, else at the next call."""

    @abstractmethod
    async def _end_failed(self, error: dict[str, Value]) -> None:
        """End the execution as FAILED, regardless of its code and tokens. Its parent and children get a message."""

    # The life cycle.

    async def run(self) -> int | None:
        """Run to the end or until the execution rests; return when a resting execution wants to be woken."""
        tracer = live_tracer()
        if tracer is None:
            return await self._run()
        who = self._identity
        about = {"workflow": who.workflow_id, "workspace": who.workspace_id, "version": who.version}
        with live_span(tracer, f"run {who.workflow_id}", who.execution_id, who.trace_id, **about) as span:
            wake_ms = await self._run()
            status = decode_status(self._writer.state.sections["status"][ONLY])
            span.set_attribute("stepwell.status", str(status))
            if status is Status.FAILED:
                mark_failed(span)
        return wake_ms

    async def _run(self) -> int | None:
        try:
            return await self._run_or_rest()
        except ValidationFailed as error:  # such as a full state: every later session would be refused the same commit
            await self.break_down(error)
            return None
        except StepwellError:
            raise
        except Exception as error:  # noqa: BLE001 - it would be raised again at every lease, so the execution ends with it
            await self.break_down(error)
            return None
        finally:
            self._writer.on_moved = None  # else the two would be a reference cycle
            self._close()

    async def _run_or_rest(self) -> int | None:
        try:
            if not self._is_new:
                await self.look()
            if self._is_paused:
                return await self._leave(None)
            await self._work()
        except Suspended:
            await self._wait_until_idle()  # what ends meanwhile may bring the next wake-up forward
            return await self._leave(self._wake_ms())
        except Abandoned as end:
            return await self._retreat(end.reason)
        except StepwellError as error:
            return await self._retreat(error)
        return None

    def suspect(self, claims: int, *, is_forgiven: bool) -> str | None:
        """Suspect the execution if its last session did not give it back; return why it is to be given up, if it is.

        Args:
            claims: how often it was claimed since its last commit; 0 for a child that was started here under a lease, and so has
                had no session yet.
            is_forgiven: whether this worker ran the last session, and has survived it.
        """
        if not claims:
            return None
        state = self._writer.state
        # A child that its parent's worker created under a lease is RUNNING, too, and has no claims.
        is_running = claims > 0 and state.sections["status"][ONLY] == _RUNNING
        has_marks = CrashSuspicion.has_marks(state)
        if not (is_running or claims > 1 or has_marks) or (is_forgiven and not has_marks):
            return None
        if not is_forgiven and (message := crash_message(state)) is not None:
            return message
        services = self._services
        suspicion = CrashSuspicion(
            self._writer, self.lease.holder, services.clock, services.suspected_steps, is_forgiven=is_forgiven
        )
        self._suspicion = self._attempts.suspicion = suspicion
        self._is_code_marked = claims > 1 or has_marks
        return None

    async def give_up(self, kind: str, message: str) -> None:
        """End the execution as FAILED without running it, since running it brings its workers down."""
        self._log_failure(message)
        self._writer.buffer(*cleared_marks(self._writer.state))
        try:
            await self._end_failed({"kind": kind, "message": message, "code": None})
        except Abandoned as end:
            raise end.reason from None
        finally:
            self._close()

    async def break_down(self, error: BaseException) -> None:
        """End the execution as FAILED because of an error that is neither its code's nor one that Stepwell raises on purpose."""
        self._log_failure(error_text(error) or type(error).__name__, error)
        await self._wait_until_idle()
        self._writer.end = None
        self._writer.drop_buffer()
        await self._end_failed(error_value(error))

    def _log_failure(self, message: object, error: BaseException | None = None) -> None:
        """Log that the execution fails, with the traceback of the error if it was raised here.

        Formatters write the frames of the user's code alone, as the record of the attempt has them; tools that read ``exc_info``
        get all frames.
        """
        if not log.isEnabledFor(logging.ERROR):
            return
        has_traceback = error is not None and error.__traceback__ is not None
        shown = (type(error), error, error.__traceback__) if error is not None and has_traceback else None
        text, which = "execution %r failed: %s", {"execution_id": self.execution_id}
        place = log.findCaller()[:2]
        record = log.makeRecord(log.name, logging.ERROR, *place, text, (self.execution_id, message), shown, extra=which)
        record.exc_text = user_traceback(error) if error is not None and has_traceback else None
        log.handle(record)

    async def look(self) -> None:
        """Read the inbox and act on what has come.

        A paused execution takes no messages: it is handed back as if its worker stopped, and rests until it is resumed.
        """
        found = await self._services.messages(self.execution_id, self._identity.workspace_id)
        self._is_paused = pause_in(found) is not None
        if self._is_paused:
            self.hand_back()
        else:
            await self._receive(self._inbox.receive(found))

    async def _look_for_pause(self) -> None:
        """Begin nothing that follows from a commit which came after a pause, even if no look has told of it yet."""
        found = await self._services.messages(self.execution_id, self._identity.workspace_id)
        if pause_in(found) is not None:
            self._is_paused = True
            self.hand_back()
        else:  # a pause that came after the request to cancel was read is taken with it
            self._inbox.receive([each for each in found if each.kind == PAUSE])

    def _is_busy(self) -> bool:
        return self.is_running_steps or self._writer.is_busy

    def _resuming(self) -> list[Planned]:
        """Return the mutation that makes the execution RUNNING, unless it is."""
        return [] if self._writer.state.sections["status"][ONLY] == _RUNNING else [SetStatus(Status.RUNNING)]

    def _message_to_parent(self, news: Callable[[], Value]) -> dict[str, Planned]:
        """Return the mutation that sends the result of this execution to its parent, by the parent's id; empty without a parent."""
        parent = self._identity.parent_id if self._identity.is_child else None
        if parent is None:
            return {}
        workspace, key = self._identity.workspace_id, fresh_key(self._services.new_id())
        return {parent: WriteState(put(parent, workspace, CHILD, self.execution_id, news(), key))}

    def _message_to_child(self, child_id: str) -> dict[str, Planned]:
        """Return the mutation that asks a child to cancel, by the child's id."""
        return {child_id: WriteState(put(child_id, self._identity.workspace_id, CANCEL, "", None, FROM_PARENT))}

    # Giving the execution back.

    async def _retreat(self, reason: Exception) -> int | None:
        """Give the execution back after its store did not answer: it resumes from its record, and need not wait for its lease."""
        end = self._writer.end
        if not is_away(reason) or (end is not None and not is_away(end.reason)):
            raise reason from None
        log.warning("execution %r stops, and is handed back when its store answers: %s", self.execution_id, reason)
        self._writer.drop_buffer()
        return await self._leave(self._services.clock.now_ms() + AGAIN_MS)

    async def _leave(self, wake_ms: int | None) -> int | None:
        """Give the lease back. Steps that are under way in other branches end first, and are recorded if anything still is."""
        await self._wait_until_idle()
        if self._is_paused:
            await self._want_no_more_places()
        if self._is_handing_back:
            wake_ms = None if self._is_paused else self._services.clock.now_ms()
        await self._writer.leave(self._resting(), Rest(wake_ms), self._retrying)
        return wake_ms

    async def _want_no_more_places(self) -> None:
        """Ask for no more places than the running children take: a paused execution starts none, and others may wait."""
        services, who = self._services, self._identity
        try:
            limit = await services.child_concurrency(who.workspace_id)
            if limit is None:
                return
            found = await services.messages(self.execution_id, who.workspace_id)
            children = await self._count_children({each.name for each in found if each.kind == CHILD})
            needed = PlacesNeeded(max(children - 1, 0), max(children - 1, 0))
            await services.child_places.ask(who, lambda: needed, self._writer.fence, limit - 1)
        except StepwellError as error:
            log.info("the places for children of execution %r, which is paused, are as before: %s", self.execution_id, error)

    def _resting(self) -> list[Planned]:
        """Return the last mutations of a session that gives its execution back; they note that it brought no worker down."""
        return [*cleared_marks(self._writer.state), SetStatus(Status.WAITING)]

    async def _wait_until_idle(self) -> None:
        while self._is_busy() and not self._is_abandoned:  # noqa: ASYNC110 - two counters to watch, on a way that is rarely taken
            await asyncio.sleep(_BUSY_POLL_SECONDS)

    async def _retrying(self, attempt: Callable[[], Awaitable[object]]) -> None:
        await self._services.hand_back_retry.keep_trying(attempt, lambda: self.kept_until)

    def lose(self, error: LeaseLost) -> None:
        """Stop at once: another worker may run this execution now, and nothing more of this session is recorded."""
        self.kept_until = -inf
        self._writer.end = Abandoned(error)
        self._interrupt(self._writer.end)

    async def abandon(self) -> None:
        """Stop now, and hand back without waiting for steps that are under way: they will run again.

        No claim is used up, since the execution rests by a commit. A session that lost its lease does nothing.
        """
        end = self._writer.end
        if end is not None and not is_away(end.reason):
            return
        self._is_abandoned = True
        end = self._writer.end = Abandoned(LeaseLost(f"execution {self.execution_id!r} was handed back"))
        try:
            await self._writer.leave(self._resting(), Rest(self._services.clock.now_ms()), self._retrying)
        finally:
            self._interrupt(end)
