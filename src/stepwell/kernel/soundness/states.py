"""The states of an execution that the explorer visits, and the moves that lead from one to the next.

A state is the live tokens and the records that joins count. A move is an event that a driver could send.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple, cast

from stepwell.flow.definition.node import Approval, CancelScopeNode, Choice, Deferred, Each, Graph, Loop, Parallel, Signal
from stepwell.kernel.interpreter import Interpreter
from stepwell.kernel.nodes.steps import attempt_of
from stepwell.kernel.plan import At, Plan, last_of
from stepwell.kernel.protocol import (
    AttemptFailed,
    ChildEnded,
    ChildStarted,
    Effect,
    RunStep,
    SignalArrived,
    StartChild,
    StepCompleted,
    TimePassed,
    Transition,
    Trouble,
    trouble,
)
from stepwell.kernel.soundness.abstraction import Oracle, Question
from stepwell.kernel.token import BEGINS, NOT_UNDONE, TIMES, UNDO, LiveToken
from stepwell.model.mutation import AddToken, Mutation, RecordStep, RemoveToken, UpdateToken
from stepwell.model.record import decode_step
from stepwell.model.status import StepStatus
from stepwell.model.value import Value

__all__ = [
    "ExploredMove",
    "ExploredRun",
    "ExploredState",
    "counted_places",
    "is_dormant",
    "is_endless",
    "key_of_run",
    "make",
    "moves_of",
    "row_of",
]


_TELLING = ("total", "chosen", "left", "taken", "is_done", "is_running", "is_escalated")
"""The fields of a token's value that decide what can happen; all others are data."""


class ExploredState(NamedTuple):
    """The input from which an interpreter is built."""

    tokens: dict[str, bytes]
    steps: dict[str, bytes]

    def after(self, mutations: Iterable[Mutation], counted: frozenset[str]) -> tuple[ExploredState, dict[str, str]]:
        """Return the state after a commit, and how the places that it recorded ended."""
        tokens, steps = dict(self.tokens), dict(self.steps)
        ended: dict[str, str] = {}
        for mutation in mutations:
            match mutation:
                case AddToken() | UpdateToken():
                    tokens[mutation.token_id] = bytes(mutation.token)
                case RemoveToken():
                    tokens.pop(mutation.token_id, None)
                case RecordStep():
                    record = decode_step(bytes(mutation.step))
                    ended[record.node_name] = record.status
                    if record.node_name in counted:
                        steps[mutation.name] = bytes(mutation.step)
                case _:
                    pass  # only templates read these, and an abstracted definition has none
        return ExploredState(tokens, steps), ended


class ExploredRun(Interpreter):
    """An interpreter that remembers the places that it began."""

    def __init__(self, plan: Plan, state: ExploredState, oracle: Oracle) -> None:
        empty: dict[str, bytes] = {}
        sections = dict.fromkeys(("trigger", "variables", "context", "loops", "scopes"), empty)
        super().__init__(plan, {**sections, "tokens": state.tokens, "steps": state.steps}, "run", slice_size=sys.maxsize)
        self.state = cast("Value", oracle)
        self.oracle = oracle
        self.is_loaded = not state.tokens
        self.entered: set[str] = set()
        self.failed: dict[str, str] = {}

    def enter(self, token: LiveToken) -> None:
        """Begin the node at a token's place."""
        self.entered.add(token.place.name)
        super().enter(token)

    def fail(self, token: LiveToken, error: Trouble) -> None:
        """Fail the node at a token's place."""
        self.failed[token.place.name] = error["kind"]
        super().fail(token, error)

    def listen(self, token: LiveToken, name: str, *, is_transient: bool = False) -> None:
        """Let a token listen for a signal; the signal may already be in the inbox."""
        if (
            self.is_loaded
            and not is_transient
            and self.oracle.answer(Question(f"signal {name} is there", (False, True), is_event=True))
        ):
            self.inbox.arrive(f"early {len(self.oracle.given)}", name, True)
        super().listen(token, name, is_transient=is_transient)

    def reached(self, ended: dict[str, str]) -> set[str]:
        """Return the places that were begun, including those beside an immediate failure: the order of branches is not modelled."""
        return self.entered | {name for name, how in ended.items() if how != StepStatus.SKIPPED}


def counted_places(plan: Plan) -> frozenset[str]:
    """Return the places whose records joins count."""
    found: set[str] = set()
    for place in plan.outline:
        if isinstance(place.node, Parallel | Each | Graph) or (isinstance(place.node, Choice) and place.node.mode == "all"):
            for child in place.children.values():
                found |= {child.name, last_of(child).name}
    return frozenset(found)


def is_endless(node: object) -> bool:
    """Return whether a loop has no bound on its iterations."""
    return isinstance(node, Loop) and node.count is None and node.max_iterations is None


def is_dormant(token: LiveToken) -> bool:
    """Return whether a token only holds a compensation."""
    return token.slot == UNDO and not token.value.get("is_running")


