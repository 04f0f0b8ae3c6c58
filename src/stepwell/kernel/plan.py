"""A definition compiled for running: its outline, and what each place needs to know about the enclosing places.

Compiled once per definition and shared by all its executions; immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from stepwell.flow.definition.node import Action, Approval, Definition, Each, Edge, Graph, Loop, Sequence, Signal, Wait
from stepwell.flow.definition.outline import Outline, Place
from stepwell.flow.definition.reference_checks import references_in
from stepwell.flow.language.template import StateKey, state_keys

__all__ = ["EdgeIndex", "Plan", "key_of"]

At = tuple[int, ...]
"""The iteration or instance of each enclosing loop, outermost first."""


class EdgeIndex:
    """The edges of a graph by their ends."""

    __slots__ = ("degree", "into", "out", "sinks", "starts")

    def __init__(self, graph: Graph) -> None:
        self.out: dict[str, list[Edge]] = {slot: [] for slot in graph.nodes}
        self.degree: dict[str, int] = dict.fromkeys(graph.nodes, 0)
        for edge in graph.edges:
            self.out[edge.source].append(edge)
            self.degree[edge.target] += 1
        self.starts: list[str] = list(graph.start) or [slot for slot, count in self.degree.items() if not count]
        self.sinks: list[str] = [slot for slot, edges in self.out.items() if not edges]


class Plan:
    """A definition compiled for running."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.outline = Outline(definition)
        self.root = self.outline.root
        self.places = self.outline.places
        self.rounds: dict[str, tuple[Place, ...]] = {}
        """The loops and multiple instances around each place, outermost first."""
        self.numbers: dict[str, int] = {place.name: number for number, place in enumerate(self.outline)}
        """The number of each place in document order."""
        self._edges: dict[str, EdgeIndex] = {}
        self._lay_out()

    def _lay_out(self) -> None:
        for place in self.outline:  # document order visits an enclosing place before its inner ones
            around = place.parent
            if around is None:
                self.rounds[place.name] = ()
            else:
                own = (around,) if isinstance(around.node, Loop | Each) else ()
                self.rounds[place.name] = self.rounds[around.name] + own

    def edges(self, place: Place) -> EdgeIndex:
        """Return the edges of a graph, indexed once."""
        found = self._edges.get(place.name)
        if found is None:
            assert isinstance(place.node, Graph)  # noqa: S101 - asked for graphs only
            found = self._edges[place.name] = EdgeIndex(place.node)
        return found

    @cached_property
    def state_keys(self) -> tuple[StateKey, ...]:
        """The keys of scoped state that the definition reads; the driver loads them before each event."""
        return state_keys(asked.reference for asked in references_in(self.outline))

    @cached_property
    def loops_asked(self) -> Mapping[str, frozenset[str]]:
        """The loops that each place, or a place inside it, reads by name."""
        found: dict[str, set[str]] = {}
        for asked in references_in(self.outline):
            root, *names = asked.reference.path
            if root == "loops" and asked.place is not None:
                wanted = {names[0]} if names and isinstance(names[0], str) else self.loops
                for place in (asked.place, *asked.place.ancestors()):
                    found.setdefault(place.name, set()).update(wanted)
        return {name: frozenset(wanted) for name, wanted in found.items()}

    @cached_property
    def loops(self) -> frozenset[str]:
        """The names of all loops and multiple instances."""
        return frozenset(place.name for place in self.outline if isinstance(place.node, Loop | Each))

    @cached_property
    def leaves(self) -> tuple[Place, ...]:
        """The places that run or wait, without compensations."""
        kinds = Action | Wait | Signal | Approval
        return tuple(place for place in self.outline if isinstance(place.node, kinds) and place.slot != "compensate")


def key_of(place: Place, at: At) -> str:
    """Return the key of a place's record: its name, and in brackets the number of each enclosing iteration."""
    return place.name + "[%d]" * len(at) % at if at else place.name


def last_of(place: Place) -> Place:
    """Return the place whose output is this place's output: for a sequence its last node, for any other the place itself."""
    while isinstance(place.node, Sequence) and place.children:
        place = place.children[str(len(place.children) - 1)]
    return place
