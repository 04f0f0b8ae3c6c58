"""How far a run of a definition is: what is on record, what is still to come, and which part of the whole that is.

The definition says what there is to do; records and tokens say where the run stands in it. What is left in a part that is on
record, and the branches that were not chosen, will not come any more. A loop or an ``each`` that has begun has told how often it
goes round; one that goes on until something happens has not, so each round brings it nearer to its end and none is the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from stepwell.flow.definition.node import Choice, Deferred, Each, Loop, Range
from stepwell.flow.definition.outline import Place
from stepwell.kernel.plan import Plan, key_of
from stepwell.model.record import LoopContext, StepOutput, Token

__all__ = ["Estimate", "estimate_of"]

At = tuple[int, ...]
Spot = tuple[str, At]
"""A place in one round of the loops around it."""


class Estimate(NamedTuple):
    """Of a part of a run: steps and waits on record, those still to come as far as is known, and the share that is over."""

    done: int
    left: int
    share: float


def estimate_of(plan: Plan, steps: Mapping[str, StepOutput], tokens: Iterable[Token], loops: Mapping[str, LoopContext]) -> Estimate:
    """How far a run is, by its records, its tokens and where its loops stand."""
    return _Reckoning(plan, steps, tokens, loops).of(plan.root, ())


class _Reckoning:
    def __init__(
        self, plan: Plan, steps: Mapping[str, StepOutput], tokens: Iterable[Token], loops: Mapping[str, LoopContext]
    ) -> None:
        self._plan, self._loops = plan, loops
        self._leaves = {place.name for place in plan.leaves}
        self._recorded: set[Spot] = set()
        self._begun: set[Spot] = set()
        self._inside: Counter[Spot] = Counter()
        """How many steps and waits inside of a spot are on record."""
        self._round: dict[Spot, int] = {}
        """The newest round of a loop, or the last instance that has begun."""
        self._instances: dict[Spot, int] = {}
        self._weights: dict[str, int] = {}
        for key, step in steps.items():
            place = plan.places.get(step.node_name)
            if place is not None:
                self._note(place, _at(key, place), is_recorded=True)
        for token in tokens:
            place = plan.places[token.node]
            value: dict[str, Any] = token.value
            self._note(place, tuple(value["at"]), is_recorded=False)
            if "total" in value:
                self._instances[place.name, tuple(value["at"])] = value["total"]

    def _note(self, place: Place, at: At, *, is_recorded: bool) -> None:
        if place.slot == "compensate":
            return
        if is_recorded:
            self._recorded.add((place.name, at))
        for each in (place, *place.ancestors()):
            spot = each.name, at[: len(self._plan.rounds[each.name])]
            self._begun.add(spot)
            self._inside[spot] += is_recorded and place.name in self._leaves
            if len(at) > len(spot[1]):
                self._round[spot] = max(self._round.get(spot, 0), at[len(spot[1])])

    def of(self, place: Place, at: At) -> Estimate:
        """How far a place is in one round of the loops around it."""
        spot = place.name, at
        if spot in self._recorded:
            return Estimate(self._inside[spot], 0, 1.0)  # over, whether all in it was done or not
        if spot not in self._begun or place.name in self._leaves:
            return Estimate(0, self._weight(place), 0.0)
        children = _children(place)
        match place.node:
            case Choice() | Deferred():
                chosen = [child for child in children if (child.name, at) in self._begun]
                return self._together(chosen, at) if chosen else Estimate(0, self._weight(place), 0.0)
            case Loop():
                return self._loop(place, at, children[0])
            case Each():
                return self._each(spot, children[0])
            case _:
                return self._together(children, at)

    def _together(self, children: list[Place], at: At) -> Estimate:
        parts = [self.of(child, at) for child in children]
        weights = [self._weight(child) for child in children]
        shares = sum(weight * part.share for weight, part in zip(weights, parts, strict=True))
        return Estimate(sum(part.done for part in parts), sum(part.left for part in parts), shares / (sum(weights) or 1))

    def _loop(self, place: Place, at: At, body: Place) -> Estimate:
        spot, told = (place.name, at), self._loops.get(key_of(place, at))
        number, rounds = self._round.get(spot, 0), None if told is None else told.total_items
        now = self.of(body, (*at, number))
        made = number + now.share
        if rounds is None:
            return Estimate(self._inside[spot], now.left, made / (made + 1))
        more = max(rounds - 1 - number, 0) * self._weight(body)
        return Estimate(self._inside[spot], now.left + more, min(made / rounds, 1.0) if rounds else 1.0)

    def _each(self, spot: Spot, body: Place) -> Estimate:
        # The token has the number of instances; of a run that failed it is gone, and those count that have begun.
        count = self._instances.get(spot, self._round.get(spot, -1) + 1)
        parts = [self.of(body, (*spot[1], number)) for number in range(count)]
        share = sum(part.share for part in parts) / count if count else 0.0
        return Estimate(self._inside[spot], sum(part.left for part in parts), share)

    def _weight(self, place: Place) -> int:
        """How many steps and waits a place comes to, as far as the definition says: one branch of a choice, and rounds that are
        counted in it."""
        if place.name in self._leaves:
            return 1
        if place.name not in self._weights:
            weights = [self._weight(child) for child in _children(place)]
            is_one_of = isinstance(place.node, Deferred) or (isinstance(place.node, Choice) and place.node.mode == "first")
            self._weights[place.name] = max(weights, default=0) if is_one_of else sum(weights) * _written_rounds(place)
        return self._weights[place.name]


def _children(place: Place) -> list[Place]:
    return [child for child in place.children.values() if child.slot != "compensate"]


def _at(key: str, place: Place) -> At:
    """The rounds that a record's key tells: its name, and in brackets a number for each."""
    return tuple(int(number) for number in key[len(place.name) + 1 : -1].split("][") if number)


def _written_rounds(place: Place) -> int:
    """How often a loop goes round, if its definition says so in numbers; else it counts once."""
    node = place.node
    if not isinstance(node, Loop | Each):
        return 1
    if isinstance(node.count, int):
        return node.count
    if isinstance(node.items, list):
        return len(cast("list[object]", node.items))
    match node.range if isinstance(node, Loop) else None:
        case Range(start=int() as start, stop=int() as stop, step=int() as step) if step:
            return len(range(start, stop, step))
        case _:
            return 1
