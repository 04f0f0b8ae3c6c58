"""Build a definition in Python. The result is the same tree that ``parse`` reads from a document.

    define(
        "checkout",
        call("reserve", {"order": "{{ trigger.input }}"}, compensate=call("release")),
        parallel(call("charge", retry=Retry(attempts=5)), call("pack")),
        choice(when("steps.charge.output.total > 100", approval("Large order")), otherwise("ship")),
    )

Wherever a node is expected, a step's name or a decorated step function is accepted, too. Every node function takes a ``name``
(unique in the definition) and a ``description`` for people.
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
from stepwell.flow.function import Step, Workflow, registered_step, registered_workflow
from stepwell.flow.governance import Governance, check_governance
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
    "workflow_name",
]


Steplike = StepNode | str | Callable[..., Any]
"""A step node, the name of a step, or a decorated step function."""

Nodelike = Node | str | Callable[..., Any]
"""A node, the name of a step, or a decorated step function."""

_NODES = cast("tuple[type[Node], ...]", Node.__args__)


def step_name(step: object) -> str:
    """Return the name of a step. Raise ``InvalidDefinition`` if it is neither a name nor a decorated function."""
    if isinstance(step, Workflow):
        raise InvalidDefinition(f"{step.name!r} is a workflow and no step; run it as a child with subworkflow(...)")
    if isinstance(step, Step):
        return _own_name(step.name, "step", is_registered=registered_step(step.name) is step)
    return _name_of(step, "step")


def workflow_name(workflow: object) -> str:
    """Return the name of a workflow.

    Raise ``InvalidDefinition`` if it is neither a name, nor a definition, nor a decorated function.
    """
    if isinstance(workflow, Step):
        raise InvalidDefinition(f"{workflow.name!r} is a step and no workflow; run it with call(...)")
    if isinstance(workflow, Workflow):
        return _own_name(workflow.name, "workflow", is_registered=registered_workflow(workflow.name) is workflow)
    return _name_of(workflow, "workflow")


def _own_name(name: str, kind: str, *, is_registered: bool) -> str:
    if not is_registered:
        # A definition stores names only, so a run would call the other function.
        raise InvalidDefinition(
            f"another function is registered as {kind} {name!r}; give one of them another with @{kind}(name=...)"
        )
    return name


def _name_of(thing: object, kind: str) -> str:
    name = thing if isinstance(thing, str) else getattr(thing, "name", None)
    if isinstance(thing, _NODES):  # its name is that of a place in the definition
        raise InvalidDefinition(f"a node ({type(thing).__name__} {name!r}) is no {kind}; give the {kind} or its name")
    if isinstance(name, str) and name:
        return name
    hint = "; decorate the function, or give the name it was registered under" if callable(thing) else ""
    raise InvalidDefinition(f"{thing!r} is neither a {kind} nor the name of one{hint}")


def as_node(thing: Nodelike) -> Node:
    """Return a node as it is; convert a name or decorated function to a step node."""
    return thing if isinstance(thing, _NODES) else StepNode(uses=step_name(thing))


def as_step(thing: Steplike | None) -> StepNode | None:
    """Return a step node for anything step-like, or None."""
    if thing is None or isinstance(thing, StepNode):
        return thing
    return StepNode(uses=step_name(thing))


def body_of(nodes: Sequence[Nodelike]) -> Node:
    """Return a single node as it is, and any other number of nodes as a sequence."""
    return as_node(nodes[0]) if len(nodes) == 1 else SequenceNode(nodes=tuple(as_node(node) for node in nodes))


def as_seconds(span: Span | None, what: str) -> float | None:
    """Return a span in seconds, or None."""
    return None if span is None else seconds_of(span, what)


def as_value(value: Value | UnsetType, what: str) -> Value | UnsetType:
    """Return the value. Raise ``InvalidInput`` if it cannot be stored."""
    if value is not UNSET:
        canonical(value, what=what)
    return value


class Otherwise:
    """The branch of a choice that runs if no condition holds."""

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
    governance: Governance | None = None,
    grants: Iterable[str] = (),
    output: Value | UnsetType = UNSET,
    steps: Collection[str] | None = None,
) -> Definition:
    """Return a checked definition that runs the nodes one after another.

    - ``workflow``: the name of the workflow.
    - ``nodes``: nodes, names of steps or decorated step functions.
    - ``description``: a text for people.
    - ``version``: a positive integer; an execution keeps the version that it started with.
    - ``status``: ``ACTIVE``, or ``DRAFT`` or ``PAUSED``, which cannot be started.
    - ``input_schema``: a JSON Schema for the input.
    - ``variables``: variables with their initial values.
    - ``retry``: the retry policy of steps without their own.
    - ``timeout``: how long an execution may take.
    - ``governance``: budgets and permissions of executions that are started without their own.
    - ``grants``: names of other workflows whose scoped state its steps may read.
    - ``output``: the result, which may contain templates; by default the last node's output.
    - ``steps``: known step names; any other name is then a fault.

    Raise ``InvalidDefinition`` with every fault.
    """
    definition = Definition(
        name=workflow,
        version=version,
        description=description,
        status=_status(status),
        input_schema=None if input_schema is None else dict(input_schema),
        variables=dict(variables or {}),
        retry=retry,
        timeout_seconds=as_seconds(timeout, "timeout"),
        governance=check_governance(governance),
        grants=_names_of(grants),
        root=body_of(nodes),
        output=as_value(output, "output"),
    )
    return checked(definition, steps=steps)


def sequence(*nodes: Nodelike, name: str = "", description: str = "") -> SequenceNode:
    """Return a node that runs nodes one after another; its output is that of the last.

    - ``nodes``: nodes, names of steps or decorated step functions.
    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    """
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
    """Return a node that runs branches concurrently.

    A node without a branch name is called after its name or step, or else by its number from 1.

    - ``nodes``, ``branches``, ``named``: the branches: as nodes, as a mapping by name, or as keyword arguments.
    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    - ``optional``: the names of branches that may fail without failing the node.
    - ``join``: when the node ends. ``"all"``: every branch has ended. ``"any"``: one has succeeded. ``"first"``: one has ended,
      successfully or not. A number: that many have succeeded. ``"discriminator"``: one has succeeded, and the others keep running
      without effect.
    - ``cancel_losers``: cancel the branches that still run when the node joins.
    - ``fail_fast``: cancel the others at once when a required branch fails.
    - ``max_concurrency``: how many branches run at the same time; None: all.
    - ``merge``: the output. ``"by_name"``: an object by branch. ``"list"``: a list in branch order. ``"winner"``: the first
      success. ``"combine"``: all outputs, which must be objects, in one object.

    Raise ``InvalidDefinition`` for two branches of one name.
    """
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
    """Return a case of a choice: the nodes to run if the condition holds.

    - ``condition``: an expression such as ``"steps.charge.output > 10000"``.
    - ``nodes``: nodes, names of steps or decorated step functions.
    """
    return Case(when=condition, do=body_of(nodes))


def otherwise(*nodes: Nodelike) -> Otherwise:
    """Return the branch of a choice that runs if no condition holds.

    - ``nodes``: nodes, names of steps or decorated step functions.
    """
    return Otherwise(body_of(nodes))


def choice(
    *cases: Case | Otherwise,
    name: str = "",
    description: str = "",
    mode: Literal["first", "all"] = "first",
    merge: Merge = "by_name",
) -> Choice:
    """Return a node that runs the cases whose condition holds.

    - ``mode``: ``"first"``: the first case that holds; ``"all"``: every case that holds.
    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    - ``cases``: ``when(...)``, and at most one ``otherwise(...)``.
    - ``merge``: how the outputs of several cases become one, see ``Choice``.

    Raise ``InvalidDefinition`` for anything else.
    """
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
    range: Range | range | tuple[int | str, ...] | None = None,
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
    """Return a node that repeats nodes, one iteration after another.

    Give exactly one of ``count``, ``range``, ``items``, ``while_`` and ``until``.

    - ``nodes``: nodes, names of steps or decorated step functions.
    - ``count``: the number of iterations, or an expression for it.
    - ``range``: a Python ``range``, or a tuple of its arguments, which may be expressions.
    - ``items``: a list, or a template for one; each iteration has its item.
    - ``while_``, ``until``: a condition before, or after, each iteration; both need ``max_iterations``.
    - ``break_when``: a condition after each iteration that ends any loop early.
    - ``max_iterations``: more iterations are a failure.
    - ``delay``: how long to wait between iterations.
    - ``collect``: the output: ``"all"`` outputs as a list, the ``"last"``, or ``"none"``; or a ``Keep``.
    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    """
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
    """Return a node that runs nodes concurrently, once per item or ``count`` times.

    - ``nodes``: nodes, names of steps or decorated step functions.
    - ``items``: a list, or a template for one.
    - ``count``: in place of items, the number of instances, or an expression for it.
    - ``concurrency``: how many instances run at the same time; None: all.
    - ``join``: when the node ends, as for ``parallel``; ``"none"`` continues at once while the instances run.
    - ``cancel_losers``: cancel the instances that still run when the node joins.
    - ``fail_fast``: cancel the others at once when an instance fails.
    - ``limit``: more instances are a failure.
    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    """
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


def edge(source: str, target: str, when: str | None = None, *, otherwise: bool = False, id: str = "") -> Edge:
    """Return an edge of a graph. It is taken always unless it has a condition.

    ``id`` names the edge for people and tools; ids are unique in a graph.

    - ``source``, ``target``: the ids of the two nodes.
    - ``when``: a condition, as an expression.
    - ``otherwise``: take it only if no condition of an edge from the same node holds.
    - ``id``: a name of the edge for people and tools, unique in its graph.
    """
    return Edge(source=source, target=target, when=when, is_otherwise=otherwise, id=id)


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
    """Return a node that runs a graph: nodes by id, connected by edges.

    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    - ``nodes``: the nodes by id.
    - ``edges``: each ``(source, target)``, ``(source, target, condition)`` or ``edge(...)``.
    - ``start``: the ids of the first nodes; by default all without an incoming edge.
    - ``max_concurrency``: how many nodes run at the same time.
    - ``fail_fast``: cancel the running nodes when one fails.
    """
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
    """Return a cancel scope: nodes that are cancelled together.

    - ``nodes``: nodes, names of steps or decorated step functions.
    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    - ``timeout``: cancel them after this time.
    - ``cancel_on``: the name of a signal that cancels them. A node made by ``cancel_scope`` does it, too.
    - ``on_cancel``: ``"continue"`` after the scope, or ``"fail"``.
    """
    return CancelScopeNode(
        do=body_of(nodes),
        timeout_seconds=as_seconds(timeout, "timeout"),
        cancel_on=cancel_on,
        on_cancel=on_cancel,
        name=name,
        description=description,
    )


def wait(time: Span, *, name: str = "", description: str = "") -> Wait:
    """Return a durable timer: a node that waits without holding a thread.

    - ``time``: seconds, a span such as ``"2h"``, a timestamp with a zone, or a template of one of these.
    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    """
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
    """Return a node that waits for a signal; the signal's value is its output.

    - ``signal``: the name of the signal.
    - ``timeout``: how long to wait; None without a limit.
    - ``on_timeout``: ``"fail"``, or ``"continue"`` with the output None.
    - ``transient``: drop a signal that arrives before the node waits.
    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    """
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
    """Return a node that waits for the first of several signals and runs the branch of that name.

    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    - ``branches``: the nodes by the name of their signal.
    - ``timeout``: how long to wait; None without a limit.
    - ``on_timeout``: the node that runs if no signal arrives in time; without it, the timeout is a failure.
    """
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
    """Return a node that asks people and continues when ``needed`` of them agree.

    Its output is ``{"is_approved": ..., "decisions": [...]}``.

    - ``title``: the question, which may contain templates.
    - ``details``: a value to show with it.
    - ``approvers``: the people who may answer; by default all.
    - ``needed``: how many must agree. The approval is refused once that number can no longer be reached.
    - ``timeout``: how long to wait; None without a limit.
    - ``on_timeout``: ``"cancel"`` the execution, output the ``default``, or ``"escalate"`` once, with a new timeout.
    - ``default``: the output after a timeout with ``on_timeout="default"``.
    - ``escalate_to``: who may answer after an escalation.
    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    """
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


def _names_of(grants: Iterable[str]) -> tuple[str, ...]:
    if not isinstance(grants, list | tuple) or not all(isinstance(each, str) for each in cast("Sequence[object]", grants)):
        raise InvalidDefinition(f"grants is a list of names of workflows, not {grants!r}")
    return tuple(grants)


def _range(bounds: Range | range | tuple[int | str, ...] | None) -> Range | None:
    match bounds:
        case None | Range():
            return bounds
        case range():
            # Not by its items, as the cases below would: a range is a sequence, too.
            return Range(start=bounds.start, stop=bounds.stop, step=bounds.step)
        case (stop,):
            return Range(stop=stop)
        case (start, stop):
            return Range(start=start, stop=stop)
        case (start, stop, step):
            return Range(start=start, stop=stop, step=step)
        case _:
            raise InvalidDefinition("a range is range(...), (stop,), (start, stop) or (start, stop, step)")
