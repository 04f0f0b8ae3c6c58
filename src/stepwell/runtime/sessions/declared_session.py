"""The session of a declared workflow: it drives the kernel for one execution, from its claim to its rest or end.

Events that have gathered are given to the kernel one after another, what they come to is one commit, and only then is carried out
what the kernel asks for. Nothing is replayed: a session begins where the tokens stand. When nothing is under way and only times and
messages are waited for, it rests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf

import msgspec

from stepwell.errors import CommitUnknown, LeaseLost, StepwellError, StoreUnavailable
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.kernel.interpreter import Interpreter
from stepwell.kernel.plan import Plan
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
    trouble,
    trouble_of,
)
from stepwell.model.commit import Lease, Rest
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY
from stepwell.model.mutation import ExitScope, RemoveToken, SetResult, SetStatus, WriteState
from stepwell.model.record import decode_token
from stepwell.model.status import Status
from stepwell.model.value import decode, recode
from stepwell.runtime import inbox
from stepwell.runtime.inbox import CANCEL, CHILD, FROM_PARENT, Letter, fresh_key, put, take
from stepwell.runtime.services import DeclaredSurroundings
from stepwell.runtime.sessions.execution_writer import Recorder
from stepwell.runtime.sessions.waits import LINGER_SECONDS
from stepwell.runtime.shutdown import AGAIN_MS, is_away
from stepwell.runtime.start import news_of
from stepwell.runtime.steps.kernel_effects import EffectDone, KernelEffects
from stepwell.runtime.steps.scoped_state import lay_over

__all__ = ["DeclaredSession"]

log = logging.getLogger(__name__)

_LONGEST_SLEEP = 1.0
"""Times are looked at again after so long, since the clock may be moved from outside."""
_LOOK_AGAIN_SECONDS = 5.0
_LOOK_AGAIN_AT_MOST = 300.0
_OFTEN = 10
"""How long a run rests that needs a step which this worker does not know: longer each time, until it is the longest."""


class DeclaredSession:
    """Runs one execution of a declared workflow until it ends or rests."""

    def __init__(
        self,
        around: DeclaredSurroundings,
        workflow: DeclaredWorkflow,
        plan: Plan,
        recorder: Recorder,
        lease: Lease,
        *,
        is_new: bool,
    ) -> None:
        self._around, self._workflow, self._plan, self._recorder = around, workflow, plan, recorder
        self.lease, self._is_new = lease, is_new
        self.kept_until = inf
        """Until when the lease is held for sure, by ``time.monotonic``; its worker keeps it up to date."""
        self._identity = recorder.state.identity
        self._events: list[EffectDone] = []
        self._bell = asyncio.Event()
        self._letters: dict[str, Letter] = {}
        """Messages that have come and were not taken."""
        self._taken: set[str] = set()
        self._end: Exception | None = None
        self._is_over = self._is_handing_back = False
        self._making = KernelEffects(around, self._identity, recorder, self._ring)
        self._kernel = self._fresh()

    @property
    def execution_id(self) -> str:
        """The execution's id."""
        return self._identity.execution_id

    @property
    def is_made(self) -> bool:
        """Whether the execution exists."""
        return self._recorder.is_made

    @property
    def is_making(self) -> bool:
        """Whether a step is being made."""
        return self._making.is_busy

    def _fresh(self) -> Interpreter:
        state, who = self._recorder.state, self._identity
        self._state = state
        return Interpreter(self._plan, state.sections, who.execution_id, self._around.limits, who.deadline_ms)

    # The life of a session.

    async def run(self) -> int | None:
        """Run to the end or until it rests; the time at which a resting execution wants to be woken, if any."""
        try:
            await self._begin()
            while not self._is_over:
                if await self._is_idle():
                    return await self._rest()
                await self._turn()
        except (StoreUnavailable, CommitUnknown) as error:
            return await self._retreat(error)
        finally:
            self._making.stop()
        return None

    async def _begin(self) -> None:
        self._events.append(EffectDone(Began()))
        if not self._is_new:
            await self.look()
        status = decode(self._recorder.state.sections["status"][ONLY])
        await self._turn([] if status == Status.RUNNING else [SetStatus(Status.RUNNING)])

    async def _is_idle(self) -> bool:
        """Wait for something to happen; True if nothing will for a while, or if this worker is to stop."""
        if self._end is not None:
            raise self._end
        if self._events:
            return False
        left = self._seconds_left()
        is_busy = self._making.is_busy
        if left is not None and left <= 0:
            self._events.append(EffectDone(TimePassed()))
            return False
        if not is_busy and self._is_handing_back:
            return True
        is_soon = left is not None and left <= LINGER_SECONDS
        longest = _LONGEST_SLEEP if is_busy or is_soon else LINGER_SECONDS
        try:
            async with asyncio.timeout(min(longest, inf if left is None else left)):
                await self._bell.wait()
        except TimeoutError:
            return not is_busy and not is_soon and not self._events
        return False

    def _seconds_left(self) -> float | None:
        soonest = self._kernel.soonest_ms
        return None if soonest is None else (soonest - self._around.clock.now_ms()) / 1000

    async def _rest(self) -> int | None:
        """Give the execution back to the store."""
        now = self._around.clock.now_ms()
        times = [self._kernel.soonest_ms, now if self._is_handing_back else None, self._look_again_ms(now)]
        wake = min((each for each in times if each is not None), default=None)
        return await self._leave(wake)

    async def _retreat(self, reason: StepwellError) -> int | None:
        """Give the execution back after its store did not answer: it goes on from its record, and need not wait for its lease."""
        if not is_away(reason) or self._end is not None:
            raise reason
        log.warning("execution %r stops, and is handed back when its store answers: %s", self.execution_id, reason)
        while self._making.is_busy:  # noqa: ASYNC110 - on a way that is rarely taken
            await asyncio.sleep(0.01)
        return await self._leave(self._around.clock.now_ms() + (0 if self._is_handing_back else AGAIN_MS))

    async def _leave(self, wake: int | None) -> int | None:
        await self._recorder.leave([SetStatus(Status.WAITING)], Rest(wake), self._trying)
        return wake

    async def _trying(self, attempt: Callable[[], Awaitable[None]]) -> None:
        await self._around.patience.keep_trying(attempt, lambda: self.kept_until)

    def _look_again_ms(self, now: int) -> int | None:
        """When to look whether the steps that are not known here have come, or another worker has them."""
        looked = [self._kernel.looked(token_id) for token_id in self._making.missing]
        if not looked:
            return None
        often = min(*looked, _OFTEN)
        return now + round(min(_LOOK_AGAIN_SECONDS * 2**often, _LOOK_AGAIN_AT_MOST) * 1000)

    def lose(self, error: LeaseLost) -> None:
        """Stop at once: somebody else may run this execution now, and nothing more of this session is taken."""
        self.kept_until = -inf
        self._stop(error)

    def hand_back(self) -> None:
        """Stop soon, so that another worker can go on: at once if nothing is under way, else when that has ended."""
        self._is_handing_back = True
        self._making.is_closed = True
        self._bell.set()

    async def abandon(self) -> None:
        """Stop now, and hand back without waiting for steps that are under way: they will be made again."""
        if self._end is None and not self._is_over:
            self._stop(LeaseLost(f"execution {self.execution_id!r} was handed back"))
            await self._leave(self._around.clock.now_ms())

    def _stop(self, error: Exception) -> None:
        self._end = error
        self._making.stop()
        self._bell.set()

    async def look(self) -> None:
        """Look into the inbox and take up what came."""
        for letter in await self._around.letters(self.execution_id, self._identity.workspace_id):
            if letter.key not in self._letters and letter.key not in self._taken:
                self._letters[letter.key] = letter
                self._ring(EffectDone(_event_of(letter)))

    def _ring(self, done: EffectDone) -> None:
        self._events.append(done)
        self._bell.set()

    # A turn: events to mutations, one commit, then effects.

    async def _turn(self, before: list[Planned] | None = None) -> None:
        events, self._events = self._events, []
        self._bell.clear()
        await self._load_state()
        try:
            effects = await self._commit(events, before or [])
        except (LeaseLost, StoreUnavailable, CommitUnknown):
            raise
        except StepwellError as error:
            await self._one_by_one(events, before or [], error)
            return
        self._carry_out(effects)

    async def _commit(self, events: list[EffectDone], before: list[Planned]) -> list[Effect]:
        """Give events to the kernel, and commit what they come to."""
        now, kernel = self._around.clock.now_ms(), self._kernel
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
            taken += came.letters
            kept = came.kept
            batch += came.mutations
            # To begin is to ask again for all that is under way, so also for attempts that end with this very commit.
            effects += _not_ended(came.effects, events) if isinstance(done.event, Began) else came.effects
            if any(isinstance(effect, End) for effect in came.effects):
                break
        end = next((effect for effect in effects if isinstance(effect, End)), None)
        messages, nudges = self._messages(effects, end)
        batch = [*before, *messages, *self._taking(taken, kept), *batch]
        if batch:
            rest = None if end is None else Rest(None, is_final=True)
            await self._recorder.commit(batch, rest=rest, nudges=nudges)
        self._is_over = end is not None
        self._forget(taken)
        kernel.settle()
        if self._recorder.state is not self._state and not self._is_over:
            self._begin_anew()
        return effects

    def _taking(self, taken: list[str], kept: tuple[str, ...]) -> list[Planned]:
        found = (self._letters.get(key) for key in taken if key not in kept)
        return [take(self.execution_id, self._identity.workspace_id, letter) for letter in found if letter is not None]

    def _forget(self, taken: list[str]) -> None:
        """Messages that were taken do not count again, though a look that began before may still bring them."""
        self._taken.update(taken)
        for key in taken:
            self._letters.pop(key, None)

    def _messages(self, effects: list[Effect], end: End | None) -> tuple[list[Planned], tuple[str, ...]]:
        """What children and the parent are told with this commit, and whom to wake for it."""
        workspace = self._identity.workspace_id
        told: dict[str, Planned] = {}
        for effect in effects:
            if isinstance(effect, CancelChild):
                letter = put(effect.child_id, workspace, CANCEL, "", None, FROM_PARENT)
                told[effect.child_id] = WriteState(letter)
        parent = self._identity.parent_id if self._identity.is_child else None
        if end is not None and parent is not None:
            news = news_of(self._kernel.board, end.status, end.result)
            letter = put(parent, workspace, CHILD, self.execution_id, news, fresh_key(self._around.new_id()))
            told[parent] = WriteState(letter)
        return list(told.values()), tuple(told)

    async def _load_state(self) -> None:
        if self._plan.state_keys:
            self._kernel.state = await self._around.read_state(self._plan.state_keys, self._identity)

    def _begin_anew(self) -> None:
        """Somebody else has written to this execution: what is in memory is built again from what is stored."""
        self._kernel = self._fresh()
        self._events[:0] = [EffectDone(Began()), *(EffectDone(_event_of(letter)) for letter in self._letters.values())]
        self._bell.set()

    # When a commit is refused.

    async def _one_by_one(self, events: list[EffectDone], before: list[Planned], error: StepwellError) -> None:
        """Find the event that is at fault. An attempt whose output cannot be kept has failed; anything else fails the execution."""
        log.info("a commit of execution %r was refused, so its parts are tried alone: %s", self.execution_id, error)
        self._kernel = self._fresh()
        await self._load_state()
        again = [EffectDone(Began()), *(EffectDone(_event_of(letter)) for letter in self._letters.values())]
        own = [done for done in events if isinstance(done.event, StepCompleted | AttemptFailed)]
        for done in [*again, *own]:
            if self._is_over:
                return
            try:
                effects = await self._commit([done], before)
            except (LeaseLost, StoreUnavailable, CommitUnknown):
                raise
            except StepwellError as fault:
                effects = await self._replaced(done, fault)
            before = []
            self._carry_out(_not_ended(effects, own) if isinstance(done.event, Began) else effects)

    async def _replaced(self, done: EffectDone, fault: StepwellError) -> list[Effect]:
        if not isinstance(done.event, StepCompleted):
            await self._break_off(trouble_of(fault))
            return []
        self._kernel = self._fresh()
        await self._load_state()
        self._kernel.handle(Began(), self._around.clock.now_ms())
        try:
            return await self._commit([done.refused(fault)], [])
        except (LeaseLost, StoreUnavailable, CommitUnknown):
            raise
        except StepwellError as error:
            await self._break_off(trouble_of(error))
            return []

    async def give_up(self, kind: str, message: str) -> None:
        """End as FAILED without doing anything, since what it does brings its workers down. Parent and children are told."""
        await self._break_off(trouble(kind, message))

    async def _break_off(self, error: Trouble) -> None:
        """End the execution, with the reason, whatever its tokens say."""
        log.error("execution %r fails: %s", self.execution_id, error["message"])
        sections, result = self._recorder.state.sections, {"error": error}
        tokens = [decode_token(data) for data in sections["tokens"].values()]
        own = [token.value for token in tokens if token.value.get("parent") == self.execution_id]
        children = [CancelChild(value["child"]) for value in own if "child" in value]
        batch: list[Planned] = [RemoveToken(token.token_id) for token in tokens]
        batch += [ExitScope(scope_id) for scope_id in reversed(sections["scopes"]) if scope_id != "root"]
        if decode(sections["status"][ONLY]) == Status.PENDING:
            batch.append(SetStatus(Status.RUNNING))
        messages, nudges = self._messages([*children], End(Status.FAILED, result))
        batch += [*messages, SetResult(msgspec.Raw(recode(result))), SetStatus(Status.FAILED)]
        await self._recorder.commit(batch, rest=Rest(None, is_final=True), nudges=nudges)
        self._is_over = True

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in _not_ended(effects, self._events):  # what has ended since is not made again
            match effect:
                case RunStep():
                    self._making.make(effect)
                case StartChild():
                    self._making.start(effect)
                case Abandon(token_id=token_id):
                    self._making.abandon(token_id)
                case Note():
                    self._making.note(effect)
                case CancelChild() | End():
                    pass


def _not_ended(effects: Sequence[Effect], events: Sequence[EffectDone]) -> list[Effect]:
    """Effects without the attempts whose ends are among events."""
    ended = {(done.event.token_id, done.event.key) for done in events if isinstance(done.event, StepCompleted | AttemptFailed)}
    return [each for each in effects if not (isinstance(each, RunStep) and (each.token_id, each.key) in ended)]


def _event_of(letter: Letter) -> Event:
    match letter.kind:
        case inbox.SIGNAL:
            return SignalArrived(letter.key, letter.name, letter.value)
        case inbox.CHILD:
            return ChildEnded(letter.key, letter.name, letter.value)
        case _:
            return CancelRequested(letter.key)
