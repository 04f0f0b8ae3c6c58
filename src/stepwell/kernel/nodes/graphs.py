"""Graphs: a node begins when all its incoming edges are decided and one was taken; else it and its successors are skipped.

An edge is decided once, when its source ends. A node that waits for edges has a token with two counts, so that a decision is
never repeated and costs the same however many edges there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from stepwell.clock import to_ms
from stepwell.flow.definition.node import Edge, Graph, continues_after_error
from stepwell.flow.language.expression import compile_expression
from stepwell.kernel.data_view import TemplateData, ending, output_of
from stepwell.kernel.nodes.joins import JoinCount
from stepwell.kernel.nodes.scopes import cancel_inside
from stepwell.kernel.plan import key_of
from stepwell.kernel.protocol import Trouble
from stepwell.kernel.token import LiveToken
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, canonical

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = ["enter_graph", "node_ended", "recount_graph", "resume_graph"]


class _Nodes(JoinCount):
    """The count of a graph. It knows the ended nodes: a retried node must not decide its edges a second time."""

    __slots__ = ("ended",)

    def __init__(self, slots: Iterable[str]) -> None:
        super().__init__(slots)
        self.ended: set[str] = set()

    def count(self, slot: str, error: Trouble | None, at_ms: int, *, is_optional: bool = False) -> None:
        super().count(slot, error, at_ms, is_optional=is_optional)
        self.ended.add(slot)

    def skip(self, slot: str) -> None:
        """Skip a node."""
        self.ignored += 1
        self.ended.add(slot)


def enter_graph(run: Interpreter, frame: LiveToken, node: Graph) -> None:
    """Begin the first nodes."""
    frame.tally = _Nodes(node.nodes)
    frame.tally.pending = deque(run.plan.edges(frame.place).starts)
    run.changes.touch(frame)
    _begin_more(run, frame, node)


def _begin_more(run: Interpreter, frame: LiveToken, node: Graph) -> None:
    """Begin ready nodes up to the concurrency limit. End the graph when none is left."""
    tally = frame.tally
    assert tally is not None  # noqa: S101 - it has begun
    running = sum(1 for child in frame.children.values() if "left" not in child.value) if node.max_concurrency else 0
    while tally.pending and (node.max_concurrency is None or running < node.max_concurrency):
        slot = tally.pending.popleft()
        place = frame.place.children[slot]
        child = frame.children.get(key_of(place, frame.at)) or run.spawn(frame, slot, place, frame.at)
        run.move(child, place)
        running += 1
    if not tally.left:
        _finish(run, frame)


def node_ended(run: Interpreter, frame: LiveToken, child: LiveToken, error: Trouble | None) -> None:
    """Handle the end of a node: decide its edges, and begin or skip its successors."""
    node, tally, slot = cast("Graph", frame.place.node), frame.tally, child.slot
    assert tally is not None  # noqa: S101 - it has begun
    run.drop(child)
    tally.count(slot, error, run.now_ms)
    if error is not None:
        run.record_failure(frame.place.children[slot], frame.at, error)
        if node.fail_fast:
            cancel_inside(run, frame)
            run.fail(frame, error)
            return
    _decide(run, frame, slot, is_dead=error is not None)
    _begin_more(run, frame, node)


def _decide(run: Interpreter, frame: LiveToken, slot: str, *, is_dead: bool) -> None:
    """Decide the edges of a node, and those of every node that is skipped because of it."""
    edges = run.plan.edges(frame.place)
    # A queue and no recursion: a chain of skipped nodes may be as long as the graph.
    dead: deque[str] = deque([slot] if is_dead else [])
    if not is_dead:
        taken = _taken(run, frame, slot, edges.out[slot])
        for edge in edges.out[slot]:
            _arrive(run, frame, edge, edge in taken, dead)
    while dead:
        for edge in edges.out[dead.popleft()]:
            _arrive(run, frame, edge, False, dead)


def _taken(run: Interpreter, frame: LiveToken, slot: str, edges: list[Edge]) -> list[Edge]:
    facts = TemplateData(run, frame, frame.place.children[slot])
    # Every condition is evaluated, so that a faulty one fails in every run and not only when the others do not hold.
    holding = [edge for edge in edges if edge.when is not None and compile_expression(edge.when).holds(facts)]
    always = [edge for edge in edges if edge.when is None and not edge.is_otherwise]
    otherwise = [] if holding else [edge for edge in edges if edge.is_otherwise]
    return holding + always + otherwise


def _arrive(run: Interpreter, frame: LiveToken, edge: Edge, is_taken: bool, dead: deque[str]) -> None:
    """Count one more decided edge of a node."""
    slot, place, tally = edge.target, frame.place.children[edge.target], cast("_Nodes", frame.tally)
    child = frame.children.get(key_of(place, frame.at))
    if slot in tally.ended or (child is not None and not child.value.get("left")):
        return  # it began before the failed source was retried
    if child is None:
        child = run.spawn(frame, slot, place, frame.at)
        # The counts are in the token, so that a resume decides no edge a second time.
        child.value = {"left": run.plan.edges(frame.place).degree[slot], "taken": 0}
    child.value = {"left": child.value["left"] - 1, "taken": child.value["taken"] + is_taken}
    run.changes.touch(child)
    if child.value["left"]:
        return
    if child.value["taken"]:
        tally.pending.append(slot)
        return
    run.drop(child)
    tally.skip(slot)
    run.changes.record(key_of(place, frame.at), place.name, StepStatus.SKIPPED, b"null", run.now_ms)
    dead.append(slot)


def _finish(run: Interpreter, frame: LiveToken) -> None:
    tally, edges = frame.tally, run.plan.edges(frame.place)
    assert tally is not None  # noqa: S101 - it has begun
    if tally.error is not None:
        run.fail(frame, tally.error)
        return
    ends = {slot: ending(run, frame.place.children[slot], frame.at) for slot in edges.sinks}
    if len(ends) == 1:
        output: Value = output_of(*ends.values())
    else:
        output = {slot: output_of(found) for slot, found in ends.items() if found and found.status != StepStatus.SKIPPED}
    run.record_and_go_on(frame, canonical(output, run.changes.limits, what=f"the output of graph {frame.place.name!r}"))


def recount_graph(run: Interpreter, frame: LiveToken) -> None:
    """Recount a graph from its live tokens and the record."""
    node, edges = cast("Graph", frame.place.node), run.plan.edges(frame.place)
    tally = frame.tally = _Nodes(node.nodes)
    tally.pending.clear()
    there = {child.slot: child for child in frame.children.values()}
    for slot in node.nodes:
        place = frame.place.children[slot]
        found = None if slot in there else ending(run, place, frame.at)
        if found is None:
            is_ready = slot in there and there[slot].value.get("left") == 0
            if is_ready or (slot not in there and slot in edges.starts):
                tally.pending.append(slot)
        elif found.status == StepStatus.SKIPPED:
            tally.skip(slot)
        else:
            own = run.changes.step(key_of(place, frame.at))
            is_failed = own is not None and own.status == StepStatus.FAILED and not continues_after_error(place.node)
            error = own.output["error"] if own is not None and is_failed else None
            tally.count(slot, error, to_ms(found.executed_at))


def resume_graph(run: Interpreter, frame: LiveToken) -> None:
    """Begin ready nodes after a resume."""
    _begin_more(run, frame, cast("Graph", frame.place.node))
