"""Waits for a time, a signal, the first of several signals, or approvals. A waiting token holds no resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from stepwell.clock import to_ms
from stepwell.duration import time_of
from stepwell.flow.definition.node import Approval, CancelScopeNode, Deferred, Signal, Wait
from stepwell.flow.language.template import compile_template
from stepwell.kernel.approvals import counted, verdict
from stepwell.kernel.data_view import TemplateData, ending, output_of
from stepwell.kernel.nodes.scopes import leave
from stepwell.kernel.protocol import Trouble, trouble
from stepwell.kernel.token import CHOICES, CHOSEN, LiveToken
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, canonical, recode

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = [
    "chosen_ended",
    "enter_approval",
    "enter_deferred",
    "enter_signal",
    "enter_wait",
    "hear",
    "listen_again",
    "wait_over",
]


def enter_wait(run: Interpreter, token: LiveToken, _node: Wait) -> None:
    """Wait for a time."""
    time = time_of(token.place.form("time").fill(TemplateData(run, token)), f"the wait {token.place.name!r}")
    due = run.now_ms + round(time * 1000) if isinstance(time, int | float) else to_ms(time)
    run.wake_at(token, due)


def enter_signal(run: Interpreter, token: LiveToken, node: Signal) -> None:
    """Wait for a signal."""
    run.changes.touch(token)
    _limit(run, token, node.timeout_seconds)
    run.listen(token, node.signal, is_transient=node.is_transient)


def enter_deferred(run: Interpreter, frame: LiveToken, node: Deferred) -> None:
    """Wait for the first of several signals."""
    run.changes.touch(frame)
    made = _choice_of_earlier_life(run, frame)
    if made is not None:
        _choose(run, frame, *made)
        return
    _limit(run, frame, node.timeout_seconds)
    for name in node.branches:
        if not frame.children:
            run.listen(frame, name)


def _choice_of_earlier_life(run: Interpreter, frame: LiveToken) -> list[Any] | None:
    """Return the branch, and its item if it has one, that was chosen here before the execution failed and was retried."""
    root = run.root
    assert root is not None  # noqa: S101 - it has begun
    choices: dict[str, list[Any]] = root.value.get(CHOICES, {})
    if frame.key not in choices:
        return None
    root.value[CHOICES] = {key: made for key, made in choices.items() if key != frame.key}
    run.changes.touch(root)
    return choices[frame.key]


def _choose(run: Interpreter, frame: LiveToken, branch: str, *item: Value) -> None:
    """Begin a branch of a deferred choice; the value of its signal is the branch's item."""
    frame.value["chosen"] = branch
    child = run.spawn(frame, branch, frame.place.children[branch], frame.at)
    run.changes.touch(frame)
    for value in item:
        child.item, child.item_from = value, child
    run.enter(child)


def enter_approval(run: Interpreter, token: LiveToken, node: Approval) -> None:
    """Ask for an approval."""
    facts = TemplateData(run, token)
    shown = None if node.details is UNSET else token.place.form("details").fill(facts)
    canonical(shown, run.changes.limits, what=f"the details of approval {token.place.name!r}")
    asked = compile_template({"title": node.title, "approvers": list(node.approvers)}).fill(facts)
    token.value |= {**asked, "decisions": []}
    if node.details is not UNSET:
        token.value["details"] = shown
    run.changes.touch(token)
    _limit(run, token, node.timeout_seconds)
    run.listen(token, token.key)


def _limit(run: Interpreter, token: LiveToken, seconds: float | None) -> None:
    if seconds is not None:
        run.wake_at(token, run.now_ms + round(seconds * 1000))


def listen_again(run: Interpreter, token: LiveToken) -> None:
    """Wait for signals again after a resume."""
    match token.place.node:
        case Signal(signal=name):
            run.listen(token, name)
        case Deferred(branches=branches) if not token.children:
            for name in branches:
                run.listen(token, name)
        case Approval():
            run.listen(token, token.key)
        case CancelScopeNode(cancel_on=str() as name) if "ending" not in token.value:
            run.listen(token, name)
        case _:
            pass


