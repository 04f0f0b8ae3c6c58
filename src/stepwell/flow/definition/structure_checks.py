"""Check nodes one by one, and graphs for unknown ends, cycles and unreachable nodes. All faults are found, not just the first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast

from msgspec import UNSET

from stepwell.errors import StepwellError, ValidationFailed
from stepwell.flow.definition.builtin_steps import BUILTINS, PREFIX, builtin_of, fault_of_max_bytes
from stepwell.flow.definition.findings import Finding, Findings
from stepwell.flow.definition.node import (
    Action,
    Approval,
    CancelScopeNode,
    Choice,
    Deferred,
    Each,
    Graph,
    Keep,
    Loop,
    Parallel,
    Range,
    Sequence,
    Signal,
    StepNode,
    Subworkflow,
)
from stepwell.flow.definition.outline import Path, Place
from stepwell.flow.language.errors import suggest
from stepwell.flow.language.expression import compile_expression
from stepwell.flow.language.template import is_template
from stepwell.model.ids import check_key

__all__ = [
    "Known",
    "graph_findings",
    "node_findings",
    "predecessors_of",
    "successors_of",
]


def graph_findings(graph: Graph, path: Path) -> Findings:
    """Return every fault of a graph."""
    if not graph.nodes:
        yield Finding(path, "the graph has no nodes")
    yield from _edge_findings(graph, path)
    yield from _start_findings(graph, path)
    cycles = _cycles(graph)
    for cycle in cycles:
        yield Finding((*path, "edges"), f"the graph has a cycle: {' -> '.join(cycle)}")
    yield from _cut_off_findings(graph, path, {name for cycle in cycles for name in cycle})


def successors_of(graph: Graph) -> dict[str, list[str]]:
    """Return each node's successors, without unknown names."""
    found: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for edge in graph.edges:
        if edge.source in found and edge.target in found:
            found[edge.source].append(edge.target)
    return found


def predecessors_of(graph: Graph, name: str) -> set[str]:
    """Return every node from which this one can be reached."""
    sources: dict[str, list[str]] = {}
    for edge in graph.edges:
        sources.setdefault(edge.target, []).append(edge.source)
    return _reached(sources, sources.get(name, []))


def _reached(arrows: dict[str, list[str]], starts: list[str]) -> set[str]:
    reached: set[str] = set()
    pending = list(starts)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(arrows.get(name, ()))
    return reached


def _edge_findings(graph: Graph, path: Path) -> Findings:
    seen: set[tuple[str, str]] = set()
    ids: set[str] = set()
    for index, edge in enumerate(graph.edges):
        here = (*path, "edges", index)
        for key, name in (("from", edge.source), ("to", edge.target)):
            if name not in graph.nodes:
                message = f"there is no node {name!r} in the graph{suggest(name, graph.nodes)}"
                yield Finding((*here, key), message)
        if edge.when is not None and edge.is_otherwise:
            yield Finding(here, "an edge has a condition or is 'otherwise', not both")
        if (edge.source, edge.target) in seen:
            yield Finding(here, f"there is a second edge from {edge.source!r} to {edge.target!r}; join their conditions with 'or'")
        seen.add((edge.source, edge.target))
        if edge.id in ids:
            yield Finding((*here, "id"), f"there is a second edge with the id {edge.id!r}")
        if edge.id:
            ids.add(edge.id)
            yield from _key_findings((*here, "id"), edge.id, "the id of an edge")
    yield from _otherwise_findings(graph, path)


def _otherwise_findings(graph: Graph, path: Path) -> Findings:
    """Check that each ``otherwise`` edge has a sibling with a condition."""
    decided = {edge.source for edge in graph.edges if edge.when is not None}
    for index, edge in enumerate(graph.edges):
        if edge.is_otherwise and edge.source not in decided:
            message = f"'otherwise' needs another edge from {edge.source!r} with a condition"
            yield Finding((*path, "edges", index, "otherwise"), message)


def _start_findings(graph: Graph, path: Path) -> Findings:
    for index, name in enumerate(graph.start):
        if name not in graph.nodes:
            message = f"there is no node {name!r} in the graph{suggest(name, graph.nodes)}"
            yield Finding((*path, "start", index), message)


