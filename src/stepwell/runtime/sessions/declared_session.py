"""The session of a declared workflow: it drives the kernel for one execution, from its claim to its rest or end.

Events that have gathered are given to the kernel one after another, what they come to is one commit, and only then is carried out
what the kernel asks for. Nothing is replayed: a session begins where the tokens stand. When nothing is under way and only times and
messages are waited for, it rests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from math import inf

from stepwell.errors import StepwellError
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.kernel.commit_planner import CommitPlanner, EffectDone, PlannedCommit, failed_end
from stepwell.kernel.protocol import (
    Abandon,
    CancelChild,
    Effect,
    End,
    Note,
    RunStep,
    StartChild,
    TimePassed,
    Trouble,
)
from stepwell.model.commit import Lease
from stepwell.model.draft import Planned
from stepwell.model.record import decode_token
from stepwell.model.status import Status
from stepwell.runtime.inbox import CHILD, PAUSE, Message, event_of
from stepwell.runtime.services import Services
from stepwell.runtime.sessions.call_positions import branch
from stepwell.runtime.sessions.execution_writer import ExecutionWriter, StateMoved
from stepwell.runtime.sessions.session import CHILD_SLOT_POLL_MS, FINAL_REST, Session
from stepwell.runtime.sessions.waits import LINGER_SECONDS
from stepwell.runtime.start import news_of
from stepwell.runtime.steps.kernel_effects import KernelEffects, refusal_of
from stepwell.runtime.unwinding import Abandoned, Suspended

__all__ = ["DeclaredSession"]

log = logging.getLogger(__name__)

_LONGEST_SLEEP = 1.0
"""Times are looked at again after so long, since the clock may be moved from outside."""
_LOOK_AGAIN_SECONDS = 5.0
_LOOK_AGAIN_AT_MOST = 300.0
_MOST_REMADE = 20
"""A transaction may come first now and then. A session that always loses the race has met a loop, and then follows blindly."""
_OFTEN = 10
"""How long a run rests that needs a step which this worker does not know: longer each time, until it is the longest."""


class DeclaredSession(Session):
    """Runs one execution of a declared workflow until it ends or rests."""

    def __init__(
        self, services: Services, workflow: DeclaredWorkflow, writer: ExecutionWriter, lease: Lease, *, is_new: bool
    ) -> None:
        super().__init__(services, writer, lease, is_new=is_new)
        self._plan = services.workflows.plan(workflow)
        self._planner = CommitPlanner(self._plan, writer.state, services.limits)
        self._wakeup = asyncio.Event()
        self._remade = 0
        """How many commits in a row were planned again, since a commit from outside came first."""
        self._attempts.grants = workflow.grants
        self._effects = KernelEffects(services, self._identity, writer, self._attempts, self._add_event, writer.fence)

    @property
    def is_running_steps(self) -> bool:
        """True while steps or starts of children are under way."""
        return self._effects.is_busy

    # From the claim to the rest or end.

    async def _work(self) -> None:
        branch.set(None)  # a workflow's code may have started this session's task
        self._planner.begin(self._resuming())
        await self._commit_next()
        while not self._planner.is_over:
            if await self._is_idle():
                raise Suspended
            await self._commit_next()

    async def _is_idle(self) -> bool:
        """Wait for an event; True if none will come for a while, or if this worker is to stop."""
        if self._writer.end is not None:
            raise self._writer.end
        if self._planner.has_events:
            return False
        left = self._seconds_left()
        is_busy = self._effects.is_busy
        if left is not None and left <= 0:
            self._planner.add(EffectDone(TimePassed()))
            return False
        if not is_busy and self._is_handing_back:
            return True
        is_soon = left is not None and left <= LINGER_SECONDS
        longest = _LONGEST_SLEEP if is_busy or is_soon else LINGER_SECONDS
        try:
            async with asyncio.timeout(min(longest, inf if left is None else left)):
                await self._wakeup.wait()
        except TimeoutError:
            return not is_busy and not is_soon and not self._planner.has_events
        return False

    def _seconds_left(self) -> float | None:
        soonest = self._planner.kernel.soonest_ms
        return None if soonest is None else (soonest - self._services.clock.now_ms()) / 1000

    def _wake_ms(self) -> int | None:
        now = self._services.clock.now_ms()
        held = now + CHILD_SLOT_POLL_MS if self._effects.has_held_children else None
        times = (self._planner.kernel.soonest_ms, self._look_again_ms(now), held)
        return min((each for each in times if each is not None), default=None)

    def _look_again_ms(self, now: int) -> int | None:
        """Return when to look whether the steps that are not known here have come, or another worker has them."""
        looked = [self._planner.kernel.looked(token_id) for token_id in self._effects.missing]
        if not looked:
            return None
        often = min(*looked, _OFTEN)
        return now + round(min(_LOOK_AGAIN_SECONDS * 2**often, _LOOK_AGAIN_AT_MOST) * 1000)

    def hand_back(self) -> None:
        """Stop soon: at once if nothing is under way, else when that has ended."""
        self._is_handing_back = True
        self._effects.close()
        self._wakeup.set()

    def _interrupt(self, end: Abandoned) -> None:  # noqa: ARG002 - the writer has it
        self._effects.stop()
        self._wakeup.set()

    def _close(self) -> None:
        self._effects.stop()

    async def _receive(self, new: Sequence[Message]) -> None:
        """Give messages to the kernel."""
        for message in new:
            if message.kind == PAUSE:
                continue  # there is a request to cancel, which ends the pause
            self._add_event(EffectDone(event_of(message)))
            if message.kind == CHILD:
                self._effects.child_ended(message.name)
        self._effects.look_for_places()

    async def _count_children(self, ended: Collection[str]) -> int:
        """Return how many children run; of those whose tokens are there, some may not have been started yet."""
        tokens = [decode_token(data).value for data in self._writer.state.sections["tokens"].values()]
        own = {each["child"] for each in tokens if "child" in each and each.get("parent") == self.execution_id}
        return len(await self._services.existing(sorted(own.difference(ended))))

    def _add_event(self, done: EffectDone) -> None:
        self._planner.add(done)
        self._wakeup.set()

    # Events to mutations, one commit, then effects.

    async def _commit_next(self) -> None:
        """Commit the changes of the collected events, and carry out the effects."""
        self._wakeup.clear()
        revision = self._writer.state.revision
        keys = self._plan.state_keys
        scoped = await self._services.read_state(keys, self._identity) if keys else None
        planned = self._planner.next(self._services.clock.now_ms(), scoped)
        if planned is None:
            return
        try:
            await self._commit(planned, follows=revision if self._remade < _MOST_REMADE else None)
        except StateMoved:
            # This commit was planned on an old state: plan it again on the newest one, with the same answers and messages.
            self._remade += 1
            await self._look_for_pause()
            self._planner.rebuild(self._writer.state, self._inbox.waiting, self._resuming())
            return
        except StepwellError as error:
            log.info("a commit of execution %r was refused, so its parts are tried alone: %s", self.execution_id, error)
            if not self._planner.refused(refusal_of(error), self._writer.state):
                raise
            return
        self._remade = 0
        if planned.end is not None and planned.end.status is Status.FAILED:
            failure, error = self._effects.last_failure, planned.end.result["error"]
            is_same = failure is not None and type(failure).__name__ == error["kind"]
            self._log_failure(error["message"], failure if is_same else None)
        effects = self._planner.landed(self._writer.state)
        await self._effects.know_children([each for each in effects if isinstance(each, StartChild)], is_new=self._is_new)
        self._carry_out(effects)
        if planned.end is not None:
            await self._give_back_places()

    async def _give_back_places(self) -> None:
        if self._effects.places is not None:
            await self._effects.places.give_back()

    async def _commit(self, planned: PlannedCommit, follows: int | None = None) -> None:
        messages = self._messages(planned)
        taking = [each for key in planned.removed for each in self._inbox.taking(self._inbox.waiting.get(key))]
        batch = planned.batch([*messages.values(), *taking])
        if batch:
            await self._writer.commit(
                batch, rest=None if planned.end is None else FINAL_REST, nudges=tuple(messages), follows=follows
            )
        for key in planned.taken:
            self._inbox.forget(key)

    def _messages(self, planned: PlannedCommit) -> dict[str, Planned]:
        """Return what children and the parent are sent with this commit, by the execution to be nudged for it."""
        messages: dict[str, Planned] = {}
        for effect in planned.effects:
            if isinstance(effect, CancelChild):
                messages |= self._message_to_child(effect.child_id)
        end = planned.end
        if end is not None:
            messages |= self._message_to_parent(lambda: news_of(self._planner.kernel.changes, end.status, end.result))
        return messages

    async def _end_failed(self, error: Trouble) -> None:
        await self._commit(failed_end(self._writer.state, error))
        await self._give_back_places()

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case RunStep():
                    self._effects.make(effect)
                case StartChild():
                    self._effects.start(effect)
                case Abandon(token_id=token_id):
                    self._effects.abandon(token_id)
                case Note():
                    self._effects.note(effect)
                case CancelChild(child_id=child_id):
                    self._effects.drop_child(child_id)
                case End():
                    pass
