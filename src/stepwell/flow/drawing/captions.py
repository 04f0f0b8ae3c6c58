"""Titles, subtitles and branch labels of nodes in pictures."""

from __future__ import annotations

from msgspec import UNSET

from stepwell.flow.definition.builtin_steps import PREFIX
from stepwell.flow.definition.node import (
    Action,
    Approval,
    Choice,
    Deferred,
    Each,
    Keep,
    Loop,
    Node,
    Parallel,
    ScriptNode,
    Signal,
    StepNode,
    Subworkflow,
    Wait,
    continues_after_error,
)
from stepwell.flow.definition.outline import Place

__all__ = ["MOST_SHOWN", "branches_of", "shortened", "subtitle_of", "title_of"]

MOST_SHOWN = 40
"""Nodes of a sequence, or branches, in a picture; the rest are shown as a number, to keep the picture readable."""


def shortened(text: object, most: int = 40) -> str:
    """Return a text on one line, cut to fit a picture."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def title_of(place: Place) -> str:
    """Return the name of a node."""
    return shortened(place.name, 32)


def subtitle_of(place: Place) -> str:
    """Return what a node does, in a few words."""
    duty = _duty(place)
    if place.name.startswith(place.kind):  # its name already says its kind
        duty = duty.removeprefix(place.kind).lstrip(" :·")
    told = place.node.summary if isinstance(place.node, StepNode) else ""
    parts = [duty, told, *_extras(place.node)]
    return shortened(" · ".join(part for part in parts if part), 44)


def _duty(place: Place) -> str:
    node = place.node
    match node:
        case StepNode():
            used = node.uses.removeprefix(PREFIX)
            return used if used != place.name else ""
        case Subworkflow():
            return f"workflow {node.workflow}"
        case ScriptNode():
            return f"{node.language} script"
        case Wait():
            return f"wait {_seconds(node.time) if isinstance(node.time, float) else node.time}"
        case Signal():
            return f"signal {node.signal}"
        case Approval():
            return f"approval: {node.title}"
        case _:
            return _shape(place)


def _shape(place: Place) -> str:
    node = place.node
    match node:
        case Parallel():
            return _join_words("parallel", node.join)
        case Choice():
            return "choice" if node.mode == "first" else "choice of all that hold"
        case Loop():
            return f"loop {_loop_words(node)}"
        case Each():
            return _join_words(f"each of {shortened(node.items if node.items is not UNSET else node.count, 24)}", node.join)
        case Deferred():
            return "first signal"
        case _:
            return place.kind


def _join_words(word: str, join: str | int) -> str:
    return word if join == "all" else f"{word} · join {join}"


def _loop_words(node: Loop) -> str:
    if node.count is not None:
        return f"{node.count} times"
    if node.range is not None:
        return f"from {node.range.start} to {node.range.stop} by {node.range.step}"
    if node.while_ is not None:
        return f"while {node.while_}"
    if node.until is not None:
        return f"until {node.until}"
    return f"over {shortened(node.items, 24)}"


def _extras(node: Node) -> list[str]:
    found: list[str] = []
    if isinstance(node, Action):
        found += [f"up to {node.retry.attempts} attempts"] if node.retry is not None else []
        found += [f"undo: {node.compensate.uses}"] if node.compensate is not None else []
        found += ["goes on after errors"] if continues_after_error(node) else []
    if isinstance(node, Loop) and isinstance(node.collect, Keep):
        found.append(f"keeps {'first' if node.collect.first else 'last'} {node.collect.first or node.collect.last}")
    timeout = getattr(node, "timeout_seconds", None)
    return [*found, f"timeout {_seconds(timeout)}"] if isinstance(timeout, float) else found


def _seconds(seconds: float) -> str:
    """Return a span in the largest unit that divides it."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds and seconds % size == 0:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:g} s"


def branches_of(place: Place) -> list[tuple[str, Place]]:
    """Return the branches of a parallel, choice or deferred node with their labels."""
    node = place.node
    found: list[tuple[str, Place]] = []
    for slot, child in place.children.items():
        words = slot
        if isinstance(node, Choice) and slot != "otherwise":
            words = node.cases[int(slot)].when
        elif isinstance(node, Parallel):
            words = slot if slot not in node.optional else f"{slot} (optional)"
        elif isinstance(node, Deferred) and slot == "on_timeout":
            words = "timeout"
        found.append(("" if words == child.name else shortened(words, 36), child))
    return found
