"""The map of what can become of a definition: stands, and the moves between them, found breadth first within bounds.

Not every order of events is tried. When a thread has a move that touches no other thread, the moves of the others can wait, since
they will be there afterwards and come to the same; only what ends a region around it is tried as well. Where that would lead to
nothing new, everything is tried, so that nobody waits for ever behind a thread that goes round in circles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from stepwell.flow.definition.node import Definition
from stepwell.kernel.effect import Effect, End, Transition
from stepwell.kernel.event import Began
from stepwell.kernel.exploration_definition import abstracted
from stepwell.kernel.exploration_move import ExploredMove, make, moves_of
from stepwell.kernel.exploration_question import Oracle
from stepwell.kernel.exploration_stand import ExploredRun, ExploredState, counted_places, is_dormant, key_of_run, row_of
from stepwell.kernel.plan import Plan
from stepwell.kernel.thread import LiveToken

__all__ = ["MapPlace", "StateMap", "charted"]


_TOKENS = 15
"""Tokens to look at for each state that is allowed: where hundreds of branches run side by side, each state costs more."""


class _Result(NamedTuple):
    """What one move, with one set of answers, came to."""

    run: ExploredRun
    stand: ExploredState
    ended: dict[str, str]
    words: str
    is_failure: bool
    is_end: bool


class MapPlace:
    """A stand on the map."""

    __slots__ = ("before", "depth", "is_open", "is_stuck", "number", "stand", "ways", "words")

    def __init__(self, number: int, stand: ExploredState, before: MapPlace | None, words: str) -> None:
        self.number, self.stand, self.before, self.words = number, stand, before, words
        self.depth = 0 if before is None else before.depth + 1
        self.ways: list[tuple[int | None, bool]] = []
        """Where moves lead, None being the end, and whether the move is a failure."""
        self.is_stuck = False
        self.is_open = True
        """Whether nobody has looked yet at what can happen here."""

    def path(self) -> tuple[str, ...]:
        """What happened until here."""
        words: list[str] = []
        spot: MapPlace | None = self
        while spot is not None:
            words += [spot.words] if spot.words else []
            spot = spot.before
        return tuple(reversed(words))


class StateMap:
    """What is known of a definition so far."""

    def __init__(self, definition: Definition) -> None:
        self.definition, self.questions = abstracted(definition)
        self.plan = Plan(self.definition)
        self.counted = counted_places(self.plan)
        self.oracle = Oracle(self.questions)
        self.spots: list[MapPlace] = []
        self.keys: dict[Hashable, int] = {}
        self.reached: dict[str, MapPlace] = {}
        """Places that are begun, each with the nearest spot where it is."""
        self.passed: set[str] = set()
        """Places that end well."""
        self.failed: dict[str, dict[str, MapPlace]] = {}
        """Places that fail though no step or question just has: for which reasons, and the nearest spot after each."""
        self.left_over: list[MapPlace] = []
        """Ends that left something behind."""
        self.work = 0
        """How many tokens were looked at."""
        self.bound = ""
        """Which bound has stopped the exploration; empty: it is complete."""

    def load(self, stand: ExploredState) -> tuple[ExploredRun, tuple[Effect, ...]]:
        """An interpreter at a stand, and what it asks for."""
        self.work += len(stand.tokens)
        run = ExploredRun(self.plan, stand, self.oracle)
        self.oracle.begin(())
        effects = run.handle(Began(), 0).effects
        run.settle()
        run.entered.clear()
        run.is_loaded = True
        return run, effects

    def results(self, stand: ExploredState, move: ExploredMove | None) -> Iterator[_Result]:
        """All that a move can come to, by what is answered to the questions that come up; no move: the beginning."""
        tapes: list[tuple[int, ...]] = [()]
        while tapes:
            tape = tapes.pop()
            run = ExploredRun(self.plan, stand, self.oracle) if move is None else self.load(stand)[0]
            self.oracle.begin(tape)
            came = run.handle(Began(), 0) if move is None else make(run, move)
            tapes += reversed([*self.oracle.others()])
            yield self._result(stand, move, run, came)

    def _result(self, stand: ExploredState, move: ExploredMove | None, run: ExploredRun, came: Transition) -> _Result:
        given = self.oracle.given
        after, ended = stand.after(came.mutations, self.counted)
        told = [*([] if move is None else [move.words]), *map(str, given)]
        words = "; ".join(each for each in told if each)
        is_failure = (move is not None and move.is_failure) or any(answer.is_failure for answer in given)
        return _Result(run, after, ended, words, is_failure, any(isinstance(effect, End) for effect in came.effects))

    def note(self, result: _Result, before: MapPlace | None) -> bool:
        """Put a result on the map; True if it is new."""
        spot = MapPlace(len(self.spots), result.stand, before, result.words)
        self._note_places(result, spot)
        key = None if result.is_end else key_of_run(result.run)
        number = None if key is None else self.keys.setdefault(key, spot.number)
        if before is not None:
            before.ways.append((number, result.is_failure))
        if number is None and (result.stand.tokens or result.run.threads):
            self.left_over.append(spot)
        if number != spot.number:
            return False
        self.spots.append(spot)
        return True

    def _note_places(self, result: _Result, spot: MapPlace) -> None:
        for name in result.run.reached(result.ended):
            self.reached.setdefault(name, spot)
        self.passed |= {name for name, how in result.ended.items() if how == "COMPLETED"}
        if not result.is_failure:
            for name, kind in result.run.failed.items():
                self.failed.setdefault(name, {}).setdefault(kind, spot)


def charted(definition: Definition, max_states: int, max_depth: int) -> StateMap:
    """Explore a definition until nothing is new, or a bound is met."""
    found = StateMap(definition)
    for result in found.results(ExploredState({}, {}), None):
        found.note(result, None)
    pending = deque(found.spots)
    while pending:
        spot = pending.popleft()
        if spot.depth >= max_depth:
            found.bound = f"{max_depth:,} moves one after another"
            continue
        if len(found.spots) >= max_states or found.work >= max_states * _TOKENS:
            is_wide = len(found.spots) < max_states
            found.bound = f"{max_states * _TOKENS:,} tokens looked at" if is_wide else f"{max_states:,} states"
            break
        before = len(found.spots)
        _expand(found, spot)
        pending.extend(found.spots[before:])
    return found


def _expand(found: StateMap, spot: MapPlace) -> None:
    spot.is_open = False
    run, effects = found.load(spot.stand)
    moves = moves_of(run, effects)
    spot.is_stuck = not moves
    tried: set[str] = set()
    for token_id, own in moves.items():
        if any(move.is_interrupt for move in own):
            continue
        results = [result for move in own for result in found.results(spot.stand, move)]
        tried.add(token_id)
        is_local = all(result.is_failure or _is_local(run, run.threads[token_id], result.run) for result in results)
        is_new = [found.note(result, spot) for result in results]
        if is_local and any(is_new):
            around = {thread.id for thread in _around(run.threads[token_id])}
            _note_all(found, spot, [move for each, other in moves.items() if each in around for move in other])
            return
    _note_all(found, spot, [move for token_id, own in moves.items() if token_id not in tried for move in own])


def _note_all(found: StateMap, spot: MapPlace, moves: list[ExploredMove]) -> None:
    for move in moves:
        for result in found.results(spot.stand, move):
            found.note(result, spot)


def _around(thread: LiveToken) -> Iterator[LiveToken]:
    """The thread's frames, from the inside out."""
    frame = thread.parent
    while frame is not None:
        yield frame
        frame = frame.parent


def _is_local(before: ExploredRun, thread: LiveToken, after: ExploredRun) -> bool:
    """Whether a move of a thread has left all others as they were, but for the frames that it is in."""
    own = {thread.id, *(frame.id for frame in _around(thread))}
    for other in before.threads.values():
        if other.id in own or is_dormant(other):
            continue
        there = after.threads.get(other.id)
        if there is None or row_of(before.plan, there) != row_of(before.plan, other):
            return False
    return True
