"""Explore every outcome of a definition by driving the interpreter itself, without running a step.

A step may complete or fail, a signal may arrive, a timer may fire, a condition over data may hold or not. Constants are
evaluated. ``explore`` reports dead nodes, deadlocks, livelocks and improper ends, each with the path that leads there.

States are found breadth first, within bounds, and not every interleaving is tried (partial-order reduction). If a token has a
move that affects no other token, the moves of the others are postponed: they stay possible and have the same result afterwards.
Only moves that end an enclosing scope are tried as well. If the reduction would lead to no new state, all moves are tried, so
that a token in a cycle cannot postpone the others for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator
from typing import Literal, NamedTuple

from stepwell.errors import InvalidDefinition, Problem
from stepwell.flow.definition.checker import check as check_statically
from stepwell.flow.definition.findings import Finding, Findings, shown_path
from stepwell.flow.definition.node import Choice, Definition, Each, Graph, Loop, Parallel, Sequence, Subworkflow
from stepwell.flow.definition.outline import Outline, Place
from stepwell.kernel.plan import Plan
from stepwell.kernel.protocol import Began, Effect, End, Transition
from stepwell.kernel.soundness.abstraction import Oracle, abstracted
from stepwell.kernel.soundness.states import (
    ExploredMove,
    ExploredRun,
    ExploredState,
    counted_places,
    is_dormant,
    is_endless,
    key_of_run,
    make,
    moves_of,
    row_of,
)
from stepwell.kernel.token import LiveToken
from stepwell.model.plain_data import PlainRecord

__all__ = [
    "MAX_DEPTH",
    "MAX_STATES",
    "Exploration",
    "Fault",
    "FaultKind",
    "MapPlace",
    "StateMap",
    "charted",
    "check",
    "explore",
]


_TOKENS = 15
"""Tokens visited per allowed state. With hundreds of concurrent branches, each state costs more."""


class _Result(NamedTuple):
    """The result of a move with one set of answers."""

    run: ExploredRun
    state: ExploredState
    ended: dict[str, str]
    words: str
    is_failure: bool
    is_end: bool
    is_recursive: bool


class Way(NamedTuple):
    """A move from a state on the map."""

    target: int | None
    """The state that it leads to; None is the end."""
    is_failure: bool
    is_recursive: bool
    """Whether it is the end of another execution of the same definition."""


class MapPlace:
    """A state on the map."""

    __slots__ = ("before", "depth", "is_open", "is_stuck", "number", "state", "ways", "words")

    def __init__(self, number: int, state: ExploredState, before: MapPlace | None, words: str) -> None:
        self.number, self.state, self.before, self.words = number, state, before, words
        self.depth = 0 if before is None else before.depth + 1
        self.ways: list[Way] = []
        self.is_stuck = False
        self.is_open = True
        """Whether its moves are still to be tried."""

    def path(self) -> tuple[str, ...]:
        """Return the moves from the start to this state."""
        words: list[str] = []
        spot: MapPlace | None = self
        while spot is not None:
            words += [spot.words] if spot.words else []
            spot = spot.before
        return tuple(reversed(words))


class StateMap:
    """The states of a definition found so far."""

    def __init__(self, definition: Definition) -> None:
        self.definition, self.questions = abstracted(definition)
        self.plan = Plan(self.definition)
        self.counted = counted_places(self.plan)
        self.oracle = Oracle(self.questions)
        self.spots: list[MapPlace] = []
        self.keys: dict[Hashable, int] = {}
        self.reached: dict[str, MapPlace] = {}
        """Places that were begun, each with the nearest state in which they are active."""
        self.passed: set[str] = set()
        """Places that can end successfully."""
        self.failed: dict[str, dict[str, MapPlace]] = {}
        """Places that can fail without the failure of a step or an evaluation: the reasons, and the nearest state after each."""
        self.left_over: list[MapPlace] = []
        """Ends that leave tokens behind."""
        self.recursive = frozenset(place.name for place in self.plan.outline if _is_recursive(place, definition))
        """Places that start the definition's own workflow and wait for it."""
        self.ends_at_once = False
        """Whether the first transition can be the last."""
        self.work = 0
        """The number of tokens visited."""
        self.bound = ""
        """The bound that stopped the exploration; empty if it is complete."""

    def load(self, state: ExploredState) -> tuple[ExploredRun, tuple[Effect, ...]]:
        """Return an interpreter in this state and its effects."""
        self.work += len(state.tokens)
        run = ExploredRun(self.plan, state, self.oracle)
        self.oracle.begin(())
        effects = run.handle(Began(), 0).effects
        run.settle()
        run.entered.clear()
        run.is_loaded = True
        return run, effects

    def results(self, state: ExploredState, move: ExploredMove | None) -> Iterator[_Result]:
        """Iterate over the results of a move, one per combination of answers; without a move, the results of the start."""
        tapes: list[tuple[int, ...]] = [()]
        while tapes:
            tape = tapes.pop()
            is_recursive = False
            run = ExploredRun(self.plan, state, self.oracle) if move is None else self.load(state)[0]
            self.oracle.begin(tape)
            if move is None:
                came = run.handle(Began(), 0)
            else:
                is_recursive = move.how == "completes" and run.tokens[move.token_id].place.name in self.recursive
                came = make(run, move)
            tapes += reversed([*self.oracle.others()])
            yield self._result(state, move, run, came, is_recursive=is_recursive)

    def _result(
        self, state: ExploredState, move: ExploredMove | None, run: ExploredRun, came: Transition, *, is_recursive: bool
    ) -> _Result:
        given = self.oracle.given
        after, ended = state.after(came.mutations, self.counted)
        told = [*([] if move is None else [move.words]), *map(str, given)]
        words = "; ".join(each for each in told if each)
        is_failure = (move is not None and move.is_failure) or any(answer.is_failure for answer in given)
        is_end = any(isinstance(effect, End) for effect in came.effects)
        return _Result(run, after, ended, words, is_failure, is_end, is_recursive)

    def note(self, result: _Result, before: MapPlace | None) -> bool:
        """Add a result to the map. Return whether it is new."""
        spot = MapPlace(len(self.spots), result.state, before, result.words)
        self._note_places(result, spot)
        key = None if result.is_end else key_of_run(result.run)
        number = None if key is None else self.keys.setdefault(key, spot.number)
        if before is not None:
            before.ways.append(Way(number, result.is_failure, result.is_recursive))
        elif number is None:
            self.ends_at_once = True
        if number is None and (result.state.tokens or result.run.tokens):
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
    """Explore a definition until no state is new or a bound is reached."""
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
    run, effects = found.load(spot.state)
    moves = moves_of(run, effects)
    spot.is_stuck = not moves
    tried: set[str] = set()
    for token_id, own in moves.items():
        if any(move.is_interrupt for move in own):
            continue
        results = [result for move in own for result in found.results(spot.state, move)]
        tried.add(token_id)
        is_local = all(result.is_failure or _is_local(run, run.tokens[token_id], result.run) for result in results)
        is_new = [found.note(result, spot) for result in results]
        if is_local and any(is_new):
            around = {token.id for token in _around(run.tokens[token_id])}
            _note_all(found, spot, [move for each, other in moves.items() if each in around for move in other])
            return
    _note_all(found, spot, [move for token_id, own in moves.items() if token_id not in tried for move in own])