def _cycles(graph: Graph) -> list[list[str]]:
    """Return one cycle for each strongly connected component: depth-first search without recursion."""
    arrows = successors_of(graph)
    cycles: list[list[str]] = []
    done: set[str] = set()
    for start in graph.nodes:
        trail: list[str] = []
        standing: dict[str, int] = {}
        pending = [(start, iter(arrows[start]))] if start not in done else []
        while pending:
            name, rest = pending[-1]
            if name not in standing:
                standing[name] = len(trail)
                trail.append(name)
            target = next(rest, None)
            if target is None:
                pending.pop()
                trail.pop()
                del standing[name]
                done.add(name)
            elif target in standing:
                cycles.append([*trail[standing[target] :], target])
            elif target not in done:
                pending.append((target, iter(arrows[target])))
    return cycles


def _cut_off_findings(graph: Graph, path: Path, in_cycles: set[str]) -> Findings:
    arrows = successors_of(graph)
    targets = {edge.target for edge in graph.edges}
    ends = targets | {edge.source for edge in graph.edges}
    starts = [name for name in graph.start if name in graph.nodes] or [name for name in graph.nodes if name not in targets]
    reached = _reached(arrows, starts)
    for name in graph.nodes:
        here = (*path, "graph", name)
        if len(graph.nodes) > 1 and name not in ends and name not in graph.start:
            yield Finding(here, f"no edge leads to {name!r} or away from it: add one, or name it in 'start'", is_about_key=True)
        elif name not in reached and name not in in_cycles:
            message = f"{name!r} can never be reached from the start: lead an edge to it, or name it in 'start'"
            yield Finding(here, message, is_about_key=True)
    for name in graph.start:
        if name in targets:
            yield Finding((*path, "start"), f"{name!r} is a start, so no edge may lead to it")


class Known(NamedTuple):
    """The names that a definition may refer to; None accepts every name."""

    steps: Collection[str] | None
    workflows: Collection[str] | None
    scopes: Collection[str]


def node_findings(place: Place, known: Known) -> Findings:
    """Return every fault of a node that can be seen from the node alone."""
    match place.node:
        case Action():
            yield from _action(place, place.node, known)
        case Sequence():
            yield from _sequence(place, place.node)
        case Parallel():
            yield from _parallel(place, place.node)
        case Choice():
            yield from _choice(place, place.node)
        case Loop():
            yield from _loop(place, place.node)
        case Each():
            yield from _each(place, place.node)
        case Graph():
            yield from graph_findings(place.node, place.path)
        case Deferred():
            yield from _deferred(place, place.node)
        case Approval():
            yield from _approval(place, place.node)
        case Signal():
            yield from _named(place, "signal", place.node.signal)
        case CancelScopeNode():
            yield from _named(place, "cancel_on", place.node.cancel_on)
        case _:
            pass


def _named(place: Place, key: str, name: str | None) -> Findings:
    if name == "":
        yield Finding((*place.path, key), "a signal needs a name")
    elif name is not None:
        yield from _key_findings((*place.path, key), name, "a signal's name")


def _key_findings(path: Path, name: str, what: str, *, is_about_key: bool = False) -> Findings:
    """Check a name that senders of signals, or readers of a definition, must be able to write, too."""
    try:
        check_key(name, what)
    except ValidationFailed as error:
        yield Finding(path, error.message, is_about_key=is_about_key)


def _action(place: Place, node: Action, known: Known) -> Findings:
    if node.compensate is not None and node.compensate.compensate is not None:
        yield Finding((*place.path, "compensate", "compensate"), "a compensation cannot have a compensation")
    if node.compensate is not None and node.compensate.key:
        yield Finding((*place.path, "compensate", "key"), "a compensation cannot have a key: it runs once for each step")
    if isinstance(node, StepNode):
        yield from _step(place, node, known)
    elif isinstance(node, Subworkflow) and known.workflows is not None and node.workflow not in known.workflows:
        message = f"there is no workflow {node.workflow!r}{suggest(node.workflow, known.workflows)}"
        yield Finding((*place.path, "subworkflow"), message)


