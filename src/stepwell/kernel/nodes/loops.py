"""Loops: one iteration after another, in one token that returns to the start of the body."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from msgspec import UNSET

from stepwell.errors import InvalidInput
from stepwell.flow.definition.node import Keep, Loop
from stepwell.flow.language.expression import compile_expression
from stepwell.flow.language.template import compile_template
from stepwell.kernel.data_view import TemplateData, ending, item_at, output_of
from stepwell.kernel.nodes.joins import whole_number
from stepwell.kernel.nodes.scopes import cancel_inside
from stepwell.kernel.plan import key_of
from stepwell.kernel.protocol import Trouble, trouble
from stepwell.kernel.token import BEGINS, DO, LiveToken
from stepwell.model.record import LoopContext
from stepwell.model.value import Value, canonical

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = ["body_ended", "delay_over", "enter_loop"]


def enter_loop(run: Interpreter, frame: LiveToken, node: Loop) -> None:
    """Compute the bounds of a loop and begin the first iteration."""
    frame.value.update(_extent(run, frame, node))
    run.frames[frame.key] = frame
    run.changes.touch(frame)
    body = frame.place.children[DO]
    child = run.spawn(frame, DO, body, (*frame.at, 0), key_of(body, frame.at))
    _begin(run, frame, node, child)


def _extent(run: Interpreter, frame: LiveToken, node: Loop) -> dict[str, Value]:
    place, facts = frame.place, TemplateData(run, frame)
    if node.items is not UNSET:
        items = place.form("items").fill(facts)
        if not isinstance(items, list):
            raise InvalidInput(f"the items of {place.name!r} must be a list, not {type(items).__name__}")
        canonical(items, run.changes.limits, what=f"the items of {place.name!r}")
        return {"items": items, "total": len(cast("list[Value]", items))}
    if node.range is not None:
        bounds = {"start": node.range.start, "stop": node.range.stop, "step": node.range.step}
        filled = compile_template(bounds).fill(facts)
        start, stop, step = (whole_number(filled[part], f"{part} of {place.name!r}", None) for part in bounds)
        if not step:
            raise InvalidInput(f"the step of the range of {place.name!r} is 0")
        try:
            total = len(range(start, stop, step))
        except OverflowError:
            raise InvalidInput(f"the range of {place.name!r} has more numbers than can be counted in 64 bits") from None
        return {"range": [start, stop, step], "total": total}
    if node.count is not None:
        return {"total": whole_number(place.form("count").fill(facts), f"the count of {place.name!r}")}
    return {}


def _begin(run: Interpreter, frame: LiveToken, node: Loop, child: LiveToken) -> None:
    """Begin the child's iteration, if there is one."""
    index, total = child.at[-1], frame.value.get("total")
    if (total is not None and index >= total) or (
        node.while_ is not None and not compile_expression(node.while_).holds(TemplateData(run, child))
    ):
        _finish(run, frame, node, child, index)
        return
    if node.max_iterations is not None and index >= node.max_iterations:
        message = f"loop {frame.place.name!r} would go on after {node.max_iterations:,} iterations"
        cancel_inside(run, frame)
        run.fail(frame, trouble("TooManyIterations", message))
        return
    run.changes.set_loop(LoopContext(frame.key, index, item_at(frame, index), total))
    run.move(child, frame.place.children[DO])


def body_ended(run: Interpreter, frame: LiveToken, child: LiveToken, error: Trouble | None) -> None:
    """Handle the end of an iteration."""
    node = cast("Loop", frame.place.node)
    if error is not None:
        cancel_inside(run, frame)
        run.fail(frame, error)
        return
    index, total = child.at[-1], frame.value.get("total")
    facts = TemplateData(run, child, frame.place.children[DO])
    for condition in (node.until, node.break_when):
        if condition is not None and compile_expression(condition).holds(facts):
            _finish(run, frame, node, child, index + 1)
            return
    child.at = (*frame.at, index + 1)
    child.place, child.value = frame.place.children[DO], {}
    run.changes.touch(child)
    if node.delay_seconds and (total is None or index + 1 < total):
        run.wake_at(child, run.now_ms + round(node.delay_seconds * 1000), BEGINS)
    else:
        _begin(run, frame, node, child)


def delay_over(run: Interpreter, child: LiveToken) -> None:
    """Handle the timer between two iterations."""
    frame = child.parent
    assert frame is not None  # noqa: S101 - it is inside of a loop
    child.value = {}
    run.guarded(frame, lambda: _begin(run, frame, cast("Loop", frame.place.node), child))


def _finish(run: Interpreter, frame: LiveToken, node: Loop, child: LiveToken, count: int) -> None:
    run.drop(child)
    body = frame.place.children[DO]

    def outputs(start: int, stop: int) -> list[Value]:
        return [output_of(ending(run, body, (*frame.at, index))) for index in range(max(start, 0), stop)]

    match node.collect:
        case "all":
            collected: Value = outputs(0, count)
        case "last":
            collected = (outputs(count - 1, count) or [None])[0]
        case Keep(first=int() as most):
            collected = outputs(0, min(most, count))
        case Keep(last=int() as most):
            collected = outputs(count - most, count)
        case _:
            collected = None
    run.record_and_go_on(frame, canonical(collected, run.changes.limits, what=f"the output of loop {frame.place.name!r}"))
