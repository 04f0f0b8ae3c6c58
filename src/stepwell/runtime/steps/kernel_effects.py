"""Carry out the kernel's effects: attempts at steps, scripts, and starts of children. Each ends in an event for the kernel."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from stepwell.errors import AlreadyExists, NotFound, StepwellError
from stepwell.flow.function import Step, registered_step
from stepwell.flow.retry import Retry
from stepwell.kernel.commit_planner import EffectDone, Refusal
from stepwell.kernel.protocol import (
    AttemptFailed,
    ChildEnded,
    ChildStarted,
    Note,
    RunStep,
    StartChild,
    StepCompleted,
    StepMissing,
)
from stepwell.model.record import Metadata
from stepwell.model.redaction import Redaction
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.runtime.child_places import ExtraPlaces, PlacesNeeded
from stepwell.runtime.services import Services
from stepwell.runtime.start import seed_of
from stepwell.runtime.steps.attempt import Attempts
from stepwell.runtime.steps.budget import HasState
from stepwell.runtime.steps.http_step import builtin_step
from stepwell.runtime.steps.outcome import error_names, error_value
from stepwell.runtime.steps.scripts import script_step
from stepwell.runtime.unwinding import Abandoned

__all__ = [
    "KernelEffects",
    "log_note",
    "refusal_of",
]


log = logging.getLogger(__name__)
notes = logging.getLogger("stepwell.workflow")


class _Task(NamedTuple):
    key: str
    attempt: int
    task: asyncio.Task[None]


class KernelEffects:
    """The attempts and starts of one execution that are under way."""

    def __init__(
        self,
        services: Services,
        identity: Metadata,
        execution: HasState,
        attempts: Attempts,
        done: Callable[[EffectDone], None],
        fence: int,
    ) -> None:
        self._fence = fence
        self._services, self._identity, self._execution, self._attempts = services, identity, execution, attempts
        self._done = done
        self._tasks: dict[str, _Task] = {}
        self.missing: set[str] = set()
        """Tokens that wait for a step which this process does not know."""
        self._waiting_for_runs: Counter[str] = Counter()
        """Tokens whose script waits for the ends of other executions, and how many those are."""
        self.last_failure: Exception | None = None
        """The error of the last failed attempt, for the log. ``stop`` drops it, since its traceback holds frames."""
        self._children: set[str] | None = None
        """The children that run, as far as that matters: None until the first is started in a workspace that limits them."""
        self._held: dict[str, StartChild] = {}
        """Children that are started when others have ended, by the tokens that wait for them, the oldest first."""
        self._asking: set[str] = set()
        """Tokens whose children ask for an extra place in the tree of the root."""
        self.places: ExtraPlaces | None = None
        """The extra places for children, once one is started in a workspace that limits them."""
        self._beside: set[asyncio.Task[None]] = set()
        self._has_ended_children = False
        """Whether children have ended before it was known how many run."""
        self._limit: int | None = None
        """The child_concurrency, when a child last asked."""
        self._is_closed = False
        """Whether nothing new is begun: this worker is to stop."""

    @property
    def is_busy(self) -> bool:
        """True while anything is under way."""
        return bool(self._tasks or self._beside)

    def make(self, asked: RunStep) -> None:
        """Begin an attempt, unless it runs already."""
        self.missing.discard(asked.token_id)
        if asked.language:
            waiting = partial(self._wait_for_run, asked.token_id)
            script = script_step(asked, self._services, self._attempts.budget, waiting)
            self._begin(asked, asked.attempt, lambda: self._step(script, asked))
            return
        step = builtin_step(asked.uses, asked.timeout_seconds) or registered_step(asked.uses)
        if step is None:
            log.warning(
                "execution %r waits: no step %r is registered in this process; import the module that defines it",
                self._identity.execution_id,
                asked.uses,
            )
            self.missing.add(asked.token_id)
            self._done(EffectDone(StepMissing(asked.token_id, asked.key, asked.uses)))
            return
        self._begin(asked, asked.attempt, lambda: self._step(step, asked))

    def start(self, asked: StartChild) -> None:
        """Start a child, unless it is being started already. One too many at once waits until another has ended."""
        self._begin(asked, 0, lambda: self._child(asked))

    async def know_children(self, asked: Sequence[StartChild], *, is_new: bool) -> None:
        """Learn which of the children that are about to be started run already, so that they count before any other is started."""
        limited = [each for each in asked if not each.is_detached]
        is_first = self._children is None and (limited or self._has_ended_children)
        if not is_first or self._identity.workspace_id == DEFAULT_WORKSPACE:
            return
        limit = await self._services.child_concurrency(self._identity.workspace_id)
        earlier = [] if is_new else [each.child_id for each in limited if not each.is_again]
        self._children = await self._services.existing(earlier) if earlier else set()
        self.places = ExtraPlaces(
            *(self._services.child_places, self._identity, self._fence),
            needed=self._places_needed,
            changed=self._start_held,
            beside=self._beside,
            is_new=is_new,
        )
        self._limit = limit
        self.places.settle_later(limit)

    @property
    def has_held_children(self) -> bool:
        """True if a child waits until another has ended."""
        return bool(self._held)

    def child_ended(self, child_id: str) -> None:
        """Start a child that waits in the place of one that has ended; give the place back if none waits."""
        if self._children is None:
            self._has_ended_children = True
        else:
            self._children.discard(child_id)
            self._start_held()
            if self.places is not None:
                self.places.settle_later(self._limit)

    def look_for_places(self) -> None:
        """Look whether others have given a place to children that wait, after a nudge."""
        if self.places is not None and self._held:
            self.places.settle_later(self._limit, is_nudged=True)

    def drop_child(self, child_id: str) -> None:
        """Forget a child that waits to be started; one that runs counts until it has ended."""
        self._held = {token_id: asked for token_id, asked in self._held.items() if asked.child_id != child_id}

    def _start_held(self) -> None:
        """Start the children that wait, the oldest first, as far as there are places."""
        if not self._is_closed:
            for token_id in list(self._held)[: max(self._free_places(), 0)]:
                self.start(self._held.pop(token_id))

    def _free_places(self) -> int:
        """Return how many more children may be started: the first one, and one for each extra place."""
        if self._limit is None:
            return len(self._held)
        held = 0 if self.places is None else self.places.held
        return min(1 + held, self._limit) - len(self._children or ())

    def _places_needed(self) -> PlacesNeeded:
        children = len(self._children or ())
        return PlacesNeeded(max(children + len(self._held.keys() | self._asking) - 1, 0), max(children - 1, 0))

    async def _is_held(self, asked: StartChild) -> bool:
        """Return whether a child has to wait until another has ended; else it counts from now on."""
        children = self._children
        if children is None or self.places is None or asked.is_detached or asked.child_id in children:
            return False
        self._limit = limit = await self._services.child_concurrency(self._identity.workspace_id)
        if limit is not None and self._free_places() <= 0:
            self._asking.add(asked.token_id)
            try:
                await self.places.settle(limit)
            finally:
                self._asking.discard(asked.token_id)
            if self._free_places() <= 0:
                self._held[asked.token_id] = asked
                return True
        children.add(asked.child_id)
        return False

    def abandon(self, token_id: str) -> None:
        """Cancel an attempt whose result is not needed any more."""
        self.missing.discard(token_id)
        if self._held.pop(token_id, None) is not None and self.places is not None:
            self.places.settle_later(self._limit)
        found = self._tasks.pop(token_id, None)
        if found is not None:
            found.task.cancel()

    def close(self) -> None:
        """Begin nothing new, since this worker stops. Waits for other executions, which may last for days, are abandoned."""
        self._is_closed = True
        for token_id in list(self._waiting_for_runs):
            self.abandon(token_id)

    @contextmanager
    def _wait_for_run(self, token_id: str) -> Generator[None]:
        """Let a script wait for the end of another execution, unless this worker is to stop."""
        self._waiting_for_runs[token_id] += 1
        if self._is_closed:
            self.abandon(token_id)
        try:
            yield
        finally:
            self._waiting_for_runs[token_id] -= 1
            self._waiting_for_runs += Counter()  # without those that wait for none

    def stop(self) -> None:
        """Stop everything."""
        self.last_failure = None
        if self.places is not None:
            self.places.close()
        for token_id in list(self._tasks):
            self.abandon(token_id)

    def note(self, asked: Note) -> None:
        """Log a workflow's message."""
        log_note(self._identity, asked)

    def _begin(self, asked: RunStep | StartChild, number: int, make: Callable[[], Coroutine[Any, Any, EffectDone | None]]) -> None:
        found = self._tasks.get(asked.token_id)
        if self._is_closed or (found is not None and (found.key, found.attempt) == (asked.key, number)):
            return
        self.abandon(asked.token_id)
        task = asyncio.get_running_loop().create_task(self._watched(asked, make))
        self._tasks[asked.token_id] = _Task(asked.key, number, task)

    async def _watched(self, asked: RunStep | StartChild, make: Callable[[], Coroutine[Any, Any, EffectDone | None]]) -> None:
        try:
            done = await make()
        except Exception as error:  # noqa: BLE001 - the kernel waits for the end of every effect
            done = EffectDone(_failed(asked, error, None))
        except Abandoned as end:  # the session is over, and finds that out when it wakes up
            done = EffectDone(_failed(asked, end.reason, None))
        found = self._tasks.get(asked.token_id)
        if found is not None and found.task is asyncio.current_task():
            del self._tasks[asked.token_id]
            if done is not None:
                self._done(done)

    # Attempts.

    async def _step(self, step: Step[..., Any], asked: RunStep) -> EffectDone:
        if asked.timeout_seconds is not None:
            step = copy.copy(step)
            step.timeout_seconds = asked.timeout_seconds
        budget = self._attempts.budget
        try:
            budget.begin(step, asked.key, is_free=asked.is_undo)
            try:
                given, summary = step.bind(asked.args), asked.summary
                made = await self._attempts.make(step, asked.call, asked.attempt, (), given, recorded_as=asked.key, summary=summary)
            finally:
                budget.end()
        except Exception as error:  # noqa: BLE001 - the budget or the step's parameters refuse it; the kernel decides what it means
            return EffectDone(_failed(asked, error, step.policy))
        if made.error is not None:
            self.last_failure = made.error
            return EffectDone(_failed(asked, made.error, step.policy, took_ms=made.took_ms), (), made.spending)
        completed = StepCompleted(asked.token_id, asked.key, made.output, made.took_ms, asked.attempt)
        return EffectDone(completed, made.landing, made.spending, step.policy)

    async def _child(self, asked: StartChild) -> EffectDone | None:
        """Start a child; None if it has to wait until another has ended."""
        if await self._is_held(asked):
            return None
        seed = seed_of(asked.rule, self._execution.state)
        try:
            workflow = await self._services.workflows.startable(asked.workflow, asked.version)
            news = await self._services.start_child(
                workflow,
                asked.input,
                asked.child_id,
                self._identity,
                seed,
                is_detached=asked.is_detached,
                is_again=asked.is_again,
            )
        except (NotFound, AlreadyExists) as error:
            self.child_ended(asked.child_id)
            return EffectDone(_failed(asked, error, None, is_final=True))
        if news is not None and not asked.is_detached:
            self.child_ended(asked.child_id)
            return EffectDone(ChildEnded("", asked.child_id, news))
        return EffectDone(ChildStarted(asked.token_id, asked.key))


def _failed(
    asked: RunStep | StartChild,
    error: Exception,
    policy: Retry | None,
    *,
    is_final: bool = False,
    took_ms: int = 0,
) -> AttemptFailed:
    told = error_value(error)
    return AttemptFailed(
        asked.token_id,
        asked.key,
        told,
        tuple(error_names(error)),
        is_final=is_final or not told["is_retryable"],
        policy=policy,
        chance=random.random(),  # noqa: S311 - spreads retries, guards nothing
        took_ms=took_ms,
        attempt=asked.attempt,
    )


def log_note(identity: Metadata, asked: Note) -> None:
    """Write what a workflow logs, without what is declared secret."""
    level = logging.getLevelNamesMapping().get(asked.level.upper(), logging.INFO)
    execution_id, data = identity.execution_id, asked.data
    if identity.secrets:
        data = Redaction(identity.secrets).value(data)
    extra = "" if data is None else f" {data!r}"
    notes.log(level, "%s %s: %s%s", execution_id, asked.key, asked.message, extra)


def refusal_of(error: StepwellError) -> Refusal:
    """Return why a commit was refused, as the failure of an attempt."""
    return Refusal(error_value(error), tuple(error_names(error)), random.random())  # noqa: S311 - spreads retries, guards nothing