def _note_all(found: StateMap, spot: MapPlace, moves: list[ExploredMove]) -> None:
    for move in moves:
        for result in found.results(spot.state, move):
            found.note(result, spot)


def _around(token: LiveToken) -> Iterator[LiveToken]:
    """Return the token's frames, innermost first."""
    frame = token.parent
    while frame is not None:
        yield frame
        frame = frame.parent


def _is_local(before: ExploredRun, token: LiveToken, after: ExploredRun) -> bool:
    """Return whether a token's move changed no other token except its frames."""
    own = {token.id, *(frame.id for frame in _around(token))}
    for other in before.tokens.values():
        if other.id in own or is_dormant(other):
            continue
        there = after.tokens.get(other.id)
        if there is None or row_of(before.plan, there) != row_of(before.plan, other):
            return False
    return True


MAX_STATES, MAX_DEPTH = 4_000, 4_000
"""Enough for definitions that people can read, and at most a few seconds of work."""

FaultKind = Literal["dead", "deadlock", "livelock", "improper"]


class Fault(PlainRecord, frozen=True):
    """A defect of a definition's control flow."""

    kind: FaultKind
    """``dead``: the node is never begun. ``deadlock``: no move is left, or a join can never pass. ``livelock``: no end can be
    reached. ``improper``: the execution ends and leaves something behind.
    """
    node: str
    """The name of the node."""
    message: str
    where: str
    """The node's position in the document."""
    path: tuple[str, ...] = ()
    """The moves that lead there; for a dead node, to the place before it."""

    def __str__(self) -> str:
        way = f"; after: {', '.join(self.path)}" if self.path else ""
        return f"{self.where}: {self.message}{way}"


