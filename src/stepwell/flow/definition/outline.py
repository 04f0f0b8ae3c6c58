"""Flatten a definition: every node with its unique name, its place in the tree and its default input.

Names are unique in a definition. A name that the user gave is kept, and the key of a node in a graph is its name. A node without
a name is named after its step, workflow or kind; if that is taken, a number is added, in document order. The same definition
always gives the same names: keys of stored records contain them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import UNSET

from stepwell.flow.definition.builtin_steps import PREFIX, builtin_of
from stepwell.flow.definition.node import (
    Action,
    CancelScopeNode,
    Choice,
    Deferred,
    Definition,
    Each,
    Graph,
    Loop,
    Node,
    Parallel,
    Sequence,
    StepNode,
    Subworkflow,
    Wait,
)
from stepwell.flow.language.expression import path_text
from stepwell.flow.language.template import Template, compile_template
from stepwell.model.value import Value

__all__ = ["Outline", "Path", "Place", "children_of", "kind_word"]

Path = tuple[str | int, ...]
"""A position in a document: keys and indexes from the top."""

_ROOT_ARGS = "{{ trigger.input }}"
_ITEM_ARGS = "{{ item }}"


class Place:
    """A node with its name, position and default input."""

    __slots__ = ("_forms", "children", "depth", "inherited", "name", "node", "parent", "path", "slot")

    def __init__(self, node: Node, path: Path, parent: Place | None, slot: str) -> None:
        self.node, self.path, self.parent, self.slot = node, path, parent, slot
        self.name = ""
        """Unique in the definition."""
        self.children: dict[str, Place] = {}
        """The nodes directly inside by slot, in document order. A slot is the index in a sequence or choice, the name of a branch
        or of a graph's node, ``do``, ``otherwise``, ``on_timeout`` or ``compensate``.
        """
        self.depth = 1 if parent is None else parent.depth + 1
        self.inherited: Value = None
        """The input of a node without ``with``: see ``args``."""
        self._forms: dict[str, Template] = {}

    def __repr__(self) -> str:
        return f"<Place {self.name!r} {kind_word(self.node)}>"

    @property
    def kind(self) -> str:
        """The keyword of the node's kind."""
        return kind_word(self.node)

    @property
    def args(self) -> Template:
        """The template of an action's input.

        Without ``with``, an action's input is the output of the nearest earlier node in its sequence that has an output. The
        first node of a sequence gets its container's input: the item in a loop, an instance or a deferred branch, and
        ``trigger.input`` at the top. A node of a graph gets its predecessor's output, or an object of several predecessors'
        outputs by name.
        """
        written = getattr(self.node, "args", UNSET)
        return self.form("args") if written is not UNSET else self._form("", self.inherited)

    def form(self, field: str) -> Template:
        """Return the compiled template of a field, compiled once."""
        return self._form(field, getattr(self.node, field))

    def _form(self, field: str, source: Value) -> Template:
        if field not in self._forms:
            self._forms[field] = compile_template(source)
        return self._forms[field]

    def ancestors(self) -> Iterator[Place]:
        """Iterate over the enclosing places, innermost first."""
        place = self.parent
        while place is not None:
            yield place
            place = place.parent


class Outline:
    """All places of a definition by name, in document order."""

    __slots__ = ("definition", "duplicates", "places", "root")

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.root = Place(definition.root, ("do",), None, "do")
        in_order = _lay_out(self.root)
        self.duplicates = _name(in_order)
        """Places whose given name is already taken; a checked definition has none."""
        self.places: Mapping[str, Place] = {place.name: place for place in in_order}
        _inherit(self.root)

    def __getitem__(self, name: str) -> Place:
        return self.places[name]

    def __iter__(self) -> Iterator[Place]:
        return iter(self.places.values())

    def __len__(self) -> int:
        return len(self.places)


def kind_word(node: Node) -> str:
    """Return the keyword of a node's kind; each built-in step has its own."""
    builtin = builtin_of(node.uses) if isinstance(node, StepNode) else None
    return builtin.name if builtin else str(type(node).__struct_config__.tag)


