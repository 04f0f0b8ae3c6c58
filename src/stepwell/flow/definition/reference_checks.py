"""Check that paths in templates and conditions can be resolved: known names, and nodes that have ended by then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import UNSET

from stepwell.flow.definition.findings import Finding, Findings
from stepwell.flow.definition.node import Action, Approval, Choice, Deferred, Each, Graph, Loop, Sequence, StepNode, Wait
from stepwell.flow.definition.outline import Outline, Path, Place
from stepwell.flow.definition.structure_checks import predecessors_of
from stepwell.flow.language.errors import listed, suggest
from stepwell.flow.language.expression import Reference, compile_expression
from stepwell.flow.language.template import parts_of, state_fault, texts_of
from stepwell.model.value import Value

__all__ = ["LocatedReference", "reference_findings", "references_in"]

_STEP_FIELDS = ("output", "status", "error", "node_id", "node_name", "executed_at", "duration_ms")
_LOOP_FIELDS = ("current_index", "current_item", "total_items", "loop_id")


class LocatedReference(NamedTuple):
    """A reference in a definition."""

    reference: Reference
    path: Path
    """The position of its text in the document."""
    offset: int
    """The position of the reference in the text."""
    place: Place | None
    """The node that reads it; None for the definition's output."""
    after: Place | None = None
    """The inner node that has ended by then: a loop's body, or the source of an edge."""
    has_item: bool = False
    """Whether the node itself provides an item and an index here."""


def references_in(outline: Outline) -> Iterator[LocatedReference]:
    """Iterate over every reference of a definition."""
    for place in outline:
        yield from _asked_by(place)
    yield from _in_value(outline.definition.output, ("output",), None)


def _asked_by(place: Place) -> Iterator[LocatedReference]:
    node, path = place.node, place.path
    match node:
        case Action():
            yield from _in_value(node.args, (*path, "with"), place)
            if isinstance(node, StepNode):
                yield from _in_value(node.key, (*path, "key"), place)
                yield from _in_value(node.summary, (*path, "summary"), place)
        case Choice():
            for index, case in enumerate(node.cases):
                yield from _in_condition(case.when, (*path, "choice", index, "when"), place)
        case Loop():
            yield from _asked_by_loop(place, node)
        case Each():
            yield from _in_value(node.items, (*path, "items"), place)
            yield from _in_value(node.count, (*path, "count"), place)
        case Graph():
            for index, edge in enumerate(node.edges):
                here = (*path, "edges", index, "when")
                yield from _in_condition(edge.when, here, place, after=place.children.get(edge.source))
        case Wait():
            yield from _in_value(node.time, (*path, "wait"), place)
        case Approval():
            parts = (("approval", node.title), ("details", node.details), ("approvers", list(node.approvers)))
            more = (("default", node.default), ("escalate_to", list(node.escalate_to)))
            for key, value in (*parts, *more):
                yield from _in_value(value, (*path, key), place)
        case _:
            pass


def _asked_by_loop(place: Place, node: Loop) -> Iterator[LocatedReference]:
    path, body = place.path, place.children["do"]
    yield from _in_value(node.items, (*path, "items"), place)
    yield from _in_value(node.count, (*path, "count"), place)
    if node.range is not None:
        for key, value in (("start", node.range.start), ("stop", node.range.stop), ("step", node.range.step)):
            yield from _in_value(value, (*path, "range", key), place)
    yield from _in_condition(node.while_, (*path, "while"), place, has_item=True)
    yield from _in_condition(node.until, (*path, "until"), place, after=body, has_item=True)
    yield from _in_condition(node.break_when, (*path, "break_when"), place, after=body, has_item=True)


def _in_value(value: Value, path: Path, place: Place | None) -> Iterator[LocatedReference]:
    if value is UNSET:
        return
    for here, text in texts_of(value, path):
        for part in parts_of(text):
            for reference in part.expression.references:
                yield LocatedReference(reference, here, part.offset + reference.position, place)


def _in_condition(
    text: str | None, path: Path, place: Place, *, after: Place | None = None, has_item: bool = False
) -> Iterator[LocatedReference]:
    if text is not None:
        for reference in compile_expression(text).references:
            yield LocatedReference(reference, path, reference.position, place, after, has_item)


def reference_findings(outline: Outline) -> Findings:
    """Iterate over every reference that can never be resolved."""
    predecessors: dict[tuple[str, str], set[str]] = {}
    for asked in references_in(outline):
        message, unknown = _fault(asked, outline, predecessors)
        if message:
            yield Finding(asked.path, message, asked.offset, unknown)


def _fault(asked: LocatedReference, outline: Outline, predecessors: dict[tuple[str, str], set[str]]) -> tuple[str, str]:
    path = asked.reference.path
    match path[0]:
        case "item" | "index":
            return _item_fault(asked), ""
        case "state":
            return state_fault(path), ""
        case "steps" | "loops" if len(path) > 1 and path[1] is not None:
            return _place_fault(asked, outline, predecessors)
        case _:
            return "", ""