def hear(run: Interpreter, token: LiveToken, name: str, value: Value) -> None:
    """Handle a signal for a waiting token."""
    match token.place.node:
        case Signal():
            run.quiet(token)
            run.record_and_go_on(token, recode(value))
        case Deferred():
            run.quiet(token)
            _choose(run, token, name, value)
        case Approval() as node:
            _decide(run, token, node, value)
        case CancelScopeNode():
            message = f"scope {token.place.name!r} was cancelled by signal {name!r}"
            leave(run, token, "cancelled", trouble("ExecutionCancelled", message, "SW-401"))
        case _:
            pass


def chosen_ended(run: Interpreter, frame: LiveToken, child: LiveToken, error: Trouble | None) -> None:
    """Handle the end of a deferred choice's branch."""
    run.drop(child)
    if error is not None:
        # The signal is taken and comes no more, so a retry needs the choice.
        chosen = [child.slot] if child.item is UNSET else [child.slot, child.item]
        told = recode({"error": error, "attempts": 0, CHOSEN: chosen})
        run.changes.record(frame.key, frame.place.name, StepStatus.FAILED, told, run.now_ms)
        run.fail(frame, error)
    else:
        output = output_of(ending(run, frame.place.children[child.slot], frame.at))
        run.record_and_go_on(frame, canonical(output, run.changes.limits))


# Timeouts.


def _timeout_of(node: Signal | Deferred | Approval) -> str:
    return f"{node.timeout_seconds or 0:g} s, its timeout_seconds"


def wait_over(run: Interpreter, token: LiveToken) -> None:
    """Handle the timer of a wait."""
    match token.place.node:
        case Wait():
            run.record_and_go_on(token, b"null")
        case Signal() as node:
            run.quiet(token)
            if node.on_timeout == "continue":
                run.record_and_go_on(token, b"null")
            else:
                run.fail(token, _late(token, f"signal {node.signal!r} did not come within {_timeout_of(node)}"))
        case Deferred() as node:
            run.quiet(token)
            if node.on_timeout is None:
                run.fail(token, _late(token, f"none of the signals {', '.join(node.branches)} came within {_timeout_of(node)}"))
            else:
                _choose(run, token, "on_timeout")
        case Approval() as node:
            run.guarded(token, lambda: _unanswered(run, token, node))
        case _:
            pass


def _late(token: LiveToken, message: str) -> Trouble:
    return {**trouble("TimeoutError", message), "step": token.key}


def _unanswered(run: Interpreter, token: LiveToken, node: Approval) -> None:
    if node.on_timeout == "default":
        default = None if node.default is UNSET else token.place.form("default").fill(TemplateData(run, token))
        run.quiet(token)
        run.record_and_go_on(token, canonical(default, run.changes.limits))
    elif node.on_timeout == "escalate" and not token.value.get("is_escalated"):
        people = compile_template(list(node.escalate_to)).fill(TemplateData(run, token))
        token.value |= {"approvers": people, "is_escalated": True}
        _limit(run, token, node.timeout_seconds)
        run.changes.touch(token)
    else:
        assert run.root is not None  # noqa: S101 - it has begun
        message = f"approval {token.place.name!r} was not answered within {_timeout_of(node)}"
        leave(run, run.root, "cancelled", trouble("ExecutionCancelled", message, "SW-401"))


def _decide(run: Interpreter, token: LiveToken, node: Approval, value: Value) -> None:
    """Count one answer. Ignore it if it is malformed, from a person who was not asked, or that person's second one."""
    people = token.value["approvers"]
    made = counted(token.value["decisions"], people, value)
    if made is None:
        return
    canonical(made, run.changes.limits, what=f"the decisions of approval {token.place.name!r}")
    token.value["decisions"] = made
    run.changes.touch(token)
    is_approved = verdict(made, people, node.needed)
    if is_approved is not None:
        run.quiet(token)
        run.record_and_go_on(token, canonical({"is_approved": is_approved, "decisions": made}, run.changes.limits))
