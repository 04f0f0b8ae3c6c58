"""What may stand for a node, a span or a value when a definition is built in Python.

Functions that build a definition in Python; they give the same tree as a document does.

    define(
        "checkout",
        call("reserve", {"order": "{{ trigger.input }}"}, compensate=call("release")),
        parallel(call("charge", retry=Retry(attempts=5)), call("pack")),
        choice(when("steps.charge.output.total > 100", approval("Large order")), otherwise("ship")),
    )

Wherever a node is wanted, a step may stand by its name or as the decorated function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import UNSET, UnsetType

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidDefinition
from stepwell.flow.definition.checker import checked
from stepwell.flow.definition.node import (
    Approval,
    CancelScopeNode,
    Case,
    Choice,
    Collect,
    Deferred,
    Definition,
    DefinitionStatus,
    Each,
    Edge,
    Graph,
    InstanceRule,
    JoinRule,
    Keep,
    Loop,
    Merge,
    Node,
    Parallel,
    Range,
    Signal,
    StepNode,
    Wait,
)
from stepwell.flow.definition.node import Sequence as SequenceNode
from stepwell.flow.retry import Retry
from stepwell.model.value import Value, canonical

__all__ = [
    "Nodelike",
    "Otherwise",
    "Steplike",
    "approval",
    "as_node",
    "as_seconds",
    "as_step",
    "as_value",
    "body_of",
    "choice",
    "deferred",
    "define",
    "each",
    "edge",
    "graph",
    "loop",
    "otherwise",
    "parallel",
    "scope",
    "sequence",
    "signal",
    "step_name",
    "wait",
    "when",
]


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


class Otherwise:
    """What a choice does when no condition holds."""

    __slots__ = ("do",)

    def __init__(self, do: Node) -> None:
        self.do = do


def define(
    workflow: str,
    *nodes: Nodelike,
    version: int = 1,
    description: str = "",
    status: DefinitionStatus | str = DefinitionStatus.ACTIVE,
    input_schema: Mapping[str, Value] | None = None,
    variables: Mapping[str, Value] | None = None,
    retry: Retry | None = None,
    timeout: Span | None = None,
    output: Value | UnsetType = UNSET,
    steps: Collection[str] | None = None,
) -> Definition:
    """A checked definition of these nodes, one after another; ``InvalidDefinition`` has every fault."""
    definition = Definition(
        name=workflow,
        version=version,
        description=description,
        status=_status(status),
        input_schema=None if input_schema is None else dict(input_schema),
        variables=dict(variables or {}),
        retry=retry,
        timeout_seconds=as_seconds(timeout, "timeout"),
        root=body_of(nodes),
        output=as_value(output, "output"),
    )
    return checked(definition, steps=steps)


def sequence(*nodes: Nodelike, name: str = "", description: str = "") -> SequenceNode:
    """Nodes one after another."""
    return SequenceNode(nodes=tuple(as_node(node) for node in nodes), name=name, description=description)


def parallel(
    *nodes: Nodelike,
    branches: Mapping[str, Nodelike] | None = None,
    name: str = "",
    description: str = "",
    optional: Iterable[str] = (),
    join: JoinRule | int = "all",
    cancel_losers: bool = True,
    fail_fast: bool = True,
    max_concurrency: int | None = None,
    merge: Merge = "by_name",
    **named: Nodelike,
) -> Parallel:
    """Branches at the same time. A branch without a name has that of its node or step, or else its number from 1."""
    found: dict[str, Node] = {}
    for number, each_node in enumerate(nodes, 1):
        node = as_node(each_node)
        natural = node.name or (node.uses if isinstance(node, StepNode) else "") or str(number)
        found[natural if natural not in found else str(number)] = node
    for key, each_node in {**(branches or {}), **named}.items():
        if key in found:
            raise InvalidDefinition(f"there are two branches {key!r}")
        found[key] = as_node(each_node)
    return Parallel(
        branches=found,
        name=name,
        description=description,
        optional=tuple(optional),
        join=join,
        cancel_losers=cancel_losers,
        fail_fast=fail_fast,
        max_concurrency=max_concurrency,
        merge=merge,
    )


def when(condition: str, *nodes: Nodelike) -> Case:
    """A case of a choice: what to do when a condition holds."""
    return Case(when=condition, do=body_of(nodes))


def otherwise(*nodes: Nodelike) -> Otherwise:
    """What a choice does when no condition holds."""
    return Otherwise(body_of(nodes))


def choice(
    *cases: Case | Otherwise,
    name: str = "",
    description: str = "",
    mode: Literal["first", "all"] = "first",
    merge: Merge = "by_name",
) -> Choice:
    """The first case whose condition holds, or all of them."""
    last = [case for case in cases if isinstance(case, Otherwise)]
    if len(last) > 1 or not all(isinstance(case, Case | Otherwise) for case in cases):
        raise InvalidDefinition("a choice takes when(...) and at most one otherwise(...)")
    return Choice(
        cases=tuple(case for case in cases if isinstance(case, Case)),
        otherwise=last[0].do if last else None,
        name=name,
        description=description,
        mode=mode,
        merge=merge,
    )


def loop(
    *nodes: Nodelike,
    count: int | str | None = None,
    range: Range | tuple[int | str, ...] | None = None,
    items: Value | UnsetType = UNSET,
    while_: str | None = None,
    until: str | None = None,
    break_when: str | None = None,
    max_iterations: int | None = None,
    delay: Span = 0,
    collect: Collect | Keep = "all",
    name: str = "",
    description: str = "",
) -> Loop:
    """Nodes again and again; ``range`` takes what Python's ``range`` does, as a tuple."""
    return Loop(
        do=body_of(nodes),
        count=count,
        range=_range(range),
        items=as_value(items, "items"),
        while_=while_,
        until=until,
        break_when=break_when,
        max_iterations=max_iterations,
        delay_seconds=as_seconds(delay, "delay") or 0.0,
        collect=collect,
        name=name,
        description=description,
    )


