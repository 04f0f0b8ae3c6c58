"""Exploring a definition: what can become of it, found by driving the kernel itself through every outcome, without running a step.

A step may complete or fail, a signal may come, a time may pass, a condition over data may hold or not. What is constant is worked
out. ``explore`` reports what no run could want, each with the way that leads there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

from stepwell.errors import InvalidDefinition, Problem
from stepwell.flow.definition.checker import check as check_statically
from stepwell.flow.definition.findings import Finding, Findings, shown_path
from stepwell.flow.definition.node import Choice, Definition, Each, Graph, Loop, Parallel, Sequence
from stepwell.flow.definition.outline import Outline, Place
from stepwell.kernel.exploration_map import MapPlace, StateMap, charted
from stepwell.kernel.exploration_stand import is_endless

__all__ = ["MAX_DEPTH", "MAX_STATES", "Exploration", "Fault", "FaultKind", "check", "explore"]

MAX_STATES, MAX_DEPTH = 4_000, 4_000
"""Enough for definitions that people can read, and a few seconds of work at most."""

FaultKind = Literal["dead", "deadlock", "livelock", "improper"]


class Fault(msgspec.Struct, frozen=True):
    """Something that no run could want."""

    kind: FaultKind
    """``dead``: it is never begun. ``deadlock``: nothing can happen any more, or a join can never pass. ``livelock``: it goes on
    and on. ``improper``: the execution has ended, and something is left."""
    node: str
    """The name of the node."""
    message: str
    where: str
    """The node's place in the document."""
    path: tuple[str, ...] = ()
    """What happens until then; for what is never begun, until the place before it."""

    def __str__(self) -> str:
        way = f"; after: {', '.join(self.path)}" if self.path else ""
        return f"{self.where}: {self.message}{way}"


class Exploration(msgspec.Struct, frozen=True):
    """What was found."""

    faults: tuple[Fault, ...]
    states: int
    """How many different states were seen."""
    bound: str = ""
    """The bound that stopped it; then nothing is called dead, since it was not seen whole."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was seen."""
        return not self.bound

    def findings(self, definition: Definition) -> Findings:
        """The faults as the checker of documents tells them."""
        outline = Outline(definition)
        for fault in self.faults:
            way = f"\nafter: {', '.join(fault.path)}" if fault.path else ""
            yield Finding(outline[fault.node].path, f"{fault.kind}: {fault.message}{way}")


def explore(definition: Definition, *, max_states: int = MAX_STATES, max_depth: int = MAX_DEPTH) -> Exploration:
    """Explore a definition that has no other faults."""
    found = charted(definition, max_states, max_depth)
    outline = Outline(definition)
    faults = [*_improper(found, outline), *_stuck(found, outline), *_endless(found, outline)]
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
    """Every fault of a definition: those that can be seen, and if there are none, those that exploring it finds."""
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
    """Stands where nothing can happen, one for each node that waits."""
    told: set[str] = set()
    for spot in found.spots:
        if not spot.is_stuck:
            continue
        run, _ = found.load(spot.stand)
        waits = next((thread for thread in run.threads.values() if "left" in thread.value), None)
        place = outline[(waits or [*run.threads.values()][-1]).place.name]
        if place.name not in told:
            told.add(place.name)
            what = "an arrow that is never decided" if waits else "what never comes"
            yield _fault("deadlock", place, f"nothing can happen any more: {place.name!r} waits for {what}", spot.path())


def _unjoinable(found: StateMap, outline: Outline) -> Iterator[Fault]:
    for place in outline:
        if isinstance(place.node, Parallel | Each | Graph) and place.name in found.failed and place.name not in found.passed:
            path = next(iter(found.failed[place.name].values())).path()
            yield _fault("deadlock", place, f"{place.name!r} can never come together: it always fails", path)


def _overrun(found: StateMap, outline: Outline) -> Iterator[Fault]:
    """Loops that only their bound can stop, which is a failure."""
    for place in outline:
        ways = found.failed.get(place.name, {})
        if isinstance(place.node, Loop) and "TooManyIterations" in ways and place.name not in found.passed:
            message = f"loop {place.name!r} never ends by itself: it goes on until its bound, and fails"
            yield _fault("livelock", place, message, ways["TooManyIterations"].path())


def _endless(found: StateMap, outline: Outline) -> Iterator[Fault]:
    """Loops in stands from which no end can be reached, unless something fails."""
    lost = _lost(found)
    told: set[str] = set()
    for spot in lost:
        run, _ = found.load(spot.stand)
        for thread in run.threads.values():
            name = thread.place.name
            if is_endless(thread.place.node) and thread.parent is not None and name not in found.passed | told:
                told.add(name)
                yield _fault("livelock", outline[name], f"loop {name!r} goes on and on, and nothing in it ends it", spot.path())
    if lost and not told:
        yield _fault("livelock", outline.root, "it goes on and on without an end", lost[0].path())


def _lost(found: StateMap) -> list[MapPlace]:
    back: dict[int, list[int]] = {}
    homely: list[int] = []
    for spot in found.spots:
        targets = [number for number, is_failure in spot.ways if not is_failure]
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
    """The outermost places of which nothing is ever begun."""
    alive = set(found.reached)
    for place in reversed([*outline]):
        if place.name in alive and place.parent is not None:
            alive.add(place.parent.name)
    for place in outline:
        is_outermost = place.parent is None or place.parent.name in alive
        if place.name in alive or not is_outermost or place.slot == "compensate":
            continue
        reason, near = _reason(place)
        if not isinstance(place.parent and place.parent.node, Sequence) or (near and near.name in alive):  # else it is said already
            path = found.reached[near.name].path() if near is not None and near.name in found.reached else ()
            yield _fault("dead", place, f"{place.name!r} is never begun: {reason}", path)


def _reason(place: Place) -> tuple[str, Place | None]:
    """Why a place is not begun, and the place nearest to it that may be."""
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
            return "no arrow to it is ever taken", around
        case Loop() | Each():
            return "there is never a first round", around
        case _:
            return "nothing leads to it", around
