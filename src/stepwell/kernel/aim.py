"""What the built-in step ``cancel_scope`` aims at: the open scopes of a name, as seen from the step.

A step inside a scope of that name means the one around it. Any other step means those in the iterations that it is in itself: in a
loop not those of another round, and from outside of a loop all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from stepwell.errors import InvalidInput
from stepwell.flow.definition.node import CancelScopeNode
from stepwell.flow.definition.outline import Place
from stepwell.flow.language.errors import listed, suggest
from stepwell.kernel.plan import key_of
from stepwell.kernel.thread import LiveToken

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = ["CancelTarget", "aim_at"]

Answer = Literal["cancelled", "not_begun", "ended"]


class CancelTarget(NamedTuple):
    """The scopes to cancel, and what the step answers."""

    targets: tuple[LiveToken, ...]
    answer: Answer
    is_around: bool = False
    """Whether the step is inside of its target, and ends with it."""


def aim_at(run: Interpreter, thread: LiveToken, name: object) -> CancelTarget:
    """Find the scopes of a name; ``InvalidInput`` if the definition has none of that name."""
    if name == "root":
        assert run.root is not None  # noqa: S101 - it has begun
        return CancelTarget((run.root,), "cancelled", is_around=True)
    place = _place(run, name)
    around = thread.region
    while around.parent is not None and around.place is not place:
        around = around.region
    if around.parent is not None:
        return CancelTarget((around,), "cancelled", is_around=True)
    at = thread.at[: _shared_rounds(run, place, thread.place)]
    open_ones = (region for region in run.scopes.values() if region.place is place and region.at[: len(at)] == at)
    targets = tuple(region for region in open_ones if "ending" not in region.value)
    return CancelTarget(targets, "cancelled" if targets else "ended" if _has_begun(run, place, at) else "not_begun")


def _place(run: Interpreter, name: object) -> Place:
    found = run.plan.places.get(name) if isinstance(name, str) else None
    if found is None or not isinstance(found.node, CancelScopeNode):
        scopes = ["root", *(place.name for place in run.plan.outline if isinstance(place.node, CancelScopeNode))]
        hint = suggest(name, scopes) if isinstance(name, str) else ""
        raise InvalidInput(f"there is no scope {name!r} to cancel{hint or f'; there are {listed(scopes)}'}")
    return found


def _shared_rounds(run: Interpreter, one: Place, other: Place) -> int:
    """How many loops are around both places."""
    count = 0
    for left, right in zip(run.plan.rounds[one.name], run.plan.rounds[other.name], strict=False):
        if left is not right:
            break
        count += 1
    return count


def _has_begun(run: Interpreter, place: Place, at: tuple[int, ...]) -> bool:
    """Whether anything of a scope is on record, or under way on its way out, in these iterations."""
    inside, pending = {place.name}, [place]
    while pending:
        children = pending.pop().children.values()
        inside.update(child.name for child in children)
        pending += children
    starts = tuple(key_of(run.plan.places[name], at) for name in inside)
    recorded = run.board.names("steps")
    is_recorded = any(key == start or key.startswith(f"{start}[") for key in recorded for start in starts)
    return is_recorded or any(region.place is place and region.at[: len(at)] == at for region in run.scopes.values())