def children_of(node: Node) -> Iterator[tuple[Path, str, Node]]:
    """Iterate over the nodes directly inside a node: document path, slot and node."""
    match node:
        case Sequence():
            yield from ((("sequence", index), str(index), child) for index, child in enumerate(node.nodes))
        case Parallel() | Deferred():
            word = kind_word(node)
            yield from (((word, name), name, child) for name, child in node.branches.items())
            if isinstance(node, Deferred) and node.on_timeout is not None:
                yield ("on_timeout",), "on_timeout", node.on_timeout
        case Graph():
            yield from ((("graph", name), name, child) for name, child in node.nodes.items())
        case Choice():
            yield from ((("choice", index, "do"), str(index), case.do) for index, case in enumerate(node.cases))
            if node.otherwise is not None:
                yield ("otherwise",), "otherwise", node.otherwise
        case Loop() | Each() | CancelScopeNode():
            yield (kind_word(node),), "do", node.do
        case Action() if node.compensate is not None:
            yield ("compensate",), "compensate", node.compensate
        case _:
            pass


def _lay_out(root: Place) -> list[Place]:
    """Return every place in document order. Iterative, because the nesting depth is checked only later."""
    in_order: list[Place] = []
    pending = [root]
    while pending:
        place = pending.pop()
        in_order.append(place)
        place.children = {slot: Place(node, place.path + way, place, slot) for way, slot, node in children_of(place.node)}
        pending.extend(reversed(place.children.values()))
    return in_order


def _given_name(place: Place) -> str:
    if place.node.name:
        return place.node.name
    is_graph_node = place.parent is not None and isinstance(place.parent.node, Graph)
    return place.slot if is_graph_node else ""


def _name(in_order: list[Place]) -> list[Place]:
    """Name every place, user-given names first, so that no generated name takes one. Return the duplicates."""
    taken: set[str] = set()
    duplicates: list[Place] = []
    unnamed: list[Place] = []
    for place in in_order:
        name = _given_name(place)
        if name and name not in taken:
            taken.add(name)
            place.name = name
        else:
            unnamed.append(place)
            duplicates += [place] if name else []
    # Remember the last number per name: counting up from 2 for each of n equal names would take quadratic time.
    numbers: dict[str, int] = {}
    for place in unnamed:
        place.name = _fresh(_natural_name(place.node), taken, numbers)
    return duplicates


def _natural_name(node: Node) -> str:
    if isinstance(node, StepNode):
        return node.uses.removeprefix(PREFIX) or "step"
    return (node.workflow if isinstance(node, Subworkflow) else "") or kind_word(node)


def _fresh(name: str, taken: set[str], numbers: dict[str, int]) -> str:
    """Return the name, with the first free number from 2 added if it is taken."""
    fresh = name
    while fresh in taken:
        numbers[name] = numbers.get(name, 1) + 1
        fresh = f"{name}-{numbers[name]}"
    taken.add(fresh)
    return fresh


def _inherit(root: Place) -> None:
    """Compute the default input of every place."""
    root.inherited = _ROOT_ARGS
    pending = [root]
    while pending:
        place = pending.pop()
        if isinstance(place.node, Graph):
            _inherit_graph(place, place.node)
        else:
            _inherit_inside(place)
        pending.extend(place.children.values())


def _inherit_inside(place: Place) -> None:
    before = place.inherited
    if isinstance(place.node, Loop | Each | Deferred):
        before = _ITEM_ARGS
    if isinstance(place.node, Action):  # its only child is its compensation, whose input is the action's output
        before = _output_of(place)
    for slot, child in place.children.items():
        # After a timeout there is no signal whose value could be the item.
        is_late = isinstance(place.node, Deferred) and slot == "on_timeout"
        child.inherited = place.inherited if is_late else before
        if isinstance(place.node, Sequence) and _has_output(child.node):
            before = _output_of(child)


def _output_of(place: Place) -> str:
    return f"{{{{ {path_text(('steps', place.name, 'output'))} }}}}"


def _inherit_graph(place: Place, graph: Graph) -> None:
    sources: dict[str, list[str]] = {}
    for edge in graph.edges:
        sources.setdefault(edge.target, []).append(edge.source)
    for slot, child in place.children.items():
        before = [place.children[source] for source in dict.fromkeys(sources.get(slot, ())) if source in place.children]
        if not before:
            child.inherited = place.inherited
        elif len(before) == 1:
            child.inherited = _output_of(before[0])
        else:  # a skipped predecessor has no output
            child.inherited = {each.name: f"{{{{ {path_text(('steps', each.name, 'output'))} ?? null }}}}" for each in before}


def _has_output(node: Node) -> bool:
    """Return whether the next node should get this node's output. A wait or a log passes on its own input."""
    if isinstance(node, Wait):
        return False
    builtin = builtin_of(node.uses) if isinstance(node, StepNode) else None
    return builtin is None or builtin.has_output
