"""The interpreter of declared workflows: an event in, mutations and effects out. No clock, no randomness, no I/O.

An execution is a tree of tokens. A token moves along sequences and choices. At any other composite node it stays as a *frame*
and has children, and it counts how they end. Work inside a transition is a queue and not recursion, so nesting costs no stack.
Frames know their children, so no event visits all tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec

from stepwell.errors import ExecutionCancelled, ValidationFailed
from stepwell.flow.definition.node import (
    Action,
    Approval,
    CancelScopeNode,
    Choice,
    Deferred,
    Each,
    Graph,
    Loop,
    Parallel,
    ScriptNode,
    Sequence,
    Signal,
    StepNode,
    Subworkflow,
    Wait,
    continues_after_error,
)
from stepwell.flow.definition.outline import Place
from stepwell.flow.language.template import Template, compile_template
from stepwell.kernel.data_view import output_of, trigger_facts
from stepwell.kernel.nodes import graphs, joins, loops, scopes, steps, waits
from stepwell.kernel.nodes.scopes import cancel_inside
from stepwell.kernel.pending_changes import PendingChanges, Sections
from stepwell.kernel.plan import At, Plan, key_of
from stepwell.kernel.protocol import (
    AttemptFailed,
    Began,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    Effect,
    End,
    Event,
    RunStep,
    SignalArrived,
    StartChild,
    StepCompleted,
    StepMissing,
    TimePassed,
    Transition,
    Trouble,
    trouble,
    trouble_of,
)
from stepwell.kernel.signals import SignalInbox
from stepwell.kernel.token import BEGINS, DUE, LOOSE, RETRIES, TIMES, UNDO, LiveToken, TokenTimers
from stepwell.model.execution_state import ONLY
from stepwell.model.limits import Limits
from stepwell.model.mutation import Mutation, SetResult, SetStatus
from stepwell.model.status import Status, StepStatus
from stepwell.model.value import Value, recode

__all__ = ["SLICE_SIZE", "Interpreter"]

_ENTER: dict[type, Callable[[Interpreter, LiveToken, Any], None]] = {
    StepNode: steps.enter_action,
    Subworkflow: steps.enter_action,
    ScriptNode: steps.enter_action,
    Parallel: joins.enter_parallel,
    Choice: joins.enter_choice,
    Each: joins.enter_each,
    Loop: loops.enter_loop,
    Graph: graphs.enter_graph,
    CancelScopeNode: scopes.enter_scope,
    Wait: waits.enter_wait,
    Signal: waits.enter_signal,
    Deferred: waits.enter_deferred,
    Approval: waits.enter_approval,
}
_ENDED: dict[type, Callable[[Interpreter, LiveToken, LiveToken, Trouble | None], None]] = {
    Parallel: joins.branch_ended,
    Choice: joins.branch_ended,
    Each: joins.branch_ended,
    Loop: loops.body_ended,
    Graph: graphs.node_ended,
    CancelScopeNode: scopes.member_ended,
    Deferred: waits.chosen_ended,
}


SLICE_SIZE = 2_000
"""How many pieces of work one transition does before it lets its driver commit: about a tenth of a second."""

_SHORT = 100


def _is_action(token: LiveToken) -> bool:
    return token.is_gone or isinstance(token.place.node, Action)


class Interpreter:
    """One execution of a declared workflow between events. It is ahead of its store by one commit at most."""

    def __init__(
        self,
        plan: Plan,
        sections: Sections,
        execution_id: str,
        limits: Limits | None = None,
        deadline_ms: int | None = None,
        *,
        slice_size: int = SLICE_SIZE,
    ) -> None:
        self.plan, self.execution_id, self.deadline_ms, self._slice = plan, execution_id, deadline_ms, slice_size
        self.changes = PendingChanges(sections, limits or Limits())
        self.trigger = trigger_facts(sections)
        self.identity = sections.get("identity", {}).get(ONLY)
        """The execution's metadata as they are stored; None in an exploration."""
        self.state: Value = {}
        """Scoped state that the definition reads, loaded by the driver."""
        self.now_ms = 0
        self.root: LiveToken | None = None
        self.tokens: dict[str, LiveToken] = {}
        self.frames: dict[str, LiveToken] = {}
        """Running loops and multiple instances by key."""
        self.scopes: dict[str, LiveToken] = {}
        """Open cancel scopes by id."""
        self.child_waits: dict[str, LiveToken] = {}
        """Tokens that wait for a child execution, by the child's id."""
        self.calls: dict[str, LiveToken] = {}
        """Tokens at steps that are called under a key of the user's own, by that key."""
        self.call_waits: dict[str, list[LiveToken]] = {}
        """Tokens that wait for the end of such a call."""
        self.inbox = SignalInbox()
        self.effects: list[Effect] = []
        self.undo_count = 0
        self._timers = TokenTimers()
        self._to_cancel: dict[str, str] = {}
        """Requests to cancel steps that have not begun: message keys by the keys of the steps."""
        self._work: deque[tuple[Callable[..., None], LiveToken, Any]] = deque()

    # Events.

    def handle(self, event: Event, now_ms: int) -> Transition:
        """Return the transition of an event. Its mutations must be committed, and ``settle`` called, before the next event."""
        self.now_ms = now_ms
        is_taken = self._take(event)
        self._run_slice()
        # Flush after the queue is empty: a token that comes and goes within the transition must leave no mutation.
        effects, self.effects = self.effects, []
        mutations: list[Mutation] = self.changes.flush()
        for effect in effects:
            if isinstance(effect, End):
                mutations += [SetResult(msgspec.Raw(recode(effect.result))), SetStatus(str(effect.status))]
        # A step may be requested and cancelled in one transition; the driver must not start it.
        wanted = tuple(effect for effect in effects if self._is_wanted(effect))
        # Only a failed execution can be retried, so only then a later life may need the messages again.
        has_failed = any(isinstance(effect, End) and effect.status is Status.FAILED for effect in effects)
        kept = self.inbox.unrecorded(self._is_passed) if has_failed else ()
        return Transition(tuple(mutations), wanted, self.inbox.taken(), kept, is_taken, bool(self._work))

    def _run_slice(self) -> None:
        """Work until nothing is left or the slice is used up.

        Work that is left is in memory only. It can be left where each token is about to enter an action: a driver that takes the
        execution up again enters the same ones.
        """
        left = self._slice
        while self._work:
            # Looking through a long queue costs as much as a piece of work, so that is done now and then.
            may_stop = left <= 0 and (len(self._work) < _SHORT or left % (_SHORT + 1) == 0)
            if may_stop and all(do == self._enter and _is_action(token) for do, token, _ in self._work):
                return
            left -= 1
            do, token, payload = self._work.popleft()
            # An earlier task of this transition may have removed the token, for example by ending its scope.
            if not token.is_gone:
                do(token, payload)

    def _is_passed(self, key: str) -> bool:
        """Return whether a place has ended by the record, so that it is not entered again."""
        found = self.changes.step(key)
        return found is not None and found.status != StepStatus.FAILED

    def settle(self) -> None:
        """Confirm that the mutations of the last transition are committed."""
        self.inbox.settle()
        self.changes.settle()

    @property
    def soonest_ms(self) -> int | None:
        """Return when the next timer is due."""
        return self._timers.soonest_ms

    def looked(self, token_id: str) -> int:
        """Return how often drivers without the step of this token have looked for it."""
        token = self.tokens.get(token_id)
        return 0 if token is None else token.value.get("looked", 0)

    def _take(self, event: Event) -> bool:
        match event:
            case Began():
                self._begin()
            case TimePassed():
                self._wake()
            case StepCompleted() | AttemptFailed() | StepMissing() | ChildStarted():
                return self._answer(event)
            case SignalArrived():
                self._signal(event)
            case ChildEnded():
                token = self.child_waits.get(event.child_id)
                if self.inbox.accept(event.message_key) and token is not None and not token.is_gone:
                    self.guarded(token, lambda: steps.child_ended(self, token, event))
            case CancelRequested(scope=str(scope)) if scope:
                self.inbox.accept(event.message_key)
                scopes.cancel_named(self, scope)
            case CancelRequested(step=str(key)) if key:
                token = next((each for each in self.tokens.values() if each.key == key and scopes.is_cancellable(each)), None)
                if token is None:
                    self._to_cancel[key] = event.message_key
                else:
                    self.inbox.accept(event.message_key)
                    steps.cancel_step(self, token)
            case CancelRequested():
                self.inbox.accept(event.message_key)
                if self.root is not None and not self.root.is_gone:
                    error = trouble("ExecutionCancelled", "the execution was cancelled", ExecutionCancelled.code)
                    scopes.leave(self, self.root, "cancelled", error)
        return True

    def _begin(self) -> None:
        from stepwell.kernel.resume import load, resume

        if load(self):
            resume(self)
        else:
            scopes.begin(self)

    def _answer(self, event: StepCompleted | AttemptFailed | StepMissing | ChildStarted) -> bool:
        """Handle the end of an attempt. Return False if no token waits for it any more."""
        token = self.tokens.get(event.token_id)
        # The key changes with each iteration, so a late answer of an earlier iteration is not taken for this one. A token with a
        # retry timer has had its answer.
        if token is None or token.key != event.key or RETRIES in token.value:
            return False
        if isinstance(event, StepCompleted | AttemptFailed) and event.attempt != steps.attempt_of(token):
            return False
        match event:
            case StepCompleted():
                steps.step_completed(self, token, event)
            case AttemptFailed():
                steps.step_failed(self, token, event)
            case StepMissing():
                steps.step_missing(self, token, event)
            case ChildStarted():
                steps.child_started(self, token)
        return True

    def _signal(self, event: SignalArrived) -> None:
        if not self.inbox.arrive(event.message_key, event.name, event.value):
            return
        listener = self.inbox.listener(event.name)
        if listener is not None:
            self._hear(listener, event.name)

    def _hear(self, token: LiveToken, name: str) -> None:
        value = self.inbox.take(name, token if isinstance(token.place.node, Deferred | Approval) else None)
        self.guarded(token, lambda: waits.hear(self, token, name, value))

    def _wake(self) -> None:
        while (found := self._timers.take(self.now_ms)) is not None:
            self._time_over(*found)

    def _time_over(self, token: LiveToken, field: str) -> None:
        self.changes.touch(token)
        if field == BEGINS:
            loops.delay_over(self, token)
        elif token.parent is None or isinstance(token.place.node, CancelScopeNode):
            scopes.time_over(self, token)
        elif isinstance(token.place.node, Action):
            steps.time_is_up(self, token, field)
        else:
            waits.wait_over(self, token)

    def _is_wanted(self, effect: Effect) -> bool:
        """Return whether an effect's token still exists at the end of the transition and still waits for it."""
        if not isinstance(effect, RunStep | StartChild):
            return True
        token = self.tokens.get(effect.token_id)
        return token is not None and token.key == effect.key

    # Operations of node kinds on tokens.

    def enter(self, token: LiveToken) -> None:
        """Begin the node at a token's place."""
        self._work.append((self._enter, token, None))

    def done(self, token: LiveToken, output: bytes) -> None:
        """Complete the node at a token's place."""
        self._work.append((self._done, token, output))

    def fail(self, token: LiveToken, error: Trouble) -> None:
        """Fail the node at a token's place."""
        self._work.append((self._fail, token, error))

    def fail_with(self, token: LiveToken, error: ValidationFailed) -> None:
        """Fail the node of a token because a value could not be evaluated or stored."""
        self.fail(token, {**trouble_of(error), "step": token.key})

    def guarded(self, token: LiveToken, do: Callable[[], None]) -> None:
        """Run an operation for a token, and fail the token if an evaluation in it fails."""
        try:
            do()
        except ValidationFailed as error:
            # An action has on_error and a retry policy, which also apply to an input that cannot be evaluated.
            if isinstance(token.place.node, Action) and token.parent is not None:
                names = tuple(kind.__name__ for kind in type(error).__mro__)
                failure = AttemptFailed(token.id, token.key, trouble_of(error), names, is_final=True)
                steps.step_failed(self, token, failure)
            else:
                self.fail_with(token, error)

    def record_and_go_on(self, token: LiveToken, output: bytes) -> None:
        """Record a node's output and continue after it."""
        output = self._recorded(token.place, token.at, output)
        self._close_frame(token)
        self.done(token, output)

    def _recorded(self, place: Place, at: At, output: bytes) -> bytes:
        """Record an output, unless there is a record: the node ended in the commit of a failure that is retried."""
        key = key_of(place, at)
        found = self.changes.step(key)
        if found is not None:
            return recode(output_of(found))
        self.changes.record(key, place.name, StepStatus.COMPLETED, output, self.now_ms)
        return output

    def _close_frame(self, token: LiveToken) -> None:
        """Forget a loop's items, unless another token took the frame's place and keeps running."""
        if self.frames.get(token.key) is token:
            del self.frames[token.key]

    def record_failure(self, place: Place, at: At, error: Trouble) -> None:
        """Record the failure of a branch, unless the failed step is the branch and has its own record."""
        key = key_of(place, at)
        if self.changes.get("steps", key) is None:
            self.changes.record(key, place.name, StepStatus.FAILED, recode({"error": error, "attempts": 0}), self.now_ms)

    def spawn(self, parent: LiveToken, slot: str, place: Place, at: At, id: str | None = None) -> LiveToken:
        """Create a token inside a frame."""
        child = LiveToken(id or key_of(place, at), place, parent, slot, at)
        self.adopt(parent, child)
        self.changes.touch(child)
        return child

    def adopt(self, parent: LiveToken, child: LiveToken) -> None:
        """Move a token into a frame."""
        child.parent = parent
        child.scope = parent if parent.parent is None or isinstance(parent.place.node, CancelScopeNode) else parent.scope
        gives = parent.parent is not None and isinstance(parent.place.node, Loop | Each)
        child.item_from = child if child.item is not msgspec.UNSET or (gives and child.slot != LOOSE) else parent.item_from
        parent.children[child.id] = child
        self.tokens[child.id] = child

    def move(self, token: LiveToken, place: Place) -> None:
        """Move a token to another place and begin the node there."""
        token.place, token.value, token.tally = place, {}, None
        self.changes.touch(token)
        self.enter(token)

    def drop(self, token: LiveToken) -> None:
        """Remove a token."""
        self.quiet(token)
        self._close_frame(token)
        token.is_gone = True
        self.tokens.pop(token.id, None)
        if token.parent is not None:
            token.parent.children.pop(token.id, None)
        self.changes.touch(token)

    # Timers and signals.

    def wake_at(self, token: LiveToken, due_ms: int, field: str = DUE) -> None:
        """Set a timer for a token."""
        order = -1 if token.parent is None else self.plan.numbers[token.place.name]
        self._timers.set(token, due_ms, field, (order, token.at))
        self.changes.touch(token)

    def listen(self, token: LiveToken, name: str, *, is_transient: bool = False) -> None:
        """Let a token wait for a signal: one from the inbox, unless only later ones count, or the next one."""
        if is_transient:
            self.inbox.forget(name)
        self.inbox.listen(token, name)
        while self.inbox.has(name) and self.inbox.is_listening(token, name):
            self._hear(token, name)

    def quiet(self, token: LiveToken) -> None:
        """Remove a token's timers and its wait for a signal."""
        self.inbox.leave(token)
        for field in TIMES:
            token.value.pop(field, None)

    # Tasks of the work queue.

    def _enter(self, token: LiveToken, _: None) -> None:
        node = token.place.node
        if self.is_answered(token):
            return
        if token.key in self._to_cancel and scopes.is_cancellable(token):
            self.inbox.accept(self._to_cancel.pop(token.key))
            steps.cancel_step(self, token)
            return
        if isinstance(node, Sequence):
            first = token.place.children.get("0")
            if first is None:
                self.record_and_go_on(token, b"null")
            else:
                self.move(token, first)
            return
        self.guarded(token, lambda: _ENTER[type(node)](self, token, node))

    def is_answered(self, token: LiveToken) -> bool:
        """Return whether a place ended before its execution was retried, so that it is not run again."""
        if self.changes.get("steps", token.key) is None:
            return False
        found = self.changes.step(token.key)
        if found is None or (found.status == StepStatus.FAILED and not continues_after_error(token.place.node)):
            return False
        self.quiet(token)
        self.done(token, recode(output_of(found)))
        return True

    def _done(self, token: LiveToken, output: bytes) -> None:
        frame, place = token.parent, token.place
        assert frame is not None  # noqa: S101 - the root ends by other means
        while token.slot not in (UNDO, LOOSE) and place.parent is not (None if frame.parent is None else frame.place):
            outer = place.parent
            assert outer is not None  # noqa: S101 - below its frame
            if isinstance(outer.node, Sequence):
                following = outer.children.get(str(int(place.slot) + 1))
                if following is not None:
                    self.move(token, following)
                    return
            else:  # a choice: its output is that of its case
                output = self._recorded(outer, token.at, output)
            place = outer
        self._ended(frame, token, None)

    def _fail(self, token: LiveToken, error: Trouble) -> None:
        if token.parent is None:
            scopes.leave(self, token, "failed", error)
            return
        cancel_inside(self, token)
        self.quiet(token)
        self._ended(token.parent, token, error)

    def _ended(self, frame: LiveToken, child: LiveToken, error: Trouble | None) -> None:
        ended = scopes.member_ended if frame.parent is None else _ENDED[type(frame.place.node)]
        self.guarded(frame, lambda: ended(self, frame, child, error))

    @cached_property
    def first_calls(self) -> dict[str, str]:
        """The keys of the records of completed calls, by the keys of the user's own. Read when the first such call is made."""
        found = ((key, self.changes.step(key)) for key in self.changes.names("steps"))
        completed = ((key, each) for key, each in found if each is not None and each.status == StepStatus.COMPLETED)
        return {each.call_key: key for key, each in completed if each.call_key is not None}

    @cached_property
    def output_form(self) -> Template:
        """The template of the result."""
        return compile_template(self.plan.definition.output)
