"""What must hold for each kind of node, seen alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast

from msgspec import UNSET

from stepwell.errors import StepwellError
from stepwell.flow.builtin import BUILTINS, PREFIX, builtin_of
from stepwell.flow.expression import compile_expression
from stepwell.flow.finding import Finding, Findings
from stepwell.flow.graph_rules import graph_findings
from stepwell.flow.node import (
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
from stepwell.flow.outline import Place
from stepwell.flow.suggestion import suggest
from stepwell.flow.template import is_template

__all__ = ["Known", "node_findings"]


class Known(NamedTuple):
    """What a definition may refer to from outside itself; None: anything."""

    steps: Collection[str] | None
    workflows: Collection[str] | None
    scopes: Collection[str]


def node_findings(place: Place, known: Known) -> Findings:
    """Every fault of a node that can be seen without its surroundings."""
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


def _action(place: Place, node: Action, known: Known) -> Findings:
    if node.compensate is not None and node.compensate.compensate is not None:
        yield Finding((*place.path, "compensate", "compensate"), "what undoes a step cannot itself be undone")
    if isinstance(node, StepNode):
        yield from _step(place, node, known)
    elif isinstance(node, Subworkflow) and known.workflows is not None and node.workflow not in known.workflows:
        message = f"there is no workflow {node.workflow!r}{suggest(node.workflow, known.workflows)}"
        yield Finding((*place.path, "subworkflow"), message)


def _step(place: Place, node: StepNode, known: Known) -> Findings:
    here = (*place.path, "step")
    builtin = builtin_of(node.uses)
    if builtin is not None:
        yield from _builtin(place, node, known)
    elif not node.uses:
        yield Finding(here, "which step? The name is empty")
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
        yield Finding((*place.path, "join"), f"it waits for {node.join} of {len(node.branches)} branches, which can never be")


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
    """What a condition without references gives, or None."""
    try:
        found = compile_expression(condition)
        return found.holds({}) if found.is_constant else None
    except StepwellError:
        return None  # a condition that fails on all data is reported where it is written


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
        yield Finding((*place.path, "collect"), "keep either the first or the last so many")


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
    if size is not None and isinstance(node.join, int) and node.join > size:
        yield Finding((*place.path, "join"), f"it waits for {node.join} of {size} instances, which can never be")


def _deferred(place: Place, node: Deferred) -> Findings:
    if not node.branches:
        yield Finding(place.path, "there are no branches")
    for name in node.branches:
        if name in ("", "on_timeout"):
            yield Finding((*place.path, "deferred", name), f"a signal cannot have the name {name!r} here", is_about_key=True)
    if node.on_timeout is not None and node.timeout_seconds is None:
        yield Finding((*place.path, "on_timeout"), "this can never run: there is no timeout_seconds")


def _approval(place: Place, node: Approval) -> Findings:
    if node.on_timeout == "default" and node.default is UNSET:
        yield Finding((*place.path, "on_timeout"), "which default? Give one with the key 'default'")
    if node.on_timeout == "escalate" and not node.escalate_to:
        yield Finding((*place.path, "on_timeout"), "escalate to whom? Give 'escalate_to'")
    if node.timeout_seconds is None and (node.on_timeout != "cancel" or node.escalate_to or node.default is not UNSET):
        yield Finding(place.path, "what to do at the timeout is said, but there is no timeout_seconds")
    if node.approvers and node.needed > len(node.approvers):
        message = f"{node.needed} of {len(node.approvers)} approvers can never agree"
        yield Finding((*place.path, "needed"), message)
    if node.escalate_to and node.needed > len(node.escalate_to):
        message = f"{node.needed} of {len(node.escalate_to)} approvers can never agree"
        yield Finding((*place.path, "escalate_to"), message)