class Exploration(PlainRecord, frozen=True):
    """The result of an exploration."""

    faults: tuple[Fault, ...]
    states: int
    """The number of distinct states."""
    bound: str = ""
    """The bound that stopped it. Dead nodes are then not reported, since not every state was seen."""

    @property
    def is_complete(self) -> bool:
        """Return whether every state was seen."""
        return not self.bound

    def findings(self, definition: Definition) -> Findings:
        """Return the faults as findings of the document checker."""
        outline = Outline(definition)
        for fault in self.faults:
            way = f"\nafter: {', '.join(fault.path)}" if fault.path else ""
            yield Finding(outline[fault.node].path, f"{fault.kind}: {fault.message}{way}")


def explore(definition: Definition, *, max_states: int = MAX_STATES, max_depth: int = MAX_DEPTH) -> Exploration:
    """Explore everything that can happen in a definition, without running it, and return the faults found.

    If a limit is reached, ``bound`` of the result names it, and no node is called dead.

    - ``definition``: a definition without faults that the checker finds, as ``define`` and ``parse`` return it.
    - ``max_states``: stop after this many states.
    - ``max_depth``: stop at paths of this many events.
    """
    found = charted(definition, max_states, max_depth)
    outline = Outline(definition)
    faults = [*_improper(found, outline), *_stuck(found, outline), *_endless(found, outline), *_recursion(found, outline)]
    if not found.bound:
        faults += [*_unjoinable(found, outline), *_overrun(found, outline), *_dead(found, outline)]
    order = {name: number for number, name in enumerate(outline.places)}
    return Exploration(tuple(sorted(faults, key=lambda fault: order[fault.node])), len(found.spots), found.bound)


def check(
    definition: Definition,
    *,
    steps: Collection[str] | None = None,
    workflows: Collection[str] | None = None,
    max_states: int = MAX_STATES,
) -> tuple[Problem, ...]:
    """Return every fault of a definition: those of the checker, and if there are none, those of the exploration.

    - ``definition``: the definition.
    - ``steps``, ``workflows``: known names; any other name is then a fault. None accepts every name.
    - ``max_states``: explore at most this many states.
    """
    problems = check_statically(definition, steps=steps, workflows=workflows)
    if problems:
        return problems
    findings = explore(definition, max_states=max_states).findings(definition)
    return tuple(Problem(InvalidDefinition.code, finding.message, shown_path(finding.path)) for finding in findings)


def _fault(kind: FaultKind, place: Place, message: str, path: tuple[str, ...]) -> Fault:
    return Fault(kind, place.name, message, shown_path(place.path), path)


def _improper(found: StateMap, outline: Outline) -> Iterator[Fault]:
    for spot in found.left_over[:1]:
        yield _fault("improper", outline.root, "the execution ends while something in it still runs", spot.path())


def _stuck(found: StateMap, outline: Outline) -> Iterator[Fault]:
    """Return states without a move, one for each waiting node."""
    told: set[str] = set()
    for spot in found.spots:
        if not spot.is_stuck:
            continue
        run, _ = found.load(spot.state)
        waits = next((token for token in run.tokens.values() if "left" in token.value), None)
        place = outline[(waits or [*run.tokens.values()][-1]).place.name]
        if place.name not in told:
            told.add(place.name)
            what = "an edge that is never decided" if waits else "what never comes"
            yield _fault("deadlock", place, f"nothing can happen any more: {place.name!r} waits for {what}", spot.path())


def _unjoinable(found: StateMap, outline: Outline) -> Iterator[Fault]:
    for place in outline:
        if isinstance(place.node, Parallel | Each | Graph) and place.name in found.failed and place.name not in found.passed:
            path = next(iter(found.failed[place.name].values())).path()
            yield _fault("deadlock", place, f"{place.name!r} can never come together: it always fails", path)