def _step(place: Place, node: StepNode, known: Known) -> Findings:
    here = (*place.path, "step")
    builtin = builtin_of(node.uses)
    if node.key and builtin is not None and builtin is not BUILTINS["http_request"]:
        yield Finding((*place.path, "key"), f"{builtin.name} takes no key: it has no effect that could happen twice")
    if builtin is not None:
        yield from _builtin(place, node, known)
    elif not node.uses:
        yield Finding(here, "the name of the step is empty")
    elif node.uses.startswith(PREFIX):
        name = node.uses.removeprefix(PREFIX)
        yield Finding(here, f"there is no built-in step {name!r}{suggest(name, BUILTINS)}")
    elif known.steps is not None and node.uses not in known.steps:
        yield Finding(here, f"there is no step {node.uses!r}{suggest(node.uses, known.steps)}")


def _builtin(place: Place, node: StepNode, known: Known) -> Findings:
    builtin = builtin_of(node.uses)
    here = (*place.path, "with")
    args: Any = {} if node.args is UNSET else node.args
    if builtin is None or is_template(args):
        return
    if isinstance(args, dict):
        keys = set(cast("dict[str, Any]", args))
        for key in sorted(builtin.required - keys):
            yield Finding(here, f"{builtin.name} needs {key!r}")
        if not builtin.takes_value:
            allowed = builtin.required | builtin.optional
            for key in sorted(keys - allowed):
                yield Finding((*here, key), f"{builtin.name} takes no {key!r}{suggest(key, allowed)}")
    elif builtin.name == "set_variables" or (not builtin.takes_value and not (builtin.main and isinstance(args, str))):
        yield Finding(here, f"{builtin.name} takes a mapping{' or a text' if builtin.main else ''}")
    if builtin.name == "cancel_scope":
        yield from _cancelled_scope(args, here, known)
    if builtin.name == "http_request" and isinstance(args, dict) and "max_bytes" in args:
        most = cast("dict[str, Any]", args)["max_bytes"]
        fault = None if is_template(most) else fault_of_max_bytes(most)
        if fault is not None:
            yield Finding((*here, "max_bytes"), fault)


def _cancelled_scope(args: Any, here: tuple[str | int, ...], known: Known) -> Findings:
    name: Any = cast("Mapping[str, Any]", args).get("scope") if isinstance(args, dict) else args
    if isinstance(name, str) and not is_template(name) and name not in known.scopes:
        yield Finding(here, f"there is no scope {name!r}{suggest(name, known.scopes)}", unknown=name)


def _sequence(place: Place, node: Sequence) -> Findings:
    if not node.nodes:
        yield Finding(place.path, "the sequence is empty")
    for index, child in enumerate(node.nodes[:-1]):
        is_throw = isinstance(child, StepNode) and child.uses == BUILTINS["throw"].uses and child.on_error != "continue"
        if is_throw:
            yield Finding((*place.path, "sequence", index + 1), "this can never run: the node before it always fails")
            return


def _parallel(place: Place, node: Parallel) -> Findings:
    if not node.branches:
        yield Finding(place.path, "there are no branches")
    for index, name in enumerate(node.optional):
        if name not in node.branches:
            message = f"there is no branch {name!r}{suggest(name, node.branches)}"
            yield Finding((*place.path, "optional", index), message)
    if isinstance(node.join, int) and node.join > len(node.branches):
        yield Finding((*place.path, "join"), f"it waits for {node.join} of {len(node.branches)} branches, which can never happen")


def _choice(place: Place, node: Choice) -> Findings:
    if not node.cases:
        yield Finding(place.path, "the choice has no cases")
    seen: dict[str, int] = {}
    is_decided = False
    for index, case in enumerate(node.cases):
        here = (*place.path, "choice", index, "when")
        text = " ".join(case.when.split())
        if is_decided and node.mode == "first":
            yield Finding(here, "this case can never be chosen: one before it always is")
        elif text in seen and node.mode == "first":
            yield Finding(here, f"this case can never be chosen: case {seen[text] + 1} has the same condition")
        elif (constant := _constant(case.when)) is False:
            yield Finding(here, "this case can never be chosen: its condition is always false")
        else:
            is_decided = is_decided or constant is True
        seen.setdefault(text, index)
    if is_decided and node.otherwise is not None:
        yield Finding((*place.path, "otherwise"), "this can never be chosen: a case before it always is")


def _constant(condition: str) -> object:
    """Return the value of a condition without references, or None."""
    try:
        found = compile_expression(condition)
        return found.holds({}) if found.is_constant else None
    except StepwellError:
        return None  # the expression's own check reports a condition that always fails


