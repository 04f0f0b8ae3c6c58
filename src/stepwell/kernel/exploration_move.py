"""What can happen next to an execution that is explored: each move is an event that the world could send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stepwell.flow.definition.node import Approval, CancelScopeNode, Deferred, Signal
from stepwell.kernel.alarm import TIMES
from stepwell.kernel.effect import Effect, RunStep, StartChild, Transition
from stepwell.kernel.event import AttemptFailed, ChildEnded, ChildStarted, SignalArrived, StepCompleted, TimePassed
from stepwell.kernel.interpreter import Interpreter
from stepwell.kernel.thread import LiveToken
from stepwell.kernel.trouble import trouble

__all__ = ["ExploredMove", "make", "moves_of"]

_LETTER = "letter"


class ExploredMove(NamedTuple):
    """One thing that can happen to a thread."""

    token_id: str
    how: str
    """``completes``, ``fails``, ``starts``, ``time`` or ``signal``."""
    what: str
    """The child that ends, the time that comes, the signal that arrives."""
    words: str
    is_interrupt: bool = False
    """Whether it ends a whole region, from the outside."""

    @property
    def is_failure(self) -> bool:
        """Whether it is a step that fails."""
        return self.how == "fails"


def moves_of(run: Interpreter, effects: Iterable[Effect]) -> dict[str, list[ExploredMove]]:
    """All that can happen, by the thread that it happens to, in the order of the threads."""
    found: dict[str, list[ExploredMove]] = {token_id: [] for token_id in run.threads}
    for effect in effects:
        if isinstance(effect, RunStep | StartChild):
            found[effect.token_id] += _ends(effect)
    for thread in run.threads.values():
        found[thread.id] += [*_times(thread), *_signals(thread)]
    return {token_id: moves for token_id, moves in found.items() if moves}


def _ends(effect: RunStep | StartChild) -> Iterator[ExploredMove]:
    child = effect.child_id if isinstance(effect, StartChild) else ""
    how = "starts" if isinstance(effect, StartChild) and effect.is_detached else "completes"
    yield ExploredMove(effect.token_id, how, child, f"{effect.key} {how}")
    yield ExploredMove(effect.token_id, "fails", child, f"{effect.key} fails")


def _times(thread: LiveToken) -> Iterator[ExploredMove]:
    for field in TIMES:
        if field in thread.value:
            name = "the execution" if thread.parent is None else thread.key
            yield ExploredMove(thread.id, "time", field, f"the time of {name} comes", _is_region(thread))


def _signals(thread: LiveToken) -> Iterator[ExploredMove]:
    names: Iterable[str] = ()
    match thread.place.node:
        case _ if thread.parent is None:
            pass
        case Signal(signal=name):
            names = (name,)
        case Deferred(branches=branches) if not thread.children and "chosen" not in thread.value:
            names = branches
        case Approval():
            names = (thread.key,)
        case CancelScopeNode(cancel_on=str() as name) if "ending" not in thread.value:
            names = (name,)
        case _:
            pass
    for name in names:
        yield ExploredMove(thread.id, "signal", name, f"signal {name} comes", _is_region(thread))


def _is_region(thread: LiveToken) -> bool:
    return thread.parent is None or isinstance(thread.place.node, CancelScopeNode)


def make(run: Interpreter, move: ExploredMove) -> Transition:
    """Let it happen."""
    thread = run.threads[move.token_id]
    match move.how:
        case "time":
            run.wake_at(thread, 0, move.what)
            return run.handle(TimePassed(), 0)
        case "signal":
            while (listener := run.mail.listener(move.what)) is not None and listener is not thread:
                run.mail.leave(listener)  # who has listened the longest is not known here: anybody may have
            return run.handle(SignalArrived(_LETTER, move.what, True), 0)
        case "starts":
            return run.handle(ChildStarted(thread.id, thread.key), 0)
        case "completes" if move.what:
            return run.handle(ChildEnded(_LETTER, move.what, {"status": "COMPLETED", "result": {"output": None}}), 0)
        case "completes":
            return run.handle(StepCompleted(thread.id, thread.key, b"null"), 0)
        case _:
            return run.handle(AttemptFailed(thread.id, thread.key, trouble("Failed", ""), is_final=True), 0)
