"""Calls of a workflow's code: answered from the record, or executed and recorded."""

from __future__ import annotations

import asyncio
import logging
import random
from itertools import count
from typing import Any, NoReturn, TypeVar

import msgspec

from stepwell.errors import (
    AlreadyExists,
    CommitUnknown,
    Conflict,
    ExecutionTimedOut,
    GovernanceViolated,
    StepFailed,
    StepwellError,
    StoreUnavailable,
)
from stepwell.flow.function import Step, Workflow
from stepwell.flow.retry import Retry
from stepwell.kernel.approvals import counted, verdict
from stepwell.model.draft import Planned
from stepwell.model.execution_state import sha256_hex
from stepwell.model.ids import child_id_of
from stepwell.model.mutation import IncrementStepCount, KeepLog
from stepwell.model.record import StepOutput, decode_step, overran
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, recode, to_value
from stepwell.runtime.child_places import ExtraPlaces, PlacesNeeded
from stepwell.runtime.inbox import CANCEL_STEP, CHILD, SIGNAL, Inbox, Message
from stepwell.runtime.services import Services
from stepwell.runtime.sessions.approval import ApprovalRequest, ApprovalResult
from stepwell.runtime.sessions.call_positions import OutsideSequence
from stepwell.runtime.sessions.call_record import ASKED, CallRecord
from stepwell.runtime.sessions.execution_writer import ExecutionWriter
from stepwell.runtime.sessions.steps_elsewhere import StepsElsewhere
from stepwell.runtime.sessions.unawaited_calls import UnawaitedCalls
from stepwell.runtime.sessions.waits import Waits
from stepwell.runtime.start import check_child_depth
from stepwell.runtime.steps.attempt import AttemptResult, Attempts
from stepwell.runtime.steps.outcome import child_result, child_status, error_names, error_value, step_output, was_given_up
from stepwell.runtime.unwinding import Abandoned

__all__ = ["Calls"]

T = TypeVar("T")
log = logging.getLogger(__name__)
_COUNTED = IncrementStepCount()
_SLOT = "child slot"


