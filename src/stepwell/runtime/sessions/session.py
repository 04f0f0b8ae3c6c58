"""A session: one execution being run here, from its claim to its rest or end.

What is common to all kinds of workflows: it begins, its code or definition is worked through, and it ends or rests. Calls that are
recorded are answered from the record; waits are tokens in the execution's state; when nothing but waits is left, the session ends
and the execution rests in the store, until its time comes or it is nudged.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property
from math import inf

import msgspec

from stepwell.errors import ExecutionCancelled, ExecutionFailed, ExecutionTimedOut, LeaseLost, StepwellError, ValidationFailed
from stepwell.model.commit import Lease, Rest
from stepwell.model.draft import Planned, quoted
from stepwell.model.execution_state import ONLY
from stepwell.model.mutation import RemoveToken, SetResult, SetStatus, WriteState
from stepwell.model.status import Status
from stepwell.model.value import Value, decode, recode
from stepwell.runtime.inbox import CANCEL, CHILD, FROM_PARENT, fresh_key, put
from stepwell.runtime.services import WorkerServices
from stepwell.runtime.sessions.calls import Calls
from stepwell.runtime.sessions.execution_writer import Journal, Recorder
from stepwell.runtime.sessions.waits import Abandoned, Suspended, Undoing, Waits
from stepwell.runtime.shutdown import AGAIN_MS, is_away
from stepwell.runtime.steps.outcome import error_value

__all__ = ["Session"]

log = logging.getLogger(__name__)

_END = Rest(None, is_final=True)
_RUNNING = quoted(Status.RUNNING)


class Session(ABC):
    """Runs one execution until it ends or rests."""

    def __init__(self, around: WorkerServices, recorder: Recorder, lease: Lease, *, is_new: bool, may_linger: bool) -> None:
        self._around, self.lease, self._is_new = around, lease, is_new
        self.kept_until = inf
        """Until when the lease is held for sure, by ``time.monotonic``; its worker keeps it up to date."""
        self._journal = Journal(recorder, around.clock, around.limits)
        self._identity = self._journal.identity
        self._waits = Waits(around.clock, may_linger=may_linger, is_busy=self._is_busy)
        self._is_handing_back = self._is_abandoned = False
        self._deadline: asyncio.TimerHandle | None = None

    @cached_property
    def _calls(self) -> Calls:
        return Calls(self._around, self._journal, self._waits)

    @property
    def execution_id(self) -> str:
        """The execution's id."""
        return self._identity.execution_id

    @property
    def is_made(self) -> bool:
        """Whether the execution exists."""
        return self._journal.is_made

    @property
    def is_making(self) -> bool:
        """Whether a step is being made."""
        return bool(self._waits.making)

    @abstractmethod
    def work(self) -> Awaitable[bytes]:
        """Come to the execution's output, as canonical bytes; whatever else is raised is how it fails."""

    @abstractmethod
    def interrupt(self) -> None:
        """Stop what ``work`` is doing; nothing of it is taken any more."""

    async def undo(self, status: Status, failure: dict[str, Value]) -> tuple[Status, dict[str, Value]]:
        """Compensate for what was done, before the execution ends otherwise than well; its status and result."""
        return status, {"error": failure}

    async def run(self) -> int | None:
        """Run to the end or until it rests; the time at which a resting execution wants to be woken, if any."""
        try:
            await self._begin()
            await self._end_of_work()
        except Suspended:
            return await self._rest()
        except Abandoned as end:
            return await self._retreat(end.reason)
        except StepwellError as error:
            return await self._retreat(error)
        finally:
            self._waits.stop()
            if self._deadline is not None:
                self._deadline.cancel()
        return None

    async def give_up(self, kind: str, message: str) -> None:
        """End as FAILED without doing anything, since what it does brings its workers down. Parent and children are told."""
        try:
            await self._finish(Status.FAILED, recode({"error": {"kind": kind, "message": message, "code": None}}))
        except Abandoned as end:
            raise end.reason from None
        finally:
            self._waits.stop()

    async def _begin(self) -> None:
        if self._journal.state.sections["status"][ONLY] != _RUNNING:
            await self._journal.commit([SetStatus(Status.RUNNING)])
        if not self._is_new:
            await self.look()
        if self._identity.deadline_ms is not None:
            left = (self._identity.deadline_ms - self._around.clock.now_ms()) / 1000
            self._deadline = asyncio.get_running_loop().call_later(max(left, 0), self._time_out)
            if left <= 0:
                self._time_out()

    def _time_out(self) -> None:
        self._waits.interrupt(ExecutionTimedOut())

    async def _end_of_work(self) -> None:
        """Work, and record how it ended: the execution's end, unless it rests."""
        try:
            output = await self.work()
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
            else:
                await self._complete(output)

    async def _complete(self, output: bytes) -> None:
        try:
            await self._finish(Status.COMPLETED, b'{"output":%b}' % output)
        except ValidationFailed as error:  # the result, or a variable, is over a limit of the execution as a whole
            await self._fail(error)

    async def _fail(self, error: BaseException) -> None:
        """End as FAILED, or as CANCELLED if that was asked for; what was done is compensated first."""
        if self._journal.end is not None:
            raise self._journal.end
        if self._waits.cancel is None:
            status, result = await self.undo(Status.FAILED, error_value(error))
        else:
            status, result = await self.undo(Status.CANCELLED, error_value(ExecutionCancelled()))
        try:
            await self._finish(status, recode(result))
        except ValidationFailed:
            self._journal.drop()
            await self._finish(status, recode(result))

    async def _finish(self, status: Status, result: bytes) -> None:
        """Record how it ended, with its canonical result, tell parent and children, and give the lease back: one commit."""
        batch: list[Planned] = []
        children: tuple[str, ...] = ()
        if tokens := self._journal.state.sections["tokens"]:
            farewell, children = self._farewell()
            batch += [RemoveToken(token_id) for token_id in tokens]
            batch += [each for each in farewell if isinstance(each, WriteState)]
        batch += self._journal.taking(self._waits.cancel)
        batch.append(SetResult(msgspec.Raw(result)))
        parent = self._identity.parent_id if self._identity.is_child else None
        if parent is not None:
            news = {"status": str(status), "result": decode(result)}
            letter = put(parent, self._identity.workspace_id, CHILD, self.execution_id, news, fresh_key(self._around.new_id()))
            batch.append(WriteState(letter))
        batch.append(SetStatus(status))
        nudges = (*children, *(() if parent is None else (parent,)))
        await self._journal.commit(batch, rest=_END, nudges=nudges)

    def _farewell(self, *, is_end: bool = True) -> tuple[list[Planned], tuple[str, ...]]:
        """What tells the children that nobody waits for them any more: one letter each, and a mark that it was sent."""
        batch: list[Planned] = []
        children: list[str] = []
        for key, token in self._journal.tokens("child").items():
            # A fork has its original's tokens, whose children are not its own; and what cleans up goes on until the end.
            is_own = token.get("parent_id") == self.execution_id
            if is_own and not token.get("is_told") and (is_end or not token.get("is_cleanup")):
                child_id = token["execution_id"]
                letter = put(child_id, self._identity.workspace_id, CANCEL, "", None, FROM_PARENT)
                batch += [WriteState(letter), self._journal.token_put(key, "child", {**token, "is_told": True})]
                children.append(child_id)
        return batch, tuple(children)

    async def _rest(self) -> int | None:
        """Give the execution back to the store, to be woken when a wait may be over."""
        has_no_deadline = self._waits.has_told or self._waits.is_shielded
        times = (self._waits.soonest_ms, None if has_no_deadline else self._identity.deadline_ms)
        return await self._leave(min((each for each in times if each is not None), default=None))

    async def _retreat(self, reason: Exception) -> int | None:
        """Give the execution back after its store did not answer: it goes on from its record, and need not wait for its lease."""
        if not is_away(reason):
            raise reason from None
        log.warning("execution %r stops, and is handed back when its store answers: %s", self.execution_id, reason)
        self._journal.drop()
        return await self._leave(self._around.clock.now_ms() + AGAIN_MS)

    async def _leave(self, wake: int | None) -> int | None:
        """Hand back. Steps that are still under way in other branches end first, and are recorded if anything still is."""
        while self._is_busy() and not self._is_abandoned:  # noqa: ASYNC110 - two counters to watch, on a way that is rarely taken
            await asyncio.sleep(0.01)
        if self._is_handing_back:
            wake = self._around.clock.now_ms()
        await self._journal.leave([SetStatus(Status.WAITING)], Rest(wake), self._trying)
        return wake

    async def _trying(self, attempt: Callable[[], Awaitable[None]]) -> None:
        await self._around.patience.keep_trying(attempt, lambda: self.kept_until)

    def lose(self, error: LeaseLost) -> None:
        """Stop at once: somebody else may run this execution now, and nothing more of this session is taken."""
        self.kept_until = -inf
        self._journal.end = Abandoned(error)
        self._waits.fail(self._journal.end)
        self.interrupt()

    def hand_back(self) -> None:
        """Stop soon, so that another worker can go on: at once if nothing is under way, else at the next call."""
        self._is_handing_back = self._waits.is_holding = True
        if not self._is_busy():
            self._waits.suspend()

    async def abandon(self) -> None:
        """Stop now, and hand back without waiting for steps that are under way: they will be made again. No claim is used up, since
        the execution rests by a commit. One that is being handed back already is, and one that is lost is left alone."""
        if self._journal.end is not None and not is_away(self._journal.end.reason):
            return
        self._is_abandoned = True
        self._journal.end = Abandoned(LeaseLost(f"execution {self.execution_id!r} was handed back"))
        try:
            await self._journal.leave([SetStatus(Status.WAITING)], Rest(self._around.clock.now_ms()), self._trying)
        finally:
            self._waits.fail(self._journal.end)
            self.interrupt()

    async def look(self) -> None:
        """Look into the inbox and hand out what came. That it is cancelled is passed on to children at once."""
        self._waits.hand_out(await self._around.letters(self.execution_id, self._identity.workspace_id))
        if self._waits.cancel is not None:
            batch, children = self._farewell(is_end=False)
            if children:
                # If this session is at its end or its commits are not taken, its end or the next session tells them.
                with suppress(Abandoned, ValidationFailed):
                    await self._journal.commit(batch, nudges=children)

    def _is_busy(self) -> bool:
        return bool(self._waits.making) or self._journal.is_busy
