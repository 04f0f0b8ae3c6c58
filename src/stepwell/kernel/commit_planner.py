"""Plan the commits of a declared execution: collected events become one commit, and their effects follow it.

A driver adds events, asks for the next commit, stores it, and reports the result: the commit landed, was refused, or another
commit came first. The consequences are decided here, the same for every driver: which effects are still wanted, what is tried
alone after a refusal, and which events a rebuilt kernel gets again. No clock, no randomness, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stepwell.flow.retry import Retry
from stepwell.kernel.interpreter import SLICE_SIZE, Interpreter
from stepwell.kernel.loaded_state import lay_over
from stepwell.kernel.plan import Plan
from stepwell.kernel.protocol import (
    AttemptFailed,
    Began,
    CancelChild,
    CancelRequested,
    ChildEnded,
    Effect,
    End,
    Event,
    RunStep,
    SignalArrived,
    StepCompleted,
    TimePassed,
    Trouble,
)
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY, State
from stepwell.model.limits import Limits
from stepwell.model.mutation import LARGEST_INPUT, ExitScope, KeepLog, Mutation, RecordStep, RemoveToken, SetResult, SetStatus
from stepwell.model.record import decode_token
from stepwell.model.status import Status
from stepwell.model.value import Value, decode, recode

__all__ = ["CommitPlanner", "EffectDone", "PlannedCommit", "Refusal", "failed_end"]


class Refusal(NamedTuple):
    """The refusal of a commit, as the failure of an attempt."""

    error: dict[str, Value]
    names: tuple[str, ...] = ()
    chance: float = 0.0
    """A random number from 0 to 1, for the delay before another attempt."""

    @property
    def trouble(self) -> Trouble:
        """Return the refusal as the error of a failed execution."""
        return {name: self.error.get(name) for name in ("kind", "message", "code")}


class EffectDone(NamedTuple):
    """An event, with the mutations that land with it."""

    event: Event
    landing: Sequence[Planned] = ()
    """The step's writes, if its output is recorded."""
    spending: Sequence[Planned] = ()
    """The cost of the attempt, to be committed even if it failed."""
    policy: Retry | None = None
    """The step's retry policy, for an output that the store refuses."""

    def refused(self, refusal: Refusal) -> EffectDone:
        """Return the failed attempt that a completed step becomes if the commit of its output is refused; it cost the same."""
        event = self.event
        assert isinstance(event, StepCompleted)  # noqa: S101 - nothing else has an output
        failed = AttemptFailed(
            event.token_id,
            event.key,
            refusal.error,
            refusal.names,
            is_final=not refusal.error.get("is_retryable", True),
            policy=self.policy,
            chance=refusal.chance,
            took_ms=event.took_ms,
            attempt=event.attempt,
        )
        return EffectDone(failed, (), self.spending)


class PlannedCommit(NamedTuple):
    """The mutations and effects of some events. Commit ``batch``, whole, before anything else."""

    mutations: Sequence[Planned]
    effects: Sequence[Effect] = ()
    taken: Sequence[str] = ()
    """The keys of messages that were taken."""
    kept: Sequence[str] = ()
    """Those that stay in the inbox, since a retry of the execution takes them again."""
    before: Sequence[Planned] = ()
    end: End | None = None

    @property
    def removed(self) -> list[str]:
        """The keys of messages that leave the inbox with this commit."""
        return [key for key in self.taken if key not in self.kept]

    def batch(self, beside: Iterable[Planned] = ()) -> list[Planned]:
        """Return all mutations of the commit, with those that the driver adds: messages that are sent and taken."""
        return [*self.before, *beside, *self.mutations]


class _Group(NamedTuple):
    """Events that share a commit."""

    events: Sequence[EffectDone]
    before: Sequence[Planned] = ()
    is_alone: bool = False
    """Whether the events are committed one by one, since a commit with all of them was refused."""
    is_replaced: bool = False
    """Whether this is the failure of an attempt whose output was refused."""


_Message = SignalArrived | ChildEnded | CancelRequested