def each(
    *nodes: Nodelike,
    items: Value | UnsetType = UNSET,
    count: int | str | None = None,
    concurrency: int | None = None,
    join: InstanceRule | int = "all",
    cancel_losers: bool = True,
    fail_fast: bool = True,
    limit: int = 1000,
    name: str = "",
    description: str = "",
) -> Each:
    """Instances of nodes at the same time: one for each item, or so many."""
    return Each(
        do=body_of(nodes),
        items=as_value(items, "items"),
        count=count,
        concurrency=concurrency,
        join=join,
        cancel_losers=cancel_losers,
        fail_fast=fail_fast,
        limit=limit,
        name=name,
        description=description,
    )


def edge(source: str, target: str, when: str | None = None, *, otherwise: bool = False) -> Edge:
    """An arrow of a graph: taken always, under a condition, or when no condition of the other arrows from its source holds."""
    return Edge(source=source, target=target, when=when, is_otherwise=otherwise)


def graph(
    nodes: Mapping[str, Nodelike],
    edges: Iterable[Edge | tuple[str, str] | tuple[str, str, str]] = (),
    *,
    start: Iterable[str] = (),
    max_concurrency: int | None = None,
    fail_fast: bool = True,
    name: str = "",
    description: str = "",
) -> Graph:
    """Nodes by id, and arrows between them: ``(source, target)``, ``(source, target, condition)`` or ``edge(...)``."""
    return Graph(
        nodes={key: as_node(node) for key, node in nodes.items()},
        edges=tuple(arrow if isinstance(arrow, Edge) else edge(*arrow) for arrow in edges),
        start=tuple(start),
        max_concurrency=max_concurrency,
        fail_fast=fail_fast,
        name=name,
        description=description,
    )


def scope(
    *nodes: Nodelike,
    timeout: Span | None = None,
    cancel_on: str | None = None,
    on_cancel: Literal["continue", "fail"] = "continue",
    name: str = "",
    description: str = "",
) -> CancelScopeNode:
    """Nodes that are cancelled as one: by a timeout, by a signal, or by ``cancel_scope``."""
    return CancelScopeNode(
        do=body_of(nodes),
        timeout_seconds=as_seconds(timeout, "timeout"),
        cancel_on=cancel_on,
        on_cancel=on_cancel,
        name=name,
        description=description,
    )


def wait(time: Span, *, name: str = "", description: str = "") -> Wait:
    """A durable timer: a span such as ``"2h"``, a timestamp with a zone, or a template that gives one of these."""
    return Wait(time=time if isinstance(time, str) else seconds_of(time, "the wait"), name=name, description=description)


def signal(
    signal: str,
    *,
    timeout: Span | None = None,
    on_timeout: Literal["fail", "continue"] = "fail",
    transient: bool = False,
    name: str = "",
    description: str = "",
) -> Signal:
    """Wait for a signal; its value is the output."""
    return Signal(
        signal=signal,
        timeout_seconds=as_seconds(timeout, "timeout"),
        on_timeout=on_timeout,
        is_transient=transient,
        name=name,
        description=description,
    )


def deferred(
    branches: Mapping[str, Nodelike],
    *,
    timeout: Span | None = None,
    on_timeout: Nodelike | None = None,
    name: str = "",
    description: str = "",
) -> Deferred:
    """Wait for the first of several signals, and do what belongs to it."""
    return Deferred(
        branches={key: as_node(node) for key, node in branches.items()},
        timeout_seconds=as_seconds(timeout, "timeout"),
        on_timeout=None if on_timeout is None else as_node(on_timeout),
        name=name,
        description=description,
    )


def approval(
    title: str,
    *,
    details: Value | UnsetType = UNSET,
    approvers: Iterable[str] = (),
    needed: int = 1,
    timeout: Span | None = None,
    on_timeout: Literal["cancel", "default", "escalate"] = "cancel",
    default: Value | UnsetType = UNSET,
    escalate_to: Iterable[str] = (),
    name: str = "",
    description: str = "",
) -> Approval:
    """Ask people, and go on when enough have answered."""
    return Approval(
        title=title,
        details=as_value(details, "details"),
        approvers=tuple(approvers),
        needed=needed,
        timeout_seconds=as_seconds(timeout, "timeout"),
        on_timeout=on_timeout,
        default=as_value(default, "default"),
        escalate_to=tuple(escalate_to),
        name=name,
        description=description,
    )


def _status(status: DefinitionStatus | str) -> DefinitionStatus:
    try:
        return DefinitionStatus(status)
    except ValueError:
        raise InvalidDefinition(f"the status {status!r} is none of {', '.join(DefinitionStatus)}") from None


def _range(bounds: Range | tuple[int | str, ...] | None) -> Range | None:
    if bounds is None or isinstance(bounds, Range):
        return bounds
    match bounds:
        case (stop,):
            return Range(stop=stop)
        case (start, stop):
            return Range(start=start, stop=stop)
        case (start, stop, step):
            return Range(start=start, stop=stop, step=step)
        case _:
            raise InvalidDefinition("a range is (stop,), (start, stop) or (start, stop, step)")