def _item_fault(asked: LocatedReference) -> str:
    word = asked.reference.path[0]
    if asked.has_item or any(_is_given(place, str(word)) for place in _trail(asked.place)):
        return ""
    return f"there is no {word} here: it is known only inside a loop or each"


def _is_given(place: Place, word: str) -> bool:
    """Return whether an enclosing node provides an item or index; a deferred choice has no item after its timeout."""
    match place.parent:
        case Place(node=Loop() | Each()):
            return True
        case Place(node=Deferred()):
            return word == "item" and place.slot != "on_timeout"
        case _:
            return False


def _place_fault(asked: LocatedReference, outline: Outline, predecessors: dict[tuple[str, str], set[str]]) -> tuple[str, str]:
    """Return what is wrong with a path to a node, and the name in it if that is unknown."""
    root, name, *rest = asked.reference.path
    target = outline.places.get(str(name))
    is_loop = root == "loops"
    names: Iterable[str] = (place.name for place in outline if not is_loop or isinstance(place.node, Loop | Each))
    if target is None or (is_loop and not isinstance(target.node, Loop | Each)):
        known = list(names)
        hint = suggest(str(name), known) or (f"; there are {listed(known)}" if known else "")
        return f"there is no {'loop' if is_loop else 'node'} {name!r}{hint}", str(name)
    fields = _LOOP_FIELDS if is_loop else _STEP_FIELDS
    if rest and isinstance(rest[0], str) and rest[0] not in fields:
        return f"{root}.{name} has no {rest[0]!r}{suggest(rest[0], fields)}; it has {', '.join(fields)}", ""
    return ("" if is_loop else _order_fault(asked, target, predecessors)), ""


def _order_fault(asked: LocatedReference, target: Place, predecessors: dict[tuple[str, str], set[str]]) -> str:
    """Return why a node cannot have an output when it is read, or an empty text."""
    asking = _trail(asked.place)
    trail = _trail(target)
    instances = next((place for place in trail[:-1] if isinstance(place.node, Each) and place not in asking), None)
    if instances is not None:
        return f"{target.name!r} runs once for each instance of {instances.name!r}; ask for steps.{instances.name}.output"
    if asked.reference.is_guarded or asked.place is None:
        return ""
    if target.slot == "compensate" and target.parent is not None and isinstance(target.parent.node, Action):
        return f"{target.name!r} runs only to undo {target.parent.name!r}; guard it with ?? or exists"
    shared = sum(1 for one, other in zip(asking, trail, strict=False) if one is other)
    if shared == len(trail):
        return _unfinished_fault(asked, target)
    if shared == len(asking):
        return _inner_fault(asked, target, trail[shared], predecessors)
    return _beside_fault(asking[shared - 1], asking[shared], trail[shared], target, predecessors)


def _trail(place: Place | None) -> list[Place]:
    """Return the places from the root down to this one."""
    return [] if place is None else [*reversed([*place.ancestors()]), place]


def _unfinished_fault(asked: LocatedReference, target: Place) -> str:
    """Check a node that reads its own output or an enclosing node's; only a compensation may."""
    is_undoing = asked.place is not None and asked.place.parent is target and isinstance(target.node, Action)
    return "" if is_undoing else f"{target.name!r} is not done yet when this is asked"


def _inner_fault(asked: LocatedReference, target: Place, inner: Place, predecessors: dict[tuple[str, str], set[str]]) -> str:
    """Check a node that reads an inner node's output: allowed after a loop's body, or for an edge from its source on."""
    if inner is asked.after:
        return ""
    if asked.after is not None and asked.place is not None and isinstance(asked.place.node, Graph):
        return _graph_fault(asked.place, asked.after, inner, target, predecessors)
    return f"{target.name!r} has not run yet when this is first asked; guard it with ?? or exists"


def _beside_fault(parent: Place, asking: Place, inner: Place, target: Place, predecessors: dict[tuple[str, str], set[str]]) -> str:
    """Check two nodes inside different children of one node."""
    match parent.node:
        case Sequence():
            return "" if int(inner.slot) < int(asking.slot) else f"{target.name!r} runs only after this"
        case Graph():
            return _graph_fault(parent, asking, inner, target, predecessors)
        case Choice(mode="first"):
            return f"{target.name!r} is in another case of {parent.name!r}: it does not run when this does"
        case _:
            return f"{target.name!r} is in another branch of {parent.name!r} and may not be done; guard it with ?? or exists"


def _graph_fault(graph: Place, asking: Place, inner: Place, target: Place, predecessors: dict[tuple[str, str], set[str]]) -> str:
    key = (graph.name, asking.slot)
    if key not in predecessors and isinstance(graph.node, Graph):
        predecessors[key] = predecessors_of(graph.node, asking.slot)
    return "" if inner.slot in predecessors[key] else f"no edges lead from {target.name!r} to {asking.name!r}: it may not be done"