class CommitPlanner:
    """Plans the commits of one execution.

    Args:
        plan: the definition, compiled.
        state: the execution's state, which the driver changes by the commits that land.
        slice_size: the most work in one commit, where it can be cut.
    """

    def __init__(self, plan: Plan, state: State, limits: Limits, *, slice_size: int = SLICE_SIZE) -> None:
        self._plan, self._limits, self._slice_size = plan, limits, slice_size
        self._identity = state.identity
        self._state = state
        self.kernel = self._fresh()
        self._events: list[EffectDone] = []
        self._groups: deque[_Group] = deque()
        self._under_way: _Group | None = None
        self._planned: PlannedCommit | None = None
        self._messages: dict[str, _Message] = {}
        """Messages that the kernel has received and not taken, by key."""
        self._given: dict[str, RunStep] = {}
        """The steps that were asked for and have not been answered, by their tokens: their records say what they were given."""
        self._failure: Trouble | None = None
        """The error with which the execution fails, once nothing else can be committed."""
        self.is_over = False

    def _fresh(self) -> Interpreter:
        who, sections = self._identity, self._state.sections
        return Interpreter(self._plan, sections, who.execution_id, self._limits, who.deadline_ms, slice_size=self._slice_size)

    # Events.

    def begin(self, before: Sequence[Planned] = ()) -> None:
        """Begin or resume the execution; commit ``before`` ahead of the resulting mutations."""
        self._groups.append(_Group([EffectDone(Began())], before))

    def add(self, done: EffectDone) -> None:
        """Add an event to those of the next commit."""
        if isinstance(done.event, _Message) and done.event.message_key:
            self._messages[done.event.message_key] = done.event
        self._events.append(done)

    @property
    def has_events(self) -> bool:
        """True if there are events for a commit."""
        return bool(self._events or self._groups or self._failure) and not self.is_over

    # Commits.

    def next(self, now_ms: int, scoped: Mapping[str, Value] | None = None) -> PlannedCommit | None:
        """Return the next commit, or None if no event has come.

        Args:
            scoped: the scoped state that the definition reads (``Plan.state_keys``), as it is now.
        """
        if not self.has_events:
            return None
        if self._failure is not None:
            self._planned = failed_end(self._state, self._failure)
            return self._planned
        group = self._next_group()
        if scoped is not None:
            self.kernel.state = scoped
        planned, rest = self._handle(group, now_ms)
        if rest:
            self._groups.appendleft(rest)
        self._under_way, self._planned = group, planned
        return planned

    def _next_group(self) -> _Group:
        """Return events that share a commit; after a refusal they come one by one."""
        if self._groups and self._groups[0].is_alone:
            return self._groups.popleft()
        events: list[EffectDone] = []
        before: list[Planned] = []
        while self._groups and not self._groups[0].is_alone:
            group = self._groups.popleft()
            events += group.events
            before += group.before
        if not self._groups:
            events += self._events
            self._events = []
        return _Group(events, before)

    def _handle(self, group: _Group, now_ms: int) -> tuple[PlannedCommit, _Group | None]:
        """Pass events to the kernel; return the commit, and the events that are left for another commit."""
        mutations: list[Planned] = []
        effects: list[Effect] = []
        taken: list[str] = []
        kept: tuple[str, ...] = ()
        end: End | None = None
        rest: _Group | None = None
        for number, done in enumerate(group.events, 1):
            if done.landing and self._plan.state_keys:
                lay_over(self.kernel.state, self._plan.state_keys, self._identity, done.landing)
            came = self.kernel.handle(done.event, now_ms)
            if came.is_taken:
                mutations += done.landing
            mutations += _spending(done.spending, came.mutations)
            taken += came.message_keys
            kept = came.kept
            mutations += self._with_input(came.mutations, done.event)
            self._given |= {effect.token_id: effect for effect in came.effects if isinstance(effect, RunStep)}
            # Beginning requests again all that is under way, so also attempts that end with this very commit.
            effects += _not_ended(came.effects, group.events) if isinstance(done.event, Began) else came.effects
            end = next((effect for effect in came.effects if isinstance(effect, End)), None)
            if end is not None:
                break
            if came.has_more:
                rest = _Group([EffectDone(TimePassed()), *group.events[number:]], (), group.is_alone)
                break
        return PlannedCommit(mutations, effects, taken, kept, group.before, end), rest

    def _with_input(self, mutations: Sequence[Mutation], event: Event) -> Sequence[Mutation]:
        """Return the mutations that an answer comes to, with the input in the record of its step."""
        if not isinstance(event, StepCompleted | AttemptFailed):
            return mutations
        asked = self._given.pop(event.token_id, None)
        if asked is None or asked.key != event.key or self._identity.secrets or asked.place == "external-api":
            return mutations  # a secret may have another name in an input than in the trigger, and a request any place for one
        data = recode(asked.args)
        if len(data) > LARGEST_INPUT:
            return mutations
        return [
            RecordStep(each.name, each.step, msgspec.Raw(data)) if isinstance(each, RecordStep) and each.name == event.key else each
            for each in mutations
        ]

    def landed(self, state: State) -> list[Effect]:
        """Note that the commit landed, and return the effects to carry out now.

        Args:
            state: the state after the commit. If it is another object than before, a commit from outside came first, and the
                kernel is rebuilt.
        """
        planned = self._planned
        assert planned is not None  # noqa: S101 - one was under way
        self._under_way = self._planned = None
        self.is_over = planned.end is not None
        for key in planned.taken:
            self._messages.pop(key, None)
        self.kernel.settle()
        if state is not self._state and not self.is_over:
            self.rebuild(state)
        pending = [done for group in self._groups for done in group.events]
        return _not_ended(planned.effects, [*pending, *self._events])  # attempts that have ended since do not run again

    def rebuild(self, state: State, inbox: Collection[str] | None = None, before: Sequence[Planned] = ()) -> None:
        """Begin anew from a state that another commit led to. A commit under way is dropped, and its answers are heard again.

        Args:
            inbox: the keys of the messages that are in the inbox now; None if that commit took none.
            before: what is committed ahead of what follows, such as that the execution is RUNNING again.
        """
        if inbox is not None:
            self._messages = {key: message for key, message in self._messages.items() if key in inbox}
        lost = [] if self._under_way is None else [done for done in self._under_way.events if _is_answer(done)]
        self._under_way = self._planned = None
        self._state = state
        self.kernel = self._fresh()
        self._groups.appendleft(_Group([*self._again(), *lost], before))

    def _again(self) -> list[EffectDone]:
        """Return the first events of a rebuilt kernel: that it began, and the messages not taken, in the order of their keys."""
        return [EffectDone(Began()), *(EffectDone(self._messages[key]) for key in sorted(self._messages))]

    def refused(self, refusal: Refusal, state: State) -> bool:
        """Note that the commit was refused. Return whether there is another one to try.

        The events are tried one by one: a refused output fails its attempt, any other refused event fails the execution.
        """
        group = self._under_way
        self._state, self._under_way, self._planned = state, None, None
        if group is None:  # the end as a failure was refused
            return False
        self.kernel = self._fresh()
        if not group.is_alone:
            own = [done for done in group.events if _is_answer(done)]
            alone = [_Group([done], (), is_alone=True) for done in (*self._again(), *own)]
            alone[0] = alone[0]._replace(before=group.before)
            self._groups.extendleft(reversed(alone))
            return True
        done = group.events[-1]
        if isinstance(done.event, StepCompleted) and not group.is_replaced:
            events = [EffectDone(Began()), done.refused(refusal)]
            self._groups.appendleft(_Group(events, group.before, is_alone=True, is_replaced=True))
            return True
        self._groups.clear()
        self._failure = refusal.trouble
        return True


