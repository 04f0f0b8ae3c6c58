"""A definition as Mermaid text: a flowchart that many tools can draw."""

from __future__ import annotations

import re
from itertools import pairwise

from stepwell.flow.caption import MOST_SHOWN, branches_of, subtitle_of, title_of
from stepwell.flow.definition import Definition
from stepwell.flow.node import Approval, Choice, Deferred, Each, Graph, Loop, Parallel, Scope, Sequence, Signal, Wait
from stepwell.flow.outline import Outline, Place

__all__ = ["draw_mermaid"]

# Quotes end a label, and Mermaid reads markup and entities in it; so these are written by their numbers.
_ODD = re.compile(r"[\"#<>&`\\{}|;]|[^\x20-\uffff]")


def draw_mermaid(definition: Definition) -> str:
    """The definition as the text of a Mermaid flowchart."""
    chart = _Chart()
    outline = Outline(definition)
    start, end = chart.shape("((%s))", "start"), chart.shape("((%s))", "end")
    first, last = chart.draw(outline.root)
    chart.arrow(start, first)
    chart.arrow(last, end)
    return "\n".join(["flowchart TD", *chart.lines, ""])


def _quoted(text: str) -> str:
    return '"' + _ODD.sub(lambda found: f"#{ord(found[0])};", text) + '"'


class _Chart:
    """The lines of a chart so far. Drawing a node gives the shapes where arrows to it end and arrows from it begin."""

    def __init__(self) -> None:
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
            case Loop() | Each() | Scope() | Graph():
                return self.group(place)
            case _:
                return self.leaf(place)

    def leaf(self, place: Place) -> tuple[str, str]:
        form = "([%s])" if isinstance(place.node, Wait | Signal | Approval) else "[%s]"
        name = self.shape(form, title_of(place), subtitle_of(place))
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
        form = "{%s}" if isinstance(place.node, Choice) else "{{%s}}"
        head = self.shape(form, title_of(place), subtitle_of(place))
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
