"""A definition's nodes laid out flat: each with its name, its place in the tree, and what it is given without being told.

Names are unique in a definition. A user's name is kept, and the key of a node in a graph is its name. A node without one is
named after the step, workflow or kind that it is; when that is taken, a number is added, in the order of the document. The
same definition gives the same names always.
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
"""Where something stands in a document: keys and indexes from the top."""

_ROOT_ARGS = "{{ trigger.input }}"
_ITEM_ARGS = "{{ item }}"


class Place:
    """A node in its place."""

    __slots__ = ("_forms", "children", "depth", "inherited", "name", "node", "parent", "path", "slot")

    def __init__(self, node: Node, path: Path, parent: Place | None, slot: str) -> None:
        self.node, self.path, self.parent, self.slot = node, path, parent, slot
        self.name = ""
        """Unique in the definition."""
        self.children: dict[str, Place] = {}
        """The nodes directly inside by slot, in the order of the document. A slot is the index in a sequence or choice, the name
        of a branch or of a graph's node, ``do``, ``otherwise``, ``on_timeout`` or ``compensate``."""
        self.depth = 1 if parent is None else parent.depth + 1
        self.inherited: Value = None
        """What the node is given if it does not say: see ``args``."""
        self._forms: dict[str, Template] = {}

    def __repr__(self) -> str:
        return f"<Place {self.name!r} {kind_word(self.node)}>"

    @property
    def kind(self) -> str:
        """The word of the node's kind."""
        return kind_word(self.node)

    @property
    def args(self) -> Template:
        """The template of an action's input.

        Without a ``with``, a node is given the output of the nearest node before it in its sequence that has one; the first is
        given what its container is: the item in a loop, an instance or a branch of a deferred choice, and in the end
        ``trigger.input``. A node of a graph is given its predecessor's output, or an object of them by name.
        """
        written = getattr(self.node, "args", UNSET)
        return self.form("args") if written is not UNSET else self._form("", self.inherited)

    def form(self, field: str) -> Template:
        """The compiled template of a field, made once."""
        return self._form(field, getattr(self.node, field))

    def _form(self, field: str, source: Value) -> Template:
        if field not in self._forms:
            self._forms[field] = compile_template(source)
        return self._forms[field]

    def ancestors(self) -> Iterator[Place]:
        """The places around this one, from the inside out."""
        place = self.parent
        while place is not None:
            yield place
            place = place.parent


class Outline:
    """All places of a definition, by name, in the order of the document."""

    __slots__ = ("definition", "duplicates", "places", "root")

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.root = Place(definition.root, ("do",), None, "do")
        in_order = _lay_out(self.root)
        self.duplicates = _name(in_order)
        """Places whose given name another place has already; a checked definition has none."""
        self.places: Mapping[str, Place] = {place.name: place for place in in_order}
        _inherit(self.root)

    def __getitem__(self, name: str) -> Place:
        return self.places[name]

    def __iter__(self) -> Iterator[Place]:
        return iter(self.places.values())

    def __len__(self) -> int:
        return len(self.places)


def kind_word(node: Node) -> str:
    """The word of a node's kind; a built-in step has its own."""
    builtin = builtin_of(node.uses) if isinstance(node, StepNode) else None
    return builtin.name if builtin else str(type(node).__struct_config__.tag)


def children_of(node: Node) -> Iterator[tuple[Path, str, Node]]:
    """The nodes directly inside a node: the path to each in a document, its slot, and the node."""
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
    """Every place in the order of the document. Not recursive: the depth is checked later, with all other faults."""
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
    """Give every place its name: first those that a user chose, so that none of the others takes one. Gives the duplicates."""
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
    numbers: dict[str, int] = {}
    for place in unnamed:
        place.name = _fresh(_natural_name(place.node), taken, numbers)
    return duplicates


def _natural_name(node: Node) -> str:
    if isinstance(node, StepNode):
        return node.uses.removeprefix(PREFIX) or "step"
    return (node.workflow if isinstance(node, Subworkflow) else "") or kind_word(node)


def _fresh(name: str, taken: set[str], numbers: dict[str, int]) -> str:
    """The name, or the name with the first number from 2 that makes it new."""
    fresh = name
    while fresh in taken:
        numbers[name] = numbers.get(name, 1) + 1
        fresh = f"{name}-{numbers[name]}"
    taken.add(fresh)
    return fresh


def _inherit(root: Place) -> None:
    """Work out for every place what it is given if it does not say."""
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
    if isinstance(place.node, Action):  # its only child undoes it, and is given what it gave
        before = _output_of(place)
    for slot, child in place.children.items():
        # Where no signal came in time, there is none to be the item.
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
        else:  # some of them may have been skipped
            child.inherited = {each.name: f"{{{{ {path_text(('steps', each.name, 'output'))} ?? null }}}}" for each in before}


def _has_output(node: Node) -> bool:
    """Whether what a node gives is meant for the next: a wait or a log hands on what it was given itself."""
    if isinstance(node, Wait):
        return False
    builtin = builtin_of(node.uses) if isinstance(node, StepNode) else None
    return builtin is None or builtin.has_output
