"""Render a definition as Mermaid text: a flowchart that many tools can draw."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from stepwell.flow.definition.node import (
    Approval,
    CancelScopeNode,
    Choice,
    Deferred,
    Definition,
    Each,
    Graph,
    Loop,
    Parallel,
    Sequence,
    Signal,
    Wait,
)
from stepwell.flow.definition.outline import Outline, Place
from stepwell.flow.drawing.captions import MOST_SHOWN, branches_of, subtitle_of, title_of
from stepwell.flow.drawing.run_diagram import Mark

__all__ = ["draw_mermaid"]

# Quotes end a label, and Mermaid interprets markup and entities in it, so these become numeric entities.
_ODD = re.compile(r"[\"#<>&`\\{}|;]|[^\x20-\uffff]")


_STYLES: dict[Mark, str] = {
    "done": "fill:#e6f4ea,stroke:#2e7d4f,color:#14293c",
    "running": "fill:#e3efff,stroke:#1f5fbf,stroke-width:3px,color:#14293c",
    "waiting": "fill:#fff6d6,stroke:#a67c00,stroke-width:3px,color:#14293c",
    "failed": "fill:#fde8e6,stroke:#b3362b,stroke-width:3px,color:#14293c",
    "skipped": "fill:#f4f5f6,stroke:#9aa5b1,stroke-dasharray:3 3,color:#14293c",
}


def draw_mermaid(definition: Definition, marks: Mapping[str, Mark] | None = None) -> str:
    """Return the definition as a Mermaid flowchart.

    ``marks`` gives the state of nodes in a run by name: ``done``, ``running``, ``waiting``, ``failed`` or ``skipped``.

    - ``definition``: the definition to draw.
    """
    chart = _Chart(marks or {})
    outline = Outline(definition)
    start, end = chart.shape("((%s))", "start"), chart.shape("((%s))", "end")
    first, last = chart.draw(outline.root)
    chart.arrow(start, first)
    chart.arrow(last, end)
    used = {mark for _, mark in chart.marked}
    styles = [f"    classDef {mark} {style}" for mark, style in _STYLES.items() if mark in used]
    styles += [f"    class {name} {mark}" for name, mark in chart.marked]
    return "\n".join(["flowchart TD", *chart.lines, *styles, ""])


def _quoted(text: str) -> str:
    return '"' + _ODD.sub(lambda found: f"#{ord(found[0])};", text) + '"'


class _Chart:
    """The lines of a chart. Drawing a node returns the shapes where edges to it end and edges from it begin."""

    def __init__(self, marks: Mapping[str, Mark]) -> None:
        self.marks = marks
        self.marked: list[tuple[str, Mark]] = []
        self.lines: list[str] = []
        self.count = 0
        self.indent = "    "

    def shape(self, form: str, *words: str) -> str:
        name = f"n{self.count}"
        self.count += 1
        label = _quoted(" — ".join(word for word in words if word))
        self.lines.append(f"{self.indent}{name}{form % label}")
        return name

    def arrow(self, source: str, target: str, words: str = "") -> None:
        label = f"|{_quoted(words)}|" if words else ""
        self.lines.append(f"{self.indent}{source} -->{label} {target}")

    def draw(self, place: Place) -> tuple[str, str]:
        match place.node:
            case Sequence():
                return self.sequence(place)
            case Parallel() | Choice() | Deferred():
                return self.fork(place)
            case Loop() | Each() | CancelScopeNode() | Graph():
                return self.group(place)
            case _:
                return self.leaf(place)

    def place(self, form: str, place: Place) -> str:
        name = self.shape(form, title_of(place), subtitle_of(place))
        if place.name in self.marks:
            self.marked.append((name, self.marks[place.name]))
        return name

    def leaf(self, place: Place) -> tuple[str, str]:
        name = self.place("([%s])" if isinstance(place.node, Wait | Signal | Approval) else "[%s]", place)
        return name, name

    def sequence(self, place: Place) -> tuple[str, str]:
        ends: list[tuple[str, str]] = []
        for child in [*place.children.values()][:MOST_SHOWN]:
            ends.append(self.draw(child))
        if len(place.children) > MOST_SHOWN:
            more = self.shape("[%s]", f"{len(place.children) - MOST_SHOWN} more")
            ends.append((more, more))
        for (_, before), (after, _) in pairwise(ends):
            self.arrow(before, after)
        if not ends:
            return self.leaf(place)
        return ends[0][0], ends[-1][1]

    def fork(self, place: Place) -> tuple[str, str]:
        head = self.place("{%s}" if isinstance(place.node, Choice) else "{{%s}}", place)
        tail = self.shape("((%s))", " ")
        branches = branches_of(place)
        for words, child in branches[:MOST_SHOWN]:
            first, last = self.draw(child)
            self.arrow(head, first, words)
            self.arrow(last, tail)
        if len(branches) > MOST_SHOWN:
            self.arrow(head, self.shape("[%s]", f"{len(branches) - MOST_SHOWN} more"))
        return head, tail

    def group(self, place: Place) -> tuple[str, str]:
        name = f"g{self.count}"
        self.count += 1
        self.lines.append(f"{self.indent}subgraph {name} [{_quoted(' — '.join((title_of(place), subtitle_of(place))))}]")
        outer, self.indent = self.indent, self.indent + "    "
        if isinstance(place.node, Graph):
            self.arrows(place, place.node)
        else:
            self.draw(place.children["do"])
        self.indent = outer
        self.lines.append(f"{self.indent}end")
        return name, name

    def arrows(self, place: Place, graph: Graph) -> None:
        ends: dict[str, tuple[str, str]] = {}
        for slot, child in place.children.items():
            ends[slot] = self.draw(child)
        for edge in graph.edges:
            if edge.source in ends and edge.target in ends:
                words = "otherwise" if edge.is_otherwise else edge.when or ""
                self.arrow(ends[edge.source][1], ends[edge.target][0], words)