def key_of_run(run: Interpreter) -> Hashable:
    """Return a key of the state: states with equal keys have equal futures."""
    rows: list[Any] = []
    compensations: set[Hashable] = set()
    for token in run.tokens.values():
        if is_dormant(token):
            compensations.add((token.place.name, NOT_UNDONE in token.value, _where(run.plan, token.parent)))
        else:
            rows.append((row_of(run.plan, token), _where(run.plan, token.parent)))
    return (frozenset(Counter(rows).items()), frozenset(compensations))


def row_of(plan: Plan, token: LiveToken) -> Hashable:
    """Return what distinguishes a token in this state from the same token in another state."""
    value = token.value
    told = tuple((name, _plain(value[name])) for name in _TELLING if name in value)
    ending = value.get("ending")
    if ending is not None:
        told += (("ending", ending["how"]),)
    times = tuple(field for field in TIMES if field in value)
    tally = token.tally
    counts = (
        None if tally is None or BEGINS in value else (tally.succeeded, tally.failed, tally.ignored, tuple(sorted(tally.pending)))
    )
    return (token.place.name, token.slot, _rounds(plan, token), told, times, counts)


def _plain(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - names of branches


def _where(plan: Plan, token: LiveToken | None) -> Hashable:
    """Return the frames around a token."""
    found: list[Hashable] = []
    while token is not None:
        found.append((token.place.name, token.slot, _rounds(plan, token)))
        token = token.parent
    return tuple(found)


def _rounds(plan: Plan, token: LiveToken) -> At:
    """Return a token's iterations; in an endless loop, all after the first are the same."""
    around = plan.rounds[token.place.name]
    return tuple(
        min(number, 1) if depth < len(around) and is_endless(around[depth].node) else number
        for depth, number in enumerate(token.at)
    )


_MESSAGE_KEY = "message"


class ExploredMove(NamedTuple):
    """An event that can happen to a token."""

    token_id: str
    how: str
    """``completes``, ``fails``, ``starts``, ``time`` or ``signal``."""
    what: str
    """The child that ends, the timer that is due, or the signal that arrives."""
    words: str
    is_interrupt: bool = False
    """Whether it ends a whole scope from outside."""

    @property
    def is_failure(self) -> bool:
        """True if it is the failure of a step."""
        return self.how == "fails"


def moves_of(run: Interpreter, effects: Iterable[Effect]) -> dict[str, list[ExploredMove]]:
    """Return every possible move by token, in the order of the tokens."""
    found: dict[str, list[ExploredMove]] = {token_id: [] for token_id in run.tokens}
    for effect in effects:
        if isinstance(effect, RunStep | StartChild):
            found[effect.token_id] += _ends(effect)
    for token in run.tokens.values():
        found[token.id] += [*_times(token), *_signals(token)]
    return {token_id: moves for token_id, moves in found.items() if moves}


def _ends(effect: RunStep | StartChild) -> Iterator[ExploredMove]:
    child = effect.child_id if isinstance(effect, StartChild) else ""
    how = "starts" if isinstance(effect, StartChild) and effect.is_detached else "completes"
    yield ExploredMove(effect.token_id, how, child, f"{effect.key} {how}")
    yield ExploredMove(effect.token_id, "fails", child, f"{effect.key} fails")


def _times(token: LiveToken) -> Iterator[ExploredMove]:
    for field in TIMES:
        if field in token.value:
            name = "the execution" if token.parent is None else token.key
            yield ExploredMove(token.id, "time", field, f"the time of {name} comes", _is_region(token))


def _signals(token: LiveToken) -> Iterator[ExploredMove]:
    names: Iterable[str] = ()
    match token.place.node:
        case _ if token.parent is None:
            pass
        case Signal(signal=name):
            names = (name,)
        case Deferred(branches=branches) if not token.children and "chosen" not in token.value:
            names = branches
        case Approval():
            names = (token.key,)
        case CancelScopeNode(cancel_on=str() as name) if "ending" not in token.value:
            names = (name,)
        case _:
            pass
    for name in names:
        yield ExploredMove(token.id, "signal", name, f"signal {name} comes", _is_region(token))


def _is_region(token: LiveToken) -> bool:
    return "ending" not in token.value and (token.parent is None or isinstance(token.place.node, CancelScopeNode))


def make(run: Interpreter, move: ExploredMove) -> Transition:
    """Send the event of a move to the interpreter."""
    token = run.tokens[move.token_id]
    match move.how:
        case "time":
            run.wake_at(token, 0, move.what)
            return run.handle(TimePassed(), 0)
        case "signal":
            while (listener := run.inbox.listener(move.what)) is not None and listener is not token:
                run.inbox.leave(listener)  # the state does not hold the order of listeners, so any of them may be the first
            return run.handle(SignalArrived(_MESSAGE_KEY, move.what, True), 0)
        case "starts":
            return run.handle(ChildStarted(token.id, token.key), 0)
        case "completes" if move.what:
            return run.handle(ChildEnded(_MESSAGE_KEY, move.what, {"status": "COMPLETED", "result": {"output": None}}), 0)
        case "completes":
            return run.handle(StepCompleted(token.id, token.key, b"null", attempt=attempt_of(token)), 0)
        case _:
            error = trouble("Failed", "")
            return run.handle(AttemptFailed(token.id, token.key, error, is_final=True, attempt=attempt_of(token)), 0)