def _overrun(found: StateMap, outline: Outline) -> Iterator[Fault]:
    """Return loops that always exceed their bound."""
    for place in outline:
        ways = found.failed.get(place.name, {})
        if isinstance(place.node, Loop) and "TooManyIterations" in ways and place.name not in found.passed:
            message = f"loop {place.name!r} never ends by itself: it goes on until its bound, and fails"
            yield _fault("livelock", place, message, ways["TooManyIterations"].path())


def _endless(found: StateMap, outline: Outline) -> Iterator[Fault]:
    """Return loops in states from which only a failure leads to an end."""
    lost = _lost(found)
    told: set[str] = set()
    for spot in lost:
        run, _ = found.load(spot.state)
        for token in run.tokens.values():
            name = token.place.name
            if is_endless(token.place.node) and token.parent is not None and name not in found.passed | told:
                told.add(name)
                yield _fault("livelock", outline[name], f"loop {name!r} goes on and on, and nothing in it ends it", spot.path())
    if lost and not told:
        yield _fault("livelock", outline.root, "it goes on and on without an end", lost[0].path())


def _recursion(found: StateMap, outline: Outline) -> Iterator[Fault]:
    """Return the first place that calls the definition's own workflow, if no execution ends without such a call."""
    calls = [name for name in outline.places if name in found.recursive and name in found.reached]
    if not calls or found.ends_at_once:
        return
    pending = [spot.number for spot in found.spots if spot.before is None]
    seen = set(pending)
    while pending:
        spot = found.spots[pending.pop()]
        targets = [way.target for way in spot.ways if not way.is_failure and not way.is_recursive]
        if spot.is_open or None in targets:
            return
        fresh = [number for number in targets if number is not None and number not in seen]
        seen.update(fresh)
        pending += fresh
    message = f"{calls[0]!r} starts this workflow again, and no execution of it ends without that: the recursion has no end"
    yield _fault("livelock", outline[calls[0]], message, found.reached[calls[0]].path())


def _is_recursive(place: Place, definition: Definition) -> bool:
    node = place.node
    if not isinstance(node, Subworkflow) or node.is_detached:
        return False
    return node.workflow == definition.name and node.version in (None, definition.version)


def _lost(found: StateMap) -> list[MapPlace]:
    back: dict[int, list[int]] = {}
    homely: list[int] = []
    for spot in found.spots:
        targets = [way.target for way in spot.ways if not way.is_failure]
        if spot.is_open or spot.is_stuck or None in targets:
            homely.append(spot.number)
        for number in targets:
            if number is not None:
                back.setdefault(number, []).append(spot.number)
    reaches = set(homely)
    while homely:
        fresh = [number for number in back.get(homely.pop(), ()) if number not in reaches]
        reaches.update(fresh)
        homely += fresh
    return [spot for spot in found.spots if spot.number not in reaches]


def _dead(found: StateMap, outline: Outline) -> Iterator[Fault]:
    """Return the outermost places that are never begun."""
    alive = set(found.reached)
    for place in reversed([*outline]):
        if place.name in alive and place.parent is not None:
            alive.add(place.parent.name)
    for place in outline:
        is_outermost = place.parent is None or place.parent.name in alive
        if place.name in alive or not is_outermost or place.slot == "compensate":
            continue
        reason, near = _reason(place)
        if not isinstance(place.parent and place.parent.node, Sequence) or (
            near and near.name in alive
        ):  # else the enclosing place is reported
            path = found.reached[near.name].path() if near is not None and near.name in found.reached else ()
            yield _fault("dead", place, f"{place.name!r} is never begun: {reason}", path)


def _reason(place: Place) -> tuple[str, Place | None]:
    """Return why a place is never begun, and the nearest place that is."""
    around = place.parent
    match around.node if around is not None else None:
        case Sequence():
            assert around is not None  # noqa: S101 - it has a node
            before = around.children[str(int(place.slot) - 1)] if place.slot != "0" else around
            return f"{before.name!r} before it never ends well", before
        case Choice():
            is_last = place.slot == "otherwise"
            return ("a case before it always holds" if is_last else "its condition never holds, or a case before it does"), around
        case Graph():
            return "no edge to it is ever taken", around
        case Loop() | Each():
            return "there is never a first round", around
        case _:
            return "nothing leads to it", around
