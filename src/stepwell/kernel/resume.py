"""Resume a stored execution: rebuild the live tokens, and request running effects again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.errors import InvalidInput
from stepwell.flow.definition.node import Action, CancelScopeNode, Choice, Each, Graph, Loop, Parallel
from stepwell.kernel.nodes import graphs, joins, steps, waits
from stepwell.kernel.nodes.scopes import cancel_inside, pass_scope, undo_order
from stepwell.kernel.signals import WAITING_ORDER
from stepwell.kernel.token import BEGINS, CALL_KEY, CHILDREN, ROOT, TIMES, UNDO, LiveToken
from stepwell.model.record import Token, decode_token

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = ["load", "resume"]

_OWN = frozenset({"in", "slot", "at", "item", "loops"})


def load(run: Interpreter) -> bool:
    """Rebuild the tokens of an execution. Return False if it has not begun."""
    stored_tokens = {token_id: decode_token(data) for token_id, data in sorted(run.changes.all("tokens").items())}
    if ROOT not in stored_tokens:
        return False
    inside: dict[str | None, list[Token]] = {}
    for stored in stored_tokens.values():
        inside.setdefault(stored.value["in"], []).append(stored)
    root = run.root = _live_token(run, stored_tokens[ROOT], None)
    run.tokens[ROOT] = root
    pending = [root]
    for parent in pending:  # the list grows during the loop; a token comes after its frame
        for stored in inside.get(parent.id, ()):
            pending.append(_place(run, stored, parent))
    for token in pending:
        _rebuild(run, token)
    for token in sorted(filter(_is_under_way, pending), key=lambda token: token.value.get(WAITING_ORDER, 0)):
        waits.listen_again(run, token)
    return True


def _is_under_way(token: LiveToken) -> bool:
    """Return whether the node at a token's place has begun; the root token only represents the whole."""
    is_dormant = token.slot == UNDO and not token.value.get("is_running")
    return not (token.parent is None or is_dormant or BEGINS in token.value or "left" in token.value)


def _live_token(run: Interpreter, stored: Token, parent: LiveToken | None) -> LiveToken:
    place = run.plan.places.get(stored.node)
    if place is None:
        raise InvalidInput(f"token {stored.token_id!r} is at the node {stored.node!r}, which this definition does not have")
    value: dict[str, Any] = stored.value
    token = LiveToken(stored.token_id, place, parent, value["slot"], tuple(value["at"]))
    token.value = {key: each for key, each in value.items() if key not in _OWN}
    if value.get("parent") != run.execution_id:
        # A fork copies the original's tokens, but the original's children are not its own.
        token.value.pop("child", None)
        token.value.pop(CHILDREN, None)
    if "item" in value:
        token.item = value["item"]
    token.loops = value.get("loops", {})
    token.is_stored = True
    return token


def _place(run: Interpreter, stored: Token, parent: LiveToken) -> LiveToken:
    token = _live_token(run, stored, parent)
    run.adopt(parent, token)
    if token.slot == UNDO:
        run.undo_count = max(run.undo_count, token.value["undo"])
        if not token.value.get("is_running"):
            parent.children.pop(token.id)
            parent.compensations.append(token)
    return token


def _rebuild(run: Interpreter, token: LiveToken) -> None:
    """Rebuild what is kept in memory only: join counts, open scopes and timers."""
    # Tokens are loaded in the order of their ids, but compensations run in the reverse order of completion.
    token.compensations.sort(key=undo_order)
    for field in TIMES:
        if token.value.get(field) is not None:
            run.wake_at(token, token.value[field], field)
    if not _is_under_way(token):
        return
    if CALL_KEY in token.value:
        run.calls[token.value[CALL_KEY]] = token
    match token.place.node:
        case CancelScopeNode():
            run.scopes[token.id] = token
        case Parallel() | Each():
            joins.recount(run, token)
        case Choice() if "chosen" in token.value:
            joins.recount(run, token)
        case Loop():
            run.frames[token.key] = token
        case Graph():
            graphs.recount_graph(run, token)
        case _:
            pass


def resume(run: Interpreter) -> None:
    """Request running effects again."""
    # Copy the list: resuming a token may end others and create new ones.
    for token in list(filter(_is_under_way, run.tokens.values())):  # frames before their children
        if not token.is_gone:
            _resume(run, token)


def _resume(run: Interpreter, token: LiveToken) -> None:
    node = token.place.node
    match node:
        case Action():
            if run.is_answered(token):
                return
            run.guarded(token, lambda: steps.resume_action(run, token, node))
        case Parallel() | Each():  # it may keep running after it was recorded, so recount it even then
            joins.resume_join(run, token)
        case _ if run.changes.step(token.key) is not None:
            _pass(run, token)
        case Choice() if "chosen" in token.value:
            joins.resume_join(run, token)
        case Graph():
            graphs.resume_graph(run, token)
        case _:
            pass


def _pass(run: Interpreter, token: LiveToken) -> None:
    """Continue after a place that ended by the record: it ended in the commit of a failure that is retried."""
    # A retry may have restored tokens inside a place that has ended; they must not run again.
    cancel_inside(run, token)
    if isinstance(token.place.node, CancelScopeNode):
        pass_scope(run, token)
    run.quiet(token)
    run.record_and_go_on(token, b"null")
