"""The session of a declared workflow: it drives the kernel for one execution, from its claim to its rest or end.

Events that have gathered are given to the kernel one after another, what they come to is one commit, and only then is carried out
what the kernel asks for. Nothing is replayed: a session begins where the tokens stand. When nothing is under way and only times and
messages are waited for, it rests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from math import inf

import msgspec

from stepwell.errors import StepwellError
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.kernel.interpreter import Interpreter
from stepwell.kernel.protocol import (
    Abandon,
    AttemptFailed,
    Began,
    CancelChild,
    CancelRequested,
    ChildEnded,
    Effect,
    End,
    Event,
    Note,
    RunStep,
    SignalArrived,
    StartChild,
    StepCompleted,
    TimePassed,
    Trouble,
    trouble_of,
)
from stepwell.model.commit import Lease
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY
from stepwell.model.mutation import ExitScope, RemoveToken, SetResult, SetStatus
from stepwell.model.record import decode_token
from stepwell.model.status import Status
from stepwell.model.value import decode, recode
from stepwell.runtime import inbox
from stepwell.runtime.inbox import Message
from stepwell.runtime.services import Services
from stepwell.runtime.sessions.call_positions import branch
from stepwell.runtime.sessions.execution_writer import ExecutionWriter
from stepwell.runtime.sessions.session import FINAL_REST, Session
from stepwell.runtime.sessions.waits import LINGER_SECONDS
from stepwell.runtime.start import news_of
from stepwell.runtime.steps.kernel_effects import EffectDone, KernelEffects
from stepwell.runtime.steps.scoped_state import lay_over
from stepwell.runtime.unwinding import Abandoned, Suspended

__all__ = ["DeclaredSession"]

log = logging.getLogger(__name__)

_LONGEST_SLEEP = 1.0
"""Times are looked at again after so long, since the clock may be moved from outside."""
_LOOK_AGAIN_SECONDS = 5.0
_LOOK_AGAIN_AT_MOST = 300.0
_OFTEN = 10
"""How long a run rests that needs a step which this worker does not know: longer each time, until it is the longest."""


class DeclaredSession(Session):
    """Runs one execution of a declared workflow until it ends or rests."""

    def __init__(
        self, services: Services, workflow: DeclaredWorkflow, writer: ExecutionWriter, lease: Lease, *, is_new: bool
    ) -> None:
        super().__init__(services, writer, lease, is_new=is_new)
        self._plan = services.workflows.plan(workflow)
        self._events: list[EffectDone] = []
        self._wakeup = asyncio.Event()
        self._is_over = False
        self._effects = KernelEffects(services, self._identity, writer, self._attempts, self._add_event)
        self._kernel = self._fresh()

    @property
    def is_running_steps(self) -> bool:
        """Whether steps or starts of children are under way."""
        return self._effects.is_busy

    def _fresh(self) -> Interpreter:
        state, who = self._writer.state, self._identity
        self._state = state
        return Interpreter(self._plan, state.sections, who.execution_id, self._services.limits, who.deadline_ms)

    # From the claim to the rest or end.

    async def _work(self) -> None:
        branch.set(None)  # a workflow's code may have started this session's task
        self._events.append(EffectDone(Began()))
        if not self._is_new:
            await self.look()
        await self._turn(self._resuming())
        while not self._is_over:
            if await self._is_idle():
                raise Suspended
            await self._turn()

    async def _is_idle(self) -> bool:
        """Wait for an event; True if none will come for a while, or if this worker is to stop."""
        if self._writer.end is not None:
            raise self._writer.end
        if self._events:
            return False
        left = self._seconds_left()
        is_busy = self._effects.is_busy
        if left is not None and left <= 0:
            self._events.append(EffectDone(TimePassed()))
            return False
        if not is_busy and self._is_handing_back:
            return True
        is_soon = left is not None and left <= LINGER_SECONDS
        longest = _LONGEST_SLEEP if is_busy or is_soon else LINGER_SECONDS
        try:
            async with asyncio.timeout(min(longest, inf if left is None else left)):
                await self._wakeup.wait()
        except TimeoutError:
            return not is_busy and not is_soon and not self._events
        return False

    def _seconds_left(self) -> float | None:
        soonest = self._kernel.soonest_ms
        return None if soonest is None else (soonest - self._services.clock.now_ms()) / 1000

    def _wake_ms(self) -> int | None:
        times = (self._kernel.soonest_ms, self._look_again_ms(self._services.clock.now_ms()))
        return min((each for each in times if each is not None), default=None)

    def _look_again_ms(self, now: int) -> int | None:
        """When to look whether the steps that are not known here have come, or another worker has them."""
        looked = [self._kernel.looked(token_id) for token_id in self._effects.missing]
        if not looked:
            return None
        often = min(*looked, _OFTEN)
        return now + round(min(_LOOK_AGAIN_SECONDS * 2**often, _LOOK_AGAIN_AT_MOST) * 1000)

    def hand_back(self) -> None:
        """Stop soon: at once if nothing is under way, else when that has ended."""
        self._is_handing_back = self._effects.is_closed = True
        self._wakeup.set()

    def _interrupt(self, end: Abandoned) -> None:  # noqa: ARG002 - the writer has it
        self._effects.stop()
        self._wakeup.set()

    def _close(self) -> None:
        self._effects.stop()

    async def _receive(self, new: Sequence[Message]) -> None:
        """Give messages to the kernel."""
        for message in new:
            self._add_event(EffectDone(_event_of(message)))

    def _add_event(self, done: EffectDone) -> None:
        self._events.append(done)
        self._wakeup.set()

    # A turn: events to mutations, one commit, then effects.

    async def _turn(self, before: list[Planned] | None = None) -> None:
        events, self._events = self._events, []
        self._wakeup.clear()
        await self._load_state()
        try:
            effects = await self._commit(events, before or [])
        except StepwellError as error:
            await self._one_by_one(events, before or [], error)
            return
        self._carry_out(effects)

    async def _commit(self, events: list[EffectDone], before: list[Planned]) -> list[Effect]:
        """Give events to the kernel, commit its mutations, and return its effects."""
        now, kernel = self._services.clock.now_ms(), self._kernel
        batch: list[Planned] = []
        effects: list[Effect] = []
        taken: list[str] = []
        kept: tuple[str, ...] = ()
        for done in events:
            if done.landing and self._plan.state_keys:
                lay_over(kernel.state, self._plan.state_keys, self._identity, done.landing)
            came = kernel.handle(done.event, now)
            if came.is_taken:
                batch += done.landing
            batch += done.spending
            taken += came.message_keys
            kept = came.kept
            batch += came.mutations
            # To begin is to ask again for all that is under way, so also for attempts that end with this very commit.
            effects += _not_ended(came.effects, events) if isinstance(done.event, Began) else came.effects
            if any(isinstance(effect, End) for effect in came.effects):
                break
        end = next((effect for effect in effects if isinstance(effect, End)), None)
        messages = self._messages(effects, end)
        batch = [*before, *messages.values(), *self._taking(taken, kept), *batch]
        if batch:
            await self._writer.commit(batch, rest=None if end is None else FINAL_REST, nudges=tuple(messages))
        self._is_over = end is not None
        for key in taken:
            self._inbox.forget(key)
        kernel.settle()
        if self._writer.state is not self._state and not self._is_over:
            self._begin_anew()
        return effects

    def _taking(self, taken: list[str], kept: tuple[str, ...]) -> list[Planned]:
        return [each for key in taken if key not in kept for each in self._inbox.taking(self._inbox.waiting.get(key))]

    def _messages(self, effects: Sequence[Effect], end: End | None) -> dict[str, Planned]:
        """Return what children and the parent are sent with this commit, by the execution to be nudged for it."""
        messages: dict[str, Planned] = {}
        for effect in effects:
            if isinstance(effect, CancelChild):
                messages |= self._message_to_child(effect.child_id)
        if end is not None:
            messages |= self._message_to_parent(lambda: news_of(self._kernel.board, end.status, end.result))
        return messages

    async def _load_state(self) -> None:
        if self._plan.state_keys:
            self._kernel.state = await self._services.read_state(self._plan.state_keys, self._identity)

    def _begin_anew(self) -> None:
        """Rebuild the interpreter from the stored state, after a commit from outside."""
        self._kernel = self._fresh()
        self._events[:0] = [EffectDone(Began()), *(EffectDone(_event_of(message)) for message in self._inbox.waiting.values())]
        self._wakeup.set()

    # When a commit is refused.

    async def _one_by_one(self, events: list[EffectDone], before: list[Planned], error: StepwellError) -> None:
        """Commit events one by one: a refused output fails its attempt, any other refused event fails the execution."""
        log.info("a commit of execution %r was refused, so its parts are tried alone: %s", self.execution_id, error)
        self._kernel = self._fresh()
        await self._load_state()
        again = [EffectDone(Began()), *(EffectDone(_event_of(message)) for message in self._inbox.waiting.values())]
        own = [done for done in events if isinstance(done.event, StepCompleted | AttemptFailed)]
        for done in [*again, *own]:
            if self._is_over:
                return
            try:
                effects = await self._commit([done], before)
            except StepwellError as fault:
                effects = await self._replaced(done, fault)
            before = []
            self._carry_out(_not_ended(effects, own) if isinstance(done.event, Began) else effects)

    async def _replaced(self, done: EffectDone, fault: StepwellError) -> list[Effect]:
        if not isinstance(done.event, StepCompleted):
            await self._end_failed(trouble_of(fault))
            return []
        self._kernel = self._fresh()
        await self._load_state()
        self._kernel.handle(Began(), self._services.clock.now_ms())
        try:
            return await self._commit([done.refused(fault)], [])
        except StepwellError as error:
            await self._end_failed(trouble_of(error))
            return []

    async def _end_failed(self, error: Trouble) -> None:
        log.error("execution %r fails: %s", self.execution_id, error["message"])
        sections, result = self._writer.state.sections, {"error": error}
        tokens = [decode_token(data) for data in sections["tokens"].values()]
        own = [token.value for token in tokens if token.value.get("parent") == self.execution_id]
        children = [CancelChild(value["child"]) for value in own if "child" in value]
        batch: list[Planned] = [RemoveToken(token.token_id) for token in tokens]
        batch += [ExitScope(scope_id) for scope_id in reversed(sections["scopes"]) if scope_id != "root"]
        if decode(sections["status"][ONLY]) == Status.PENDING:
            batch.append(SetStatus(Status.RUNNING))
        messages = self._messages(children, End(Status.FAILED, result))
        batch += [*messages.values(), SetResult(msgspec.Raw(recode(result))), SetStatus(Status.FAILED)]
        await self._writer.commit(batch, rest=FINAL_REST, nudges=tuple(messages))
        self._is_over = True

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in _not_ended(effects, self._events):  # what has ended since is not made again
            match effect:
                case RunStep():
                    self._effects.make(effect)
                case StartChild():
                    self._effects.start(effect)
                case Abandon(token_id=token_id):
                    self._effects.abandon(token_id)
                case Note():
                    self._effects.note(effect)
                case CancelChild() | End():
                    pass


def _not_ended(effects: Sequence[Effect], events: Sequence[EffectDone]) -> list[Effect]:
    """Effects without the attempts whose ends are among events."""
    ended = {(done.event.token_id, done.event.key) for done in events if isinstance(done.event, StepCompleted | AttemptFailed)}
    return [each for each in effects if not (isinstance(each, RunStep) and (each.token_id, each.key) in ended)]


def _event_of(message: Message) -> Event:
    match message.kind:
        case inbox.SIGNAL:
            return SignalArrived(message.key, message.name, message.value)
        case inbox.CHILD:
            return ChildEnded(message.key, message.name, message.value)
        case _:
            return CancelRequested(message.key)