def _number_or_template(path: tuple[str | int, ...], value: object) -> Findings:
    if isinstance(value, str) and not is_template(value):
        yield Finding(path, f"expected a whole number or a template, not the text {value[:40]!r}")


def _loop(place: Place, node: Loop) -> Findings:
    sources = {
        "count": node.count is not None,
        "range": node.range is not None,
        "items": node.items is not UNSET,
        "while": node.while_ is not None,
        "until": node.until is not None,
    }
    given = [name for name, is_given in sources.items() if is_given]
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "and none is there"
        yield Finding(place.path, f"a loop has exactly one of {', '.join(sources)}, {found}")
    if given and given[0] in ("while", "until") and node.max_iterations is None:
        yield Finding((*place.path, given[0]), "the loop has no bound: give it max_iterations")
    yield from _number_or_template((*place.path, "count"), node.count)
    yield from _items((*place.path, "items"), node.items)
    if node.range is not None:
        yield from _range(place, node.range)
    if isinstance(node.collect, Keep) and (node.collect.first is None) == (node.collect.last is None):
        yield Finding((*place.path, "collect"), "give either 'first' or 'last'")


def _range(place: Place, bounds: Range) -> Findings:
    here = (*place.path, "range")
    for key, value in (("start", bounds.start), ("stop", bounds.stop), ("step", bounds.step)):
        yield from _number_or_template((*here, key), value)
    if bounds.step == 0:
        yield Finding((*here, "step"), "the loop has no bound: a step of 0 goes nowhere")
    elif isinstance(bounds.start, int) and isinstance(bounds.stop, int) and isinstance(bounds.step, int):
        try:
            len(range(bounds.start, bounds.stop, bounds.step))
        except OverflowError:
            yield Finding(here, "the range has more numbers than can be counted in 64 bits")


def _items(path: tuple[str | int, ...], items: Any) -> Findings:
    if items is not UNSET and not isinstance(items, list) and not is_template(items):
        yield Finding(path, "items must be a list or a template that gives one")


def _each(place: Place, node: Each) -> Findings:
    if (node.count is None) == (node.items is UNSET):
        yield Finding(place.path, "each needs either items or a count")
    yield from _number_or_template((*place.path, "count"), node.count)
    yield from _items((*place.path, "items"), node.items)
    size = node.count if isinstance(node.count, int) else None
    if isinstance(node.items, list):
        size = len(cast("list[Any]", node.items))
    if size is not None and size > node.limit:
        yield Finding(place.path, f"{size:,} instances are more than the limit of {node.limit:,}")
    needed = node.join if isinstance(node.join, int) else 1 if node.join == "any" else 0
    if size is not None and needed > size:
        yield Finding((*place.path, "join"), f"it waits for {needed} of {size} instances, which can never happen")


def _deferred(place: Place, node: Deferred) -> Findings:
    if not node.branches:
        yield Finding(place.path, "there are no branches")
    for name in node.branches:
        if name in ("", "on_timeout"):
            yield Finding((*place.path, "deferred", name), f"a signal cannot have the name {name!r} here", is_about_key=True)
        else:
            yield from _key_findings((*place.path, "deferred", name), name, "a signal's name", is_about_key=True)
    if node.on_timeout is not None and node.timeout_seconds is None:
        yield Finding((*place.path, "on_timeout"), "this can never run: there is no timeout_seconds")


def _approval(place: Place, node: Approval) -> Findings:
    if node.on_timeout == "default" and node.default is UNSET:
        yield Finding((*place.path, "on_timeout"), "on_timeout 'default' needs the key 'default'")
    if node.on_timeout == "escalate" and not node.escalate_to:
        yield Finding((*place.path, "on_timeout"), "on_timeout 'escalate' needs the key 'escalate_to'")
    if node.timeout_seconds is None and (node.on_timeout != "cancel" or node.escalate_to or node.default is not UNSET):
        yield Finding(place.path, "the settings for a timeout need timeout_seconds")
    if node.approvers and node.needed > len(node.approvers):
        message = f"{node.needed} of {len(node.approvers)} approvers can never agree"
        yield Finding((*place.path, "needed"), message)
    if node.escalate_to and node.needed > len(node.escalate_to):
        message = f"{node.needed} of {len(node.escalate_to)} approvers can never agree"
        yield Finding((*place.path, "escalate_to"), message)
