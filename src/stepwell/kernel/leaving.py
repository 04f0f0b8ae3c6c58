"""Leaving: stopping what is inside of a frame, and going on from a frame whose children run on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepwell.flow.definition.node import Action
from stepwell.kernel.effect import Abandon, CancelChild
from stepwell.kernel.facts import DataView, loops_around
from stepwell.kernel.thread import LOOSE, UNDO, LiveToken

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = ["cancel_inside", "go_on_without", "hand_over"]


def go_on_without(run: Interpreter, frame: LiveToken, output: bytes) -> None:
    """Go on from a frame whose children run on: another thread takes its place, and the frame stays beside it, loose."""
    parent, before = frame.parent, frame.item_from
    assert parent is not None  # noqa: S101 - the root never joins
    after = LiveToken(f"(after) {frame.key}", frame.place, parent, frame.slot, frame.at)
    after.item = frame.item
    if before is not None:
        _keep_item(run, frame, before)
    frame.loops = loops_around(run, frame, frame.place)
    parent.children.pop(frame.id)
    frame.slot = LOOSE
    run.adopt(parent, after)
    run.adopt(frame.region, frame)
    run.board.touch(frame)
    run.board.touch(after)
    run.record_and_go_on(after, output)


def _keep_item(run: Interpreter, frame: LiveToken, before: LiveToken) -> None:
    """The loop around may go on to other items: what runs on keeps its own."""
    frame.item = DataView(run, frame)["item"]
    pending = [frame]
    while pending:
        thread = pending.pop()
        if thread.item_from is before:
            thread.item_from = frame
        pending += thread.children.values()


def cancel_inside(run: Interpreter, frame: LiveToken) -> None:
    """Stop everything inside a frame. What would undo steps in there goes to the region that the frame is, or is in."""
    inside = [*frame.children.values()]
    for thread in inside:  # grows as it goes: what is inside of what is inside
        inside += thread.children.values()
    undos: list[LiveToken] = []
    for thread in reversed(inside):  # scopes close from the inside out
        undos += thread.undos
        thread.undos = []
        _stop(run, thread)
        if thread.slot == UNDO:
            thread.value = {"undo": thread.value["undo"]}
            if thread.parent is not None:
                thread.parent.children.pop(thread.id, None)
            undos.append(thread)
        else:
            run.drop(thread)
    home = frame if frame.parent is None or frame.id in run.scopes else frame.region
    hand_over(run, undos, home)


def _stop(run: Interpreter, thread: LiveToken) -> None:
    """Call off what a thread has asked for."""
    run.frames.pop(thread.key, None)
    child_id = thread.value.get("child")
    if child_id is not None:
        run.kids.pop(child_id, None)
        run.effects.append(CancelChild(child_id))
    if isinstance(thread.place.node, Action):
        run.effects.append(Abandon(thread.id))
    if run.scopes.pop(thread.id, None) is not None:
        run.board.exit_scope(thread.scope_id)


def hand_over(run: Interpreter, undos: Iterable[LiveToken], home: LiveToken) -> None:
    """Give what would undo steps to another region."""
    for undo in undos:
        undo.parent = undo.region = home
        home.undos.append(undo)
        run.threads[undo.id] = undo
        run.board.touch(undo)
