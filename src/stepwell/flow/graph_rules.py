"""What must hold for a graph: known ends, no cycle, nothing cut off. All faults are found, not just the first."""

from __future__ import annotations

from stepwell.flow.finding import Finding, Findings
from stepwell.flow.node import Graph
from stepwell.flow.outline import Path
from stepwell.flow.suggestion import suggest

__all__ = ["graph_findings", "predecessors_of", "successors_of"]


def graph_findings(graph: Graph, path: Path) -> Findings:
    """Every fault of a graph."""
    if not graph.nodes:
        yield Finding(path, "the graph has no nodes")
    yield from _edge_findings(graph, path)
    yield from _start_findings(graph, path)
    cycles = _cycles(graph)
    for cycle in cycles:
        yield Finding((*path, "edges"), f"the arrows go round in a circle: {' -> '.join(cycle)}")
    yield from _cut_off_findings(graph, path, {name for cycle in cycles for name in cycle})


def successors_of(graph: Graph) -> dict[str, list[str]]:
    """For each node the targets of its arrows, unknown ends left out."""
    found: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for edge in graph.edges:
        if edge.source in found and edge.target in found:
            found[edge.source].append(edge.target)
    return found


def predecessors_of(graph: Graph, name: str) -> set[str]:
    """Every node from which arrows lead to this one, directly or not."""
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
    for index, edge in enumerate(graph.edges):
        here = (*path, "edges", index)
        for key, name in (("from", edge.source), ("to", edge.target)):
            if name not in graph.nodes:
                message = f"there is no node {name!r} in the graph{suggest(name, graph.nodes)}"
                yield Finding((*here, key), message)
        if edge.when is not None and edge.is_otherwise:
            yield Finding(here, "an arrow has a condition or is the one taken otherwise, not both")
        if (edge.source, edge.target) in seen:
            yield Finding(here, f"there is a second arrow from {edge.source!r} to {edge.target!r}; join their conditions with 'or'")
        seen.add((edge.source, edge.target))
    yield from _otherwise_findings(graph, path)


def _otherwise_findings(graph: Graph, path: Path) -> Findings:
    """An arrow that is taken when no condition holds: of use only beside arrows with conditions."""
    decided = {edge.source for edge in graph.edges if edge.when is not None}
    for index, edge in enumerate(graph.edges):
        if edge.is_otherwise and edge.source not in decided:
            message = f"'otherwise' needs another arrow from {edge.source!r} with a condition"
            yield Finding((*path, "edges", index, "otherwise"), message)


def _start_findings(graph: Graph, path: Path) -> Findings:
    for index, name in enumerate(graph.start):
        if name not in graph.nodes:
            message = f"there is no node {name!r} in the graph{suggest(name, graph.nodes)}"
            yield Finding((*path, "start", index), message)


def _cycles(graph: Graph) -> list[list[str]]:
    """One circle for each knot of nodes that reach each other: depth first, without recursion."""
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
            yield Finding(here, f"no arrow leads to {name!r} or away from it", is_about_key=True)
        elif name not in reached and name not in in_cycles:
            yield Finding(here, f"{name!r} can never be reached from the start", is_about_key=True)
    for name in graph.start:
        if name in targets:
            yield Finding((*path, "start"), f"{name!r} is a start, so no arrow may lead to it")
