"""What may stand for a node, a span or a value when a definition is built in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import UNSET, UnsetType

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidDefinition
from stepwell.flow.node import Node, StepNode
from stepwell.flow.node import Sequence as SequenceNode
from stepwell.model.value import Value, canonical

__all__ = ["Nodelike", "Steplike", "as_node", "as_seconds", "as_step", "as_value", "body_of", "step_name"]

Steplike = StepNode | str | Callable[..., Any]
"""A step node, the name of a step, or a decorated step function."""

Nodelike = Node | str | Callable[..., Any]
"""A node, the name of a step, or a decorated step function."""

_NODES = cast("tuple[type[Node], ...]", Node.__args__)


def step_name(step: object) -> str:
    """The name of a step or workflow: given as such, or that of a decorated function."""
    name = step if isinstance(step, str) else getattr(step, "name", None)
    if isinstance(name, str) and name:
        return name
    hint = "; decorate the function, or give the name it was registered under" if callable(step) else ""
    raise InvalidDefinition(f"{step!r} is neither a step nor the name of one{hint}")


def as_node(thing: Nodelike) -> Node:
    """A node, or the step that a name or a decorated function stands for."""
    return thing if isinstance(thing, _NODES) else StepNode(uses=step_name(thing))


def as_step(thing: Steplike | None) -> StepNode | None:
    """A step, or None."""
    if thing is None or isinstance(thing, StepNode):
        return thing
    return StepNode(uses=step_name(thing))


def body_of(nodes: Sequence[Nodelike]) -> Node:
    """One node as it is; several, or none, as a sequence."""
    return as_node(nodes[0]) if len(nodes) == 1 else SequenceNode(nodes=tuple(as_node(node) for node in nodes))


def as_seconds(span: Span | None, what: str) -> float | None:
    """A span in seconds, or None."""
    return None if span is None else seconds_of(span, what)


def as_value(value: Value | UnsetType, what: str) -> Value | UnsetType:
    """The value itself; ``InvalidInput`` if it is none that can be stored."""
    if value is not UNSET:
        canonical(value, what=what)
    return value
