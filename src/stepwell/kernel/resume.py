"""Resume a stored execution: rebuild the live tokens, and request running effects again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.errors import InvalidInput
from stepwell.flow.definition.node import Action, CancelScopeNode, Choice, Each, Graph, Loop, Parallel
from stepwell.kernel.nodes import graphs, joins, steps, waits
from stepwell.kernel.nodes.scopes import cancel_inside, pass_scope
from stepwell.kernel.signals import TURN
from stepwell.kernel.token import BEGINS, ROOT, TIMES, UNDO, LiveToken
from stepwell.model.record import Token, decode_token

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = ["load", "resume"]

_OWN = frozenset({"in", "slot", "at", "item", "loops"})


def load(run: Interpreter) -> bool:
    """Rebuild the tokens of an execution. Return False if it has not begun."""
    tokens = {token_id: decode_token(data) for token_id, data in sorted(run.board.all("tokens").items())}
    if ROOT not in tokens:
        return False
    inside: dict[str | None, list[Token]] = {}
    for token in tokens.values():
        inside.setdefault(token.value["in"], []).append(token)
    root = run.root = _thread(run, tokens[ROOT], None)
    run.threads[ROOT] = root
    pending = [root]
    for parent in pending:  # the list grows during the loop; a token comes after its frame
        for token in inside.get(parent.id, ()):
            pending.append(_place(run, token, parent))
    for thread in pending:
        _rebuild(run, thread)
    for thread in sorted(filter(_is_under_way, pending), key=lambda thread: thread.value.get(TURN, 0)):
        waits.listen_again(run, thread)
    return True


def _is_under_way(thread: LiveToken) -> bool:
    """Return whether the node at a token's place has begun; the root token only represents the whole."""
    is_dormant = thread.slot == UNDO and not thread.value.get("is_running")
    return not (thread.parent is None or is_dormant or BEGINS in thread.value or "left" in thread.value)


def _thread(run: Interpreter, token: Token, parent: LiveToken | None) -> LiveToken:
    place = run.plan.places.get(token.node)
    if place is None:
        raise InvalidInput(f"token {token.token_id!r} stands at {token.node!r}, which this definition does not have")
    value: dict[str, Any] = token.value
    thread = LiveToken(token.token_id, place, parent, value["slot"], tuple(value["at"]))
    thread.value = {key: each for key, each in value.items() if key not in _OWN}
    if value.get("parent") != run.execution_id:
        thread.value.pop("child", None)  # a fork copies the original's tokens, but the original's children are not its own
    if "item" in value:
        thread.item = value["item"]
    thread.loops = value.get("loops", {})
    thread.is_stored = True
    return thread


def _place(run: Interpreter, token: Token, parent: LiveToken) -> LiveToken:
    thread = _thread(run, token, parent)
    run.adopt(parent, thread)
    if thread.slot == UNDO:
        run.undo_count = max(run.undo_count, thread.value["undo"])
        if not thread.value.get("is_running"):
            parent.children.pop(thread.id)
            parent.undos.append(thread)
    return thread


def _rebuild(run: Interpreter, thread: LiveToken) -> None:
    """Rebuild what is kept in memory only: join counts, open scopes and timers."""
    thread.undos.sort(key=lambda undo: undo.value["undo"])
    for field in TIMES:
        if thread.value.get(field) is not None:
            run.wake_at(thread, thread.value[field], field)
    if not _is_under_way(thread):
        return
    match thread.place.node:
        case CancelScopeNode():
            run.scopes[thread.id] = thread
        case Parallel() | Each():
            joins.recount(run, thread)
        case Choice() if "chosen" in thread.value:
            joins.recount(run, thread)
        case Loop():
            run.frames[thread.key] = thread
        case Graph():
            graphs.recount_graph(run, thread)
        case _:
            pass


def resume(run: Interpreter) -> None:
    """Request running effects again."""
    for thread in list(filter(_is_under_way, run.threads.values())):  # frames before their children
        if not thread.is_gone:
            _resume(run, thread)


def _resume(run: Interpreter, thread: LiveToken) -> None:
    node = thread.place.node
    match node:
        case Action():
            if run.is_answered(thread):
                return
            run.guarded(thread, lambda: steps.resume_action(run, thread, node))
        case Parallel() | Each():  # it may keep running after it was recorded, so recount it even then
            joins.resume_join(run, thread)
        case _ if run.board.step(thread.key) is not None:
            _pass(run, thread)
        case Choice() if "chosen" in thread.value:
            joins.resume_join(run, thread)
        case Graph():
            graphs.resume_graph(run, thread)
        case _:
            pass


def _pass(run: Interpreter, thread: LiveToken) -> None:
    """Continue after a place that ended by the record: it ended in the commit of a failure that is retried."""
    cancel_inside(run, thread)
    if isinstance(thread.place.node, CancelScopeNode):
        pass_scope(run, thread)
    run.quiet(thread)
    run.record_and_go_on(thread, b"null")