def failed_end(state: State, error: Trouble) -> PlannedCommit:
    """Return the commit that ends an execution as FAILED, with any tokens; its children are cancelled."""
    sections, result = state.sections, {"error": error}
    tokens = [decode_token(data) for data in sections["tokens"].values()]
    own = [token.value for token in tokens if token.value.get("parent") == state.identity.execution_id]
    children = [CancelChild(value["child"]) for value in own if "child" in value]
    batch: list[Planned] = [RemoveToken(token.token_id) for token in tokens]
    batch += [ExitScope(scope_id) for scope_id in reversed(sections["scopes"]) if scope_id != "root"]
    if decode(sections["status"][ONLY]) == Status.PENDING:
        batch.append(SetStatus(Status.RUNNING))
    end = End(Status.FAILED, result)
    batch += [SetResult(msgspec.Raw(recode(result))), SetStatus(Status.FAILED)]
    return PlannedCommit(batch, [*children, end], end=end)


def _is_answer(done: EffectDone) -> bool:
    return isinstance(done.event, StepCompleted | AttemptFailed)


def _spending(spending: Sequence[Planned], came: Sequence[Mutation]) -> list[Planned]:
    """Return what is committed with every attempt, with the log as it is kept of a retried one if the step has not ended."""
    ended = {each.name for each in came if isinstance(each, RecordStep)}
    return [each.if_retried() if isinstance(each, KeepLog) and each.step not in ended else each for each in spending]


def _not_ended(effects: Iterable[Effect], events: Iterable[EffectDone]) -> list[Effect]:
    """Return the effects without attempts whose ends are among the events."""
    answers = (done.event for done in events if isinstance(done.event, StepCompleted | AttemptFailed))
    ended = {(event.token_id, event.key, event.attempt) for event in answers}
    return [each for each in effects if not (isinstance(each, RunStep) and (each.token_id, each.key, each.attempt) in ended)]