class Calls:
    """Executes the calls of one execution: steps with their attempts, sleeps, signals and children."""

    def __init__(
        self,
        services: Services,
        writer: ExecutionWriter,
        record: CallRecord,
        waits: Waits,
        inbox: Inbox,
        attempts: Attempts,
        unawaited: UnawaitedCalls,
        elsewhere: StepsElsewhere | None = None,
        *,
        is_new: bool,
    ) -> None:
        self._services, self._writer, self._record, self._waits = services, writer, record, waits
        self._inbox, self._attempts, self._budget = inbox, attempts, attempts.budget
        self._identity, self._unawaited, self._elsewhere = writer.identity, unawaited, elsewhere
        self._asked: dict[str, tuple[str, int]] = {}
        """Position and attempt of the calls whose steps this session has asked for elsewhere, by key."""
        self._keyed: dict[str, asyncio.Lock] = {}
        """For each key of the user's own, the lock of the call that is under way with it."""
        self._given_up: dict[str, StepOutput] = {}
        """The outcomes of calls that the code cancelled, by their keys: their records land with a later commit."""
        self._under_way: dict[str, asyncio.Task[Any]] = {}
        """The tasks that make or wait for steps, by the steps' keys."""
        self._cancelled: dict[str, Message] = {}
        """Requests to cancel them that their tasks have been told."""
        self._is_new = is_new
        self._child_concurrency: int | None = None
        """How many children may run at once, when a call of a child last asked."""
        self._with_slot: set[str] = set()
        """The calls that have a slot for their child, and no token yet."""
        self._asking: set[str] = set()
        """The calls that ask for an extra place in the tree of the root."""
        self.places: ExtraPlaces | None = None
        """The extra places for children, once a call of a child has met a limit."""

    async def step(
        self, step: Step[..., Any], position: str, key: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Return the output of a step's first attempt that succeeds. Takes the code off its branch by itself."""
        self._unawaited.begun(position)
        with OutsideSequence():
            recorded = self._record.answer(step.name, position, key)
            if recorded is not None:
                if was_given_up(recorded):
                    await self._waits.stay()
                return step.decode(step_output(recorded, step.name, key))
            # A call that another worker began counts as begun: it ends before the code learns of a cancellation.
            has_begun = self._elsewhere is not None and not self._waits.is_undoing and self._record.is_asked(key)
            if not has_begun:
                self._waits.deliver_cancel(position)
            if self._waits.is_holding:
                await self._hold()
            try:
                self._budget.begin(step, key, is_free=self._waits.is_shielded or has_begun)
            except GovernanceViolated as error:
                await self._refuse(step, position, key, error)
                raise
            try:
                return step.decode(await self._cancellable(step, position, key, arguments, keywords))
            except GovernanceViolated as error:  # between two attempts
                await self._refuse(step, position, key, error)
                raise
            finally:
                self._budget.end()

    async def keyed_step(
        self, step: Step[..., Any], position: str, key: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Return the output of the first call with a key. A repeated call has a record of its own, for its position in the code."""
        self._unawaited.begun(position)
        data = step.encode_call(arguments, keywords, self._services.limits)
        digest = sha256_hex(recode(step.name) + data)
        with OutsideSequence():
            async with self._keyed.setdefault(key, asyncio.Lock()):  # of two at the same time the second waits for the first
                first = self._record.outcome(key) or self._given_up.get(key)
                if first is None or first.node_id == position:
                    self._record.digests[key] = digest
                    return await self.step(step, position, key, arguments, keywords)
                if first.digest != digest:
                    raise Conflict(
                        f"key {key.removeprefix('key:')!r} stands for another call of {first.node_name!r} in this execution; give "
                        f"this call of {step.name!r} another key, or the same arguments"
                    )
                if was_given_up(first):
                    text = f"the call with key {key.removeprefix('key:')!r} was cancelled"
                    raise StepFailed(step.name, "StepCancelled", text, key, "control_flow")
                output, again = step_output(first, step.name, key), f"again:{position}"
                if self._record.answer(step.name, position, again) is None:
                    self._waits.deliver_cancel(position)
                    record = self._record.put(again, position, StepStatus.COMPLETED, output, 0, step.name)
                    await self._writer.commit([record])
                return step.decode(output)

    def cancel_steps(self) -> None:
        """Cancel the steps under way that the inbox has requests for; one that has not begun is cancelled when it does."""
        for key, task in list(self._under_way.items()):
            message = self._cancel_of(key)
            if message is not None and key not in self._cancelled:
                self._cancelled[key] = message
                task.cancel()

    def _cancel_of(self, key: str) -> Message | None:
        waiting = self._inbox.waiting.values()
        return next((each for each in waiting if (each.kind, each.name) == (CANCEL_STEP, key)), None)

    async def _cancellable(
        self, step: Step[..., Any], position: str, key: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> bytes:
        """Run a step unless a request to cancel it has come, or comes meanwhile. Compensation is seen through."""
        if self._inbox.waiting and not self._waits.is_shielded and (message := self._cancel_of(key)) is not None:
            await self._record_cancelled(step, position, key, message)
        try:
            return await self._tried(step, position, key, arguments, keywords)
        except asyncio.CancelledError:
            message = self._cancelled.get(key)
            task = asyncio.current_task()
            if message is None or task is None or not self._is_going_on():
                raise
            task.uncancel()
        await self._record_cancelled(step, position, key, message)
        raise AssertionError  # it has raised

    def _begin_cancellable(self, key: str) -> None:
        """Note that this task may be cancelled with the step; it must not be while it commits what came of it."""
        task = asyncio.current_task()
        if task is not None and not self._waits.is_shielded:
            self._under_way[key] = task

    async def _record_cancelled(self, step: Step[..., Any], position: str, key: str, message: Message) -> NoReturn:
        """Record a step as cancelled in the commit that takes the request, and raise that to the code."""
        kind, text = "StepCancelled", f"step {key!r} was cancelled"
        told: dict[str, Value] = {"kind": kind, "message": text, "code": None, "class": "control_flow", "is_retryable": False}
        failure = recode({"error": told, "attempts": self._record.token(key).get("attempt", 0)})
        record = self._record.put(key, position, StepStatus.CANCELLED, failure, 0, step.name)
        self._inbox.forget(message.key)
        await self._writer.commit([*self._record.token_drop(key), record, *self._inbox.taking(message)])
        raise StepFailed(step.name, kind, text, key, "control_flow")

    async def _refuse(self, step: Step[..., Any], position: str, key: str, error: GovernanceViolated) -> None:
        """Record that the budget refused a step. Compensation is always allowed, since the step that it undoes has happened."""
        failure = recode({"error": error_value(error), "attempts": self._record.token(key).get("attempt", 0)})
        record = self._record.put(key, position, StepStatus.FAILED, failure, 0, step.name)
        await self._writer.commit([*self._record.token_drop(key), record])

    async def _tried(
        self, step: Step[..., Any], position: str, key: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> bytes:
        token = self._record.token(key)
        number, waits_until = token.get("attempt", 0), token.get("due_ms")
        # A call keeps the policy of its first failure; a changed policy is for later calls.
        policy = msgspec.convert(token["policy"], Retry) if "policy" in token else step.retry
        has_begun = self._elsewhere is not None and self._record.is_asked(key)
        # Before the step can change it. Of a run with secrets nothing is recorded: one may have another name as an argument.
        given = None if self._identity.secrets else step.shown_input(arguments, keywords, self._services.limits)
        if waits_until is not None:
            await self._wait(key, position, "retry", step.name, waits_until, step.name)
        while True:
            if number and not has_begun:
                self._budget.again(key, is_free=self._waits.is_shielded)
            has_begun = False
            number += 1
            self._waits.making.add(position)
            self._begin_cancellable(key)
            try:
                made = None
                if self._elsewhere is not None:
                    made = await self._made_elsewhere(self._elsewhere, step, position, key, number, arguments, keywords)
                if made is None:
                    made = await self._attempts.make(
                        step, key, number, arguments, keywords, self._seconds_left(), summary=self._record.summary_of(key)
                    )
            except asyncio.CancelledError:
                self._give_up(key, position, step.name)
                raise
            finally:
                self._waits.making.discard(position)
                self._under_way.pop(key, None)
            if made.error is not None:
                self._check_time(position, made.error)
                await self._failed_attempt(step, position, key, number, policy, made.error, made, given)
                continue
            ended = made.took_ms, step.name, made.ended_at, given
            done = self._record.put(key, position, StepStatus.COMPLETED, made.output, *ended)
            try:
                await self._writer.commit([*self._record.token_drop(key), done, _COUNTED, *made.landing, *made.spending])
            except StepwellError as error:
                # The store refused its output or its writes. Nothing has landed, so this attempt failed like any other.
                await self._failed_attempt(step, position, key, number, policy, error, made, given)
                continue
            return made.output

    async def _made_elsewhere(
        self,
        elsewhere: StepsElsewhere,
        step: Step[..., Any],
        position: str,
        key: str,
        number: int,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> AttemptResult | None:
        """Return the attempt that was made elsewhere. If there is none, ask for it, and rest; None to make it here."""
        made = elsewhere.answer(key, number, self._budget)
        if made is not None:
            return made
        has_limit = not (self._waits.has_told or self._waits.is_shielded)
        summary = self._record.summary_of(key)
        if not elsewhere.ask(step, key, number, arguments, keywords, has_limit=has_limit, summary=summary):
            return None
        self._asked[key] = position, number
        try:
            await self._waits.away(position)
        except asyncio.CancelledError:
            del self._asked[key]
            raise

    def asked_tokens(self) -> list[Planned]:
        """Return the mutations by which the execution remembers the steps that it has asked for elsewhere."""
        found: list[Planned] = []
        for key, (position, number) in self._asked.items():
            before = self._record.token(key)
            if not (self._record.is_asked(key) and before.get("attempt") == number - 1):
                kept = {name: before[name] for name in ("error", "took_ms", "policy") if name in before}
                value = {**kept, "position": position, "attempt": number - 1, "due_ms": None}
                found.append(self._record.token_put(key, ASKED, value))
        return found

    async def _failed_attempt(
        self,
        step: Step[..., Any],
        position: str,
        key: str,
        number: int,
        policy: Retry,
        error: Exception,
        made: AttemptResult,
        given: bytes | None,
    ) -> None:
        """Plan the next attempt and wait for it; if there is none, record the failure and raise it."""
        told = error_value(error)
        if not told["is_retryable"] or not policy.allows(number, error_names(error)):
            failure = recode({"error": told, "attempts": number})
            ended = made.took_ms, step.name, made.ended_at, given
            record = self._record.put(key, position, StepStatus.FAILED, failure, *ended)
            await self._writer.commit([*self._record.token_drop(key), record, *made.spending])
            raise StepFailed(
                step.name, told["kind"], told["message"], key, told["class"], is_retryable=told["is_retryable"]
            ) from error
        log.info("step %r of execution %r failed (attempt %d): %s", key, self._identity.execution_id, number, error)
        asked = told.get("retry_after_ms")
        wait_ms = round(policy.delay(number, random.random()) * 1000) if asked is None else asked  # noqa: S311
        due = self._services.clock.now_ms() + wait_ms
        token: dict[str, Value] = {"position": position, "attempt": number, "error": told, "took_ms": made.took_ms}
        token |= {"due_ms": due, "policy": to_value(policy)}
        spending = [each.if_retried() if isinstance(each, KeepLog) else each for each in made.spending]
        await self._writer.commit([self._record.token_put(key, "retry", token), *spending])
        await self._wait(key, position, "retry", step.name, due, step.name)

    async def _wait(self, key: str, position: str, kind: str, name: str, due: int | None, label: str) -> Message | None:
        if kind == "retry":
            self._begin_cancellable(key)
            self.cancel_steps()  # a request may have come while the failure was committed
        try:
            return await self._waits.wait(key, position, kind, name, due)
        except asyncio.CancelledError:
            self._give_up(key, position, label)
            raise
        finally:
            self._under_way.pop(key, None)

    async def _hold(self) -> None:
        """Wait to be unwound while the worker stops: nothing new begins. Compensation is finished."""
        if not self._waits.is_shielded:
            await self._waits.hold()

    def _give_up(self, key: str, position: str, name: str) -> None:
        """Record that the code cancelled a call, as a task group does when another call fails.

        In the next run the failure is there at once, and this call must not begin before it is cancelled again.
        """
        if self._is_going_on() and key not in self._cancelled:
            record = self._record.put(key, position, StepStatus.CANCELLED, b"null", 0, name)
            self._given_up[key] = decode_step(bytes(record.step))
            self._writer.buffer(*self._record.token_drop(key), record)

    def _is_going_on(self) -> bool:
        """Return whether the code cancelled the call, rather than the end of the session."""
        return self._writer.end is None and not self._waits.is_suspended

    def _check_time(self, position: str, error: Exception) -> None:
        """Raise the execution's timeout if its time is over, so that the code does not blame a slow step."""
        left = self._seconds_left()
        if "TimeoutError" in error_names(error) and left is not None and left <= 0:
            self._waits.interrupt(ExecutionTimedOut(overran(self._identity)))
            self._waits.deliver_cancel(position)

    def _seconds_left(self) -> float | None:
        """Return the seconds left for the execution, which limit the present attempt."""
        deadline = self._identity.deadline_ms
        if deadline is None or self._waits.has_told or self._waits.is_shielded:
            return None
        return max(deadline - self._services.clock.now_ms(), 0) / 1000

    async def sleep(self, seconds: float, position: str, key: str) -> None:
        """Sleep until the recorded time."""
        record = self._record
        recorded = record.answer("sleep", position, key)
        if recorded is not None:
            if was_given_up(recorded):
                await self._waits.stay()
            return
        self._waits.deliver_cancel(position)
        if self._waits.is_holding:
            await self._hold()
        token = record.token(key)
        due = token["due_ms"] if token else self._services.clock.now_ms() + round(seconds * 1000)
        if not token:
            await self._writer.commit([record.token_put(key, "sleep", {"position": position, "due_ms": due})])
        await self._wait(key, position, "sleep", "", due, "sleep")
        await self._writer.commit([*record.token_drop(key), record.put(key, position, StepStatus.COMPLETED, b"null", 0, "sleep")])

    async def signal(self, name: str, seconds: float | None, position: str, key: str) -> Value:
        """Wait for a signal, and return its value. Raise ``TimeoutError``."""
        label, record = f"signal:{name}", self._record
        recorded = record.answer(label, position, key)
        if recorded is None:
            self._waits.deliver_cancel(position)
            if self._waits.is_holding:
                await self._hold()
            token = record.token(key)
            due = token["due_ms"] if token else self._due_ms(seconds)
            if not token:
                waiting = {"position": position, "name": name, "due_ms": due}
                await self._writer.commit([record.token_put(key, "signal", waiting)])
            message = await self._wait(key, position, SIGNAL, name, due, label)
            output = {"timed_out": True} if message is None else {"value": message.value}
            batch = [*record.token_drop(key), record.put(key, position, StepStatus.COMPLETED, recode(output), 0, label)]
            await self._writer.commit([*batch, *self._inbox.taking(message)])
        elif was_given_up(recorded):
            return await self._waits.stay()
        else:
            output = recorded.output
        if "timed_out" in output:
            raise TimeoutError(f"signal {name!r} did not come within {seconds or 0:g} s, the timeout of wait_signal")
        return output["value"]

    async def approval(self, asked: ApprovalRequest, position: str, key: str) -> ApprovalResult:
        """Ask for an approval, and return how it was decided. Raise ``TimeoutError``.

        Each answer is recorded in the commit that takes it from the inbox. The signal that answers has the call's key for its name.
        """
        record, label = self._record, f"approval:{asked.name}"
        recorded = record.answer(label, position, key)
        if recorded is None:
            self._waits.deliver_cancel(position)
            if self._waits.is_holding:
                await self._hold()
            output = await self._decided(asked, position, key, label)
        elif was_given_up(recorded):
            return await self._waits.stay()
        else:
            output = recorded.output
        if "timed_out" in output:
            raise TimeoutError(f"approval {key!r} was not answered within {asked.seconds or 0:g} s, the timeout of wait_approval")
        return ApprovalResult(output["is_approved"], tuple(output["decisions"]))

    async def _decided(self, asked: ApprovalRequest, position: str, key: str, label: str) -> dict[str, Value]:
        """Collect answers until the approval is decided or its time is over; record and return the output."""
        record = self._record
        token: dict[str, Any] = record.token(key)
        if not token:
            token = {"position": position, "title": asked.title, "approvers": list(asked.approvers), "decisions": []}
            token |= {"due_ms": self._due_ms(asked.seconds)}
            if asked.details is not None:
                token["details"] = to_value(asked.details, what=f"the details of approval {key!r}")
            await self._writer.commit([record.token_put(key, "approval", token)])
        while True:
            message = await self._wait(key, position, SIGNAL, key, token["due_ms"], label)
            output: dict[str, Value] | None = None
            if message is not None:
                made = counted(token["decisions"], token["approvers"], message.value)
                token |= {} if made is None else {"decisions": made}
                is_approved = verdict(token["decisions"], token["approvers"], asked.needed)
                if is_approved is not None:
                    output = {"is_approved": is_approved, "decisions": token["decisions"]}
            elif asked.escalate_to and not token.get("is_escalated"):
                token |= {"approvers": list(asked.escalate_to), "is_escalated": True, "due_ms": self._due_ms(asked.seconds)}
            else:
                output = {"timed_out": True}
            if output is not None:
                done = record.put(key, position, StepStatus.COMPLETED, recode(output), 0, label)
                await self._writer.commit([*record.token_drop(key), done, *self._inbox.taking(message)])
                return output
            await self._writer.commit([record.token_put(key, "approval", token), *self._inbox.taking(message)])

    def _due_ms(self, seconds: float | None) -> int | None:
        return None if seconds is None else self._services.clock.now_ms() + round(seconds * 1000)

    async def child(self, workflow: Workflow[..., Any], value: Value, position: str, key: str) -> Any:
        """Run a child execution, and return the result that its last message has."""
        record = self._record
        recorded = record.answer(workflow.name, position, key)
        if recorded is not None:
            child_id = recorded.output.get("child_id") or self._child_id(position)
            return child_result(workflow, child_id, recorded.output, key)
        self._waits.deliver_cancel(position)
        if self._waits.is_holding:
            await self._hold()
        if record.token(key).get("is_given_up"):
            await self._waits.stay()
        await self._take_child_slot(position, key)
        try:
            child_id, news = await self._begin_child(workflow, value, position, key)
        finally:
            self._with_slot.discard(key)  # from here on the child's token counts
            self.give_child_slots()
        message = None
        if news is None:
            try:
                message = await self._waits.wait(key, position, CHILD, child_id, None)
            except asyncio.CancelledError:
                if self._is_going_on():  # the token stays, since the child does
                    self._writer.buffer(record.token_put(key, "child", {**record.token(key), "is_given_up": True}))
                raise
            news = None if message is None else message.value
        # The child's id is recorded too, if another execution had the usual id.
        told = news if news is None or child_id == self._child_id(position) else {**news, "child_id": child_id}
        done = record.put(key, position, child_status(news), recode(told), 0, workflow.name)
        await self._writer.commit([*record.token_drop(key), done, *self._inbox.taking(message)])
        self.give_child_slots()
        return child_result(workflow, child_id, news, key)

    async def _take_child_slot(self, position: str, key: str) -> None:
        """Wait for a place in the tree of the root, unless the call has begun its child before.

        The first child that runs needs no place of its own, and so no tree of children can wait for itself.
        """
        is_begun = self._is_own(self._record.token(key))
        if is_begun and self.places is not None:
            return
        self._waits.making.add(position)
        try:
            self._child_concurrency = limit = await self._services.child_concurrency(self._identity.workspace_id)
            if limit is None:
                return
            places = self._extra_places()
            if is_begun:
                places.settle_later(limit)
                return
            if self._free_child_slots() <= 0:
                self._asking.add(key)
                await places.settle(limit)
        except StoreUnavailable as error:
            self._writer.end = Abandoned(error)
            raise self._writer.end from error
        finally:
            self._asking.discard(key)
            self._waits.making.discard(position)
        if self._free_child_slots() > 0:
            self._with_slot.add(key)
            return
        try:
            await self._waits.wait(key, position, _SLOT, "", None)
        except BaseException:
            self._with_slot.discard(key)
            self.give_child_slots()
            raise

    def _extra_places(self) -> ExtraPlaces:
        if self.places is None:
            self.places = ExtraPlaces(
                self._services.child_places,
                self._identity,
                self._writer.fence,
                self._places_needed,
                self.give_child_slots,
                self._waits.beside,
                is_new=self._is_new,
            )
        return self.places

    def give_child_slots(self) -> None:
        """Let calls that wait for a slot start their children, the oldest call first; give back places that none needs."""
        if self.places is None or self._waits.is_suspended:
            return
        for key in self._waits.waiting(_SLOT)[: max(self._free_child_slots(), 0)]:
            self._with_slot.add(key)
            self._waits.wake(key)
        self.places.settle_later(self._child_concurrency)

    def look_for_places(self) -> None:
        """Look whether others have given a place to calls that wait, after a nudge."""
        if self.places is not None and self.waits_for_child_slot:
            self.places.settle_later(self._child_concurrency, is_nudged=True)

    @property
    def waits_for_child_slot(self) -> bool:
        """True if a call waits for another child to end before it starts its own."""
        return bool(self._waits.waiting(_SLOT))

    @property
    def can_start_child(self) -> bool:
        """True if a call waits for a slot that is free by now."""
        return self.waits_for_child_slot and self._free_child_slots() > 0

    def _free_child_slots(self) -> int:
        """Return how many more children may be started: the first one, and one for each extra place."""
        held = 0 if self.places is None else self.places.held
        most = 1 + held if self._child_concurrency is None else min(1 + held, self._child_concurrency)
        return most - len(self._children())

    def _children(self) -> set[str]:
        """Return the calls whose children run, or are about to be started. A child has ended when its message is in the inbox."""
        ended = {message.name for message in self._inbox.waiting.values() if message.kind == CHILD}
        own = {key: token for key, token in self._record.tokens("child").items() if self._is_own(token)}
        running = {key for key, token in own.items() if token["execution_id"] not in ended}
        return running | (self._with_slot - own.keys())

    def _places_needed(self) -> PlacesNeeded:
        children = self._children()
        waiting = (self._asking | set(self._waits.waiting(_SLOT))) - children
        return PlacesNeeded(max(len(children) + len(waiting) - 1, 0), max(len(children) - 1, 0))

    def _is_own(self, token: dict[str, Value]) -> bool:
        """Return whether the token of a call is that of a child of this execution; a fork has its original's tokens."""
        return token.get("parent_id") == self._identity.execution_id

    async def _begin_child(self, workflow: Workflow[..., Any], value: Value, position: str, key: str) -> tuple[str, Value]:
        """Start a child under a free id; return the id, and the child's message if it has ended before."""
        record, parent_id, before = self._record, self._identity.execution_id, self._record.token(key)
        known = before.get("execution_id") if before.get("parent_id") == parent_id else None
        check_child_depth(self._identity, self._services.limits)  # before a token names a child that can never exist
        for taken in count():
            child_id = self._child_id(position, taken)
            if known not in (None, child_id):
                continue
            token: dict[str, Value] = {"position": position, "execution_id": child_id, "parent_id": parent_id, "due_ms": None}
            if self._waits.has_told:
                token["is_cleanup"] = True
            if known is None:
                await self._writer.commit([record.token_put(key, "child", token)])
            self._waits.making.add(position)
            try:
                news = await self._services.start_child(workflow, value, child_id, self._identity)
                if known is None and news is not None and child_status(news) != StepStatus.COMPLETED:
                    continue  # it ended with this execution, which was retried then, and cannot go on
                return child_id, news
            except AlreadyExists:
                log.info("execution %r is no child of %r; trying another id", child_id, self._identity.execution_id)
            except (CommitUnknown, StoreUnavailable) as error:
                # As with a commit, the code cannot handle this; a child that was started before counts as started.
                self._writer.end = Abandoned(error)
                raise self._writer.end from error
            finally:
                self._waits.making.discard(position)
        raise AssertionError  # itertools.count does not end

    def _child_id(self, position: str, taken: int = 0) -> str:
        """Return the id of a call's child. Positions hold only digits and slashes, so no two calls share a child id."""
        call = position + (f"~{taken}" if taken else "")
        return child_id_of(self._identity.execution_id, call, self._services.limits.key_bytes)
