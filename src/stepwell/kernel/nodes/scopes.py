"""Scopes: the execution as a whole and the cancel scopes inside it. A scope completes, fails, or is cancelled as a whole.

A scope holds the compensations of the steps that completed in it. If it fails or is cancelled, they run in reverse order before
it ends. If it completes, they move to the enclosing scope. This module also stops everything inside a frame, and lets a frame
continue without its running children.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import UNSET

from stepwell.errors import ExecutionCancelled, ValidationFailed
from stepwell.flow.definition.node import Action, Approval, CancelScopeNode, Signal, Wait
from stepwell.kernel.data_view import TemplateData, ending, loops_around, output_of
from stepwell.kernel.protocol import Abandon, CancelChild, End, Trouble, trouble, trouble_of
from stepwell.kernel.token import AFTER_CALL, CALL_KEY, DO, LOOSE, NOT_UNDONE, ROOT, SUMMARY, UNDO, LiveToken
from stepwell.model.execution_state import ONLY
from stepwell.model.record import decode_metadata, decode_token, overran
from stepwell.model.status import Status, StepStatus
from stepwell.model.value import Value, canonical, decode, recode

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = [
    "CANCELLABLE",
    "begin",
    "cancel_inside",
    "cancel_named",
    "end_call",
    "enter_scope",
    "go_on_without",
    "hand_over",
    "is_cancellable",
    "keep_undo",
    "leave",
    "member_ended",
    "pass_scope",
    "stop",
    "time_over",
    "undo_order",
]


CANCELLABLE = (Action, Wait, Signal, Approval)
"""The kinds of nodes at which a caller may cancel a run."""


def go_on_without(run: Interpreter, frame: LiveToken, output: bytes) -> None:
    """Continue after a frame whose children keep running: a new token continues, and the frame stays detached."""
    parent, before = frame.parent, frame.item_from
    assert parent is not None  # noqa: S101 - the root never joins
    # The frame keeps its id, which its running children store as their parent, so the new token takes another id.
    after = LiveToken(f"(after) {frame.key}", frame.place, parent, frame.slot, frame.at)
    after.item = frame.item
    if before is not None:
        _keep_item(run, frame, before)
    frame.loops = loops_around(run, frame, frame.place)
    # From here on the frame is a detached member of its scope: the scope ends only after it, but its failure does not count.
    parent.children.pop(frame.id)
    frame.slot = LOOSE
    run.adopt(parent, after)
    run.adopt(frame.scope, frame)
    run.changes.touch(frame)
    run.changes.touch(after)
    run.record_and_go_on(after, output)


def _keep_item(run: Interpreter, frame: LiveToken, before: LiveToken) -> None:
    """Let running children keep the current item, since the enclosing loop may go on to the next."""
    frame.item = TemplateData(run, frame)["item"]
    pending = [frame]
    while pending:
        token = pending.pop()
        if token.item_from is before:
            token.item_from = frame
        pending += token.children.values()


def cancel_inside(run: Interpreter, frame: LiveToken, *, is_for_good: bool = False) -> None:
    """Stop everything inside a frame. Compensations inside move to the frame's scope.

    - ``is_for_good``: whether no retry runs what is stopped again, so that its steps and waits are recorded as cancelled.
    """
    inside = [*frame.children.values()]
    for token in inside:  # the list grows during the loop, by the children of each item
        inside += token.children.values()
    compensations: list[LiveToken] = []
    for token in reversed(inside):  # inner scopes close before outer ones
        compensations += token.compensations
        token.compensations = []
        if is_for_good and is_cancellable(token) and "left" not in token.value and run.changes.step(token.key) is None:
            summary = token.value.get(SUMMARY)
            run.changes.record(token.key, token.place.name, StepStatus.CANCELLED, b"null", run.now_ms, summary=summary)
        stop(run, token)
        # A compensation that was running has had no effect on record; it runs again from its start.
        if token.slot == UNDO:
            token.value = {"undo": token.value["undo"]}
            if token.parent is not None:
                token.parent.children.pop(token.id, None)
            compensations.append(token)
        else:
            run.drop(token)
    home = frame if frame.parent is None or frame.id in run.scopes else frame.scope
    hand_over(run, compensations, home)


def is_cancellable(token: LiveToken) -> bool:
    """Return whether a token stands at a step or a wait that a caller may cancel. Compensation is seen through."""
    return token.slot != UNDO and isinstance(token.place.node, CANCELLABLE)


def stop(run: Interpreter, token: LiveToken) -> None:
    """Cancel the effect that a token waits for."""
    run.frames.pop(token.key, None)
    end_call(run, token)
    child_id = token.value.get("child")
    if child_id is not None:
        run.child_waits.pop(child_id, None)
        run.effects.append(CancelChild(child_id))
    if isinstance(token.place.node, Action):
        run.effects.append(Abandon(token.id))
    if run.scopes.pop(token.id, None) is not None:
        run.changes.exit_scope(token.scope_id)


def end_call(run: Interpreter, token: LiveToken) -> None:
    """Let the tokens go on that wait for the end of this token's call, if it has a key of the user's own."""
    call_key = token.value.get(CALL_KEY)
    if call_key is None or run.calls.get(call_key) is not token:
        return
    del run.calls[call_key]
    for other in run.call_waits.pop(call_key, ()):
        if other.value.get(AFTER_CALL) == call_key:
            run.enter(other)


def hand_over(run: Interpreter, compensations: Iterable[LiveToken], home: LiveToken) -> None:
    """Move compensations to another scope."""
    for undo in compensations:
        undo.parent = undo.scope = home
        home.compensations.append(undo)
        run.tokens[undo.id] = undo
        run.changes.touch(undo)


def undo_order(undo: LiveToken) -> tuple[bool, int]:
    """Return the sort key of compensations: the latest completed step is last, which is undone first; failed ones come before."""
    return NOT_UNDONE not in undo.value, undo.value["undo"]


How = Literal["failed", "cancelled"]


def begin(run: Interpreter) -> None:
    """Begin the execution: the root token, the variables, and a token at the first node."""
    definition = run.plan.definition
    for name, value in definition.variables.items():
        if run.changes.get("variables", name) is None:
            run.changes.set_variable(name, value)
    root = run.root = LiveToken(ROOT, run.plan.root, None, "", ())
    run.tokens[root.id] = root
    run.changes.touch(root)
    seconds = definition.timeout_seconds
    # The execution's deadline was fixed when it was created; the definition's timeout counts from its first transition.
    deadline = run.deadline_ms or (None if seconds is None else run.now_ms + round(seconds * 1000))
    if deadline is not None:
        run.wake_at(root, deadline)
    run.enter(run.spawn(root, DO, run.plan.root, ()))


def enter_scope(run: Interpreter, frame: LiveToken, node: CancelScopeNode) -> None:
    """Open a cancel scope and begin its node."""
    run.changes.enter_scope(frame.scope_id, frame.scope.scope_id)
    run.scopes[frame.id] = frame
    run.changes.touch(frame)
    if node.timeout_seconds is not None:
        run.wake_at(frame, run.now_ms + round(node.timeout_seconds * 1000))
    run.enter(run.spawn(frame, DO, frame.place.children[DO], frame.at))
    if node.cancel_on is not None:
        run.listen(frame, node.cancel_on)


def member_ended(run: Interpreter, frame: LiveToken, child: LiveToken, error: Trouble | None) -> None:
    """Handle the end of a node directly inside a scope."""
    if child.slot == UNDO:
        if error is None:
            run.drop(child)
        else:
            run.record_failure(child.place, child.at, error)
            _keep_failed_undo(run, frame, child, error)
        _undo_next(run, frame)
        return
    run.drop(child)
    # The join has already decided without a detached child, so its failure has no effect.
    if error is not None and child.slot != LOOSE:
        leave(run, frame, "failed", error)
        return
    if child.slot == DO:
        frame.value["is_done"] = True
    if frame.value.get("is_done") and not frame.children:
        _finish(run, frame)
    else:
        run.changes.touch(frame)


def _finish(run: Interpreter, frame: LiveToken) -> None:
    """End a scope in which everything has ended."""
    node = frame.place.node
    place = run.plan.root if frame is run.root else frame.place.children[DO]
    output = recode(output_of(ending(run, place, frame.at)))
    if frame is not run.root and isinstance(node, CancelScopeNode):
        hand_over(run, frame.compensations, frame.scope)
        _close(run, frame)
        run.record_and_go_on(frame, output)
        return
    template = run.plan.definition.output
    if template is not UNSET:
        try:
            output = canonical(run.output_form.fill(TemplateData(run, frame)), run.changes.limits, what="the result")
        except ValidationFailed as error:
            leave(run, frame, "failed", trouble_of(error))
            return
    _end(run, Status.COMPLETED, {"output": decode(output)})


def pass_scope(run: Interpreter, frame: LiveToken) -> None:
    """Close a scope that ended by the record. Its compensations were run then, or move to the enclosing scope now."""
    found = run.changes.step(frame.key)
    if found is not None and found.status == StepStatus.CANCELLED:
        for undo in frame.compensations:
            run.drop(undo)
    else:
        hand_over(run, frame.compensations, frame.scope)
    _close(run, frame)


def leave(run: Interpreter, frame: LiveToken, how: How, error: Trouble) -> None:
    """End a scope early: stop everything in it, run its compensations, then record how it ended."""
    if "ending" in frame.value:
        return  # it is ending already
    node = frame.place.node
    # A scope that fails is retried, and its steps with it. A cancelled execution is not.
    goes_on = frame is run.root or not isinstance(node, CancelScopeNode) or node.on_cancel == "continue"
    cancel_inside(run, frame, is_for_good=how == "cancelled" and goes_on)
    # Saga order: undo the latest completed step first. Compensations arrive from inner scopes in any order.
    frame.compensations.sort(key=undo_order)
    run.quiet(frame)
    frame.value = {"ending": {"how": how, "error": error}}
    run.changes.touch(frame)
    _undo_next(run, frame)


def cancel_named(run: Interpreter, name: str) -> None:
    """Cancel the open scopes of a node, or the one with this id."""
    error = trouble("ExecutionCancelled", f"scope {name!r} was cancelled", ExecutionCancelled.code)
    for frame in [each for each in run.scopes.values() if name in (each.place.name, each.scope_id)]:
        if frame.id in run.scopes:  # the scope cancelled before may have enclosed this one
            leave(run, frame, "cancelled", error)


def _keep_failed_undo(run: Interpreter, frame: LiveToken, undo: LiveToken, error: Trouble) -> None:
    """Keep the token of a failed compensation until the execution ends, for the result, and for a retry to run it again."""
    run.quiet(undo)
    frame.children.pop(undo.id)
    undo.value = {"undo": undo.value["undo"], NOT_UNDONE: error}
    frame.compensations.insert(0, undo)
    run.changes.touch(undo)


def _is_kept(run: Interpreter, undo: LiveToken) -> bool:
    """Return whether a failed compensation is committed as such."""
    data = run.changes.get("tokens", undo.id)
    return data is not None and NOT_UNDONE in decode_token(data).value


def _undo_next(run: Interpreter, frame: LiveToken) -> None:
    if frame.compensations and NOT_UNDONE not in frame.compensations[-1].value:
        undo = frame.compensations.pop()
        frame.children[undo.id] = undo
        undo.value = {**undo.value, "is_running": True}
        run.enter(undo)
        run.changes.touch(undo)
        return
    told: dict[str, Any] = frame.value["ending"]
    if frame is run.root:
        if not all(_is_kept(run, undo) for undo in frame.compensations):
            # A retry takes the tokens of failed compensations from the revision before the end, so they are committed first.
            run.wake_at(frame, run.now_ms)
            return
        status = Status.CANCELLED if told["how"] == "cancelled" else Status.FAILED
        _end(run, status, {"error": told["error"], **_compensation(run, frame)})
        return
    is_undone = not frame.compensations
    hand_over(run, frame.compensations, frame.scope)
    _close(run, frame)
    node = cast("CancelScopeNode", frame.place.node)
    if told["how"] == "cancelled" and is_undone and node.on_cancel == "continue":
        run.changes.record(frame.key, frame.place.name, StepStatus.CANCELLED, b"null", run.now_ms)
        run.done(frame, b"null")
    else:
        run.fail(frame, told["error"])


def _compensation(run: Interpreter, root: LiveToken) -> dict[str, Value]:
    """Return what the result says of compensations: those that were run, the first one first, and those that failed."""
    undoing = {place.name for place in run.plan.places.values() if place.slot == "compensate"}
    if not undoing:
        return {}
    records = map(run.changes.step, run.changes.names("steps"))
    made = [found for found in records if found and found.node_name in undoing and found.status == StepStatus.COMPLETED]
    undone: list[Value] = [found.node_id for found in sorted(made, key=lambda found: (found.executed_at, found.node_id))]
    failed: dict[str, Value] = {undo.key: undo.value[NOT_UNDONE] for undo in reversed(root.compensations)}
    return {"compensation": {"undone": undone, "failed": failed}} if undone or failed else {}


def _close(run: Interpreter, frame: LiveToken) -> None:
    """Close an empty scope and continue its token."""
    run.quiet(frame)
    frame.compensations, frame.value = [], {}
    run.scopes.pop(frame.id, None)
    run.changes.exit_scope(frame.scope_id)


def _end(run: Interpreter, status: Status, result: dict[str, Value]) -> None:
    root = run.root
    assert root is not None  # noqa: S101 - it has begun
    for undo in root.compensations:
        run.drop(undo)
    root.compensations = []
    run.drop(root)
    run.effects.append(End(status, result))


def time_over(run: Interpreter, frame: LiveToken) -> None:
    """Handle the timeout of a scope: an execution fails, a cancel scope is cancelled. A scope that is ending ends."""
    if "ending" in frame.value:
        _undo_next(run, frame)
    elif frame is run.root:
        identity = run.changes.get("identity", ONLY)
        if run.deadline_ms is None or identity is None:
            message = f"the run took longer than {run.plan.definition.timeout_seconds:g} s, its timeout_seconds"
        else:
            message = overran(decode_metadata(identity))
        leave(run, frame, "failed", trouble("ExecutionTimedOut", message, "SW-405"))
    else:
        node = cast("CancelScopeNode", frame.place.node)
        message = f"scope {frame.place.name!r} took longer than {node.timeout_seconds:g} s, its timeout_seconds, and was cancelled"
        leave(run, frame, "cancelled", trouble("TimeoutError", message))


def keep_undo(run: Interpreter, token: LiveToken) -> None:
    """Keep the compensation of a completed step in the scope where the step ran."""
    place = token.place.children["compensate"]
    undo = LiveToken(f"{UNDO} {token.key}", place, token.scope, UNDO, token.at)
    undo.scope = token.scope
    run.undo_count += 1
    undo.value = {"undo": run.undo_count}
    if token.item_from is not None:
        undo.item = TemplateData(run, token)["item"]
        undo.item_from = undo
    undo.loops = loops_around(run, token, place)
    token.scope.compensations.append(undo)
    run.tokens[undo.id] = undo
    run.changes.touch(undo)
