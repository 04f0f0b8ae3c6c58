"""Actions: steps, scripts and subworkflows with their attempts, and the built-in steps that need no driver.

``aim_at`` finds the scopes that the built-in step ``cancel_scope`` cancels. A step inside a scope of that name means the
enclosing one. Any other step means the scopes of that name in its own iterations: in a loop not those of another iteration, and
from outside a loop all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from stepwell.errors import Conflict, InvalidInput
from stepwell.flow.definition.builtin_steps import BUILTINS, builtin_of
from stepwell.flow.definition.node import Action, CancelScopeNode, ScriptNode, StepNode, Subworkflow
from stepwell.flow.definition.outline import Place
from stepwell.flow.json_schema import check_schema
from stepwell.flow.language.errors import listed, suggest
from stepwell.flow.retry import Retry
from stepwell.kernel.data_view import TemplateData
from stepwell.kernel.nodes.scopes import end_call, keep_undo, leave, stop
from stepwell.kernel.plan import key_of
from stepwell.kernel.protocol import (
    AttemptFailed,
    CancelChild,
    ChildEnded,
    Note,
    RunPlace,
    RunStep,
    StartChild,
    StepCompleted,
    StepMissing,
    Trouble,
    trouble,
)
from stepwell.kernel.token import AFTER_CALL, AGAIN, CALL_DIGEST, CALL_KEY, CHILDREN, LIFE, RETRIES, SUMMARY, UNDO, LiveToken
from stepwell.model.execution_state import sha256_hex
from stepwell.model.ids import check_key, child_id_of
from stepwell.model.record import decode_metadata, not_undone, summary_line
from stepwell.model.redaction import Redaction
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, canonical, recode

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = [
    "CancelTarget",
    "aim_at",
    "attempt_of",
    "child_ended",
    "child_started",
    "enter_action",
    "resume_action",
    "step_completed",
    "step_failed",
    "step_missing",
    "time_is_up",
]


Answer = Literal["cancelled", "not_begun", "ended"]


class CancelTarget(NamedTuple):
    """The scopes to cancel, and the step's output."""

    targets: tuple[LiveToken, ...]
    answer: Answer
    is_around: bool = False
    """Whether the step is inside its target and ends with it."""


def aim_at(run: Interpreter, token: LiveToken, name: object) -> CancelTarget:
    """Return the scopes of a name. Raise ``InvalidInput`` if the definition has none of that name."""
    if name == "root":
        assert run.root is not None  # noqa: S101 - it has begun
        return CancelTarget((run.root,), "cancelled", is_around=True)
    place = _place(run, name)
    around = token.scope
    while around.parent is not None and around.place is not place:
        around = around.scope
    if around.parent is not None:
        return CancelTarget((around,), "cancelled", is_around=True)
    at = token.at[: _shared_rounds(run, place, token.place)]
    open_ones = (each for each in run.scopes.values() if each.place is place and each.at[: len(at)] == at)
    targets = tuple(each for each in open_ones if "ending" not in each.value)
    return CancelTarget(targets, "cancelled" if targets else "ended" if _has_begun(run, place, at) else "not_begun")


def _place(run: Interpreter, name: object) -> Place:
    found = run.plan.places.get(name) if isinstance(name, str) else None
    if found is None or not isinstance(found.node, CancelScopeNode):
        scopes = ["root", *(place.name for place in run.plan.outline if isinstance(place.node, CancelScopeNode))]
        hint = suggest(name, scopes) if isinstance(name, str) else ""
        raise InvalidInput(f"there is no scope {name!r} to cancel{hint or f'; there are {listed(scopes)}'}")
    return found


def _shared_rounds(run: Interpreter, one: Place, other: Place) -> int:
    """Return how many loops enclose both places."""
    count = 0
    for left, right in zip(run.plan.rounds[one.name], run.plan.rounds[other.name], strict=False):
        if left is not right:
            break
        count += 1
    return count


def _has_begun(run: Interpreter, place: Place, at: tuple[int, ...]) -> bool:
    """Return whether a scope has a record or a running compensation in these iterations."""
    inside, pending = {place.name}, [place]
    while pending:
        children = pending.pop().children.values()
        inside.update(child.name for child in children)
        pending += children
    starts = tuple(key_of(run.plan.places[name], at) for name in inside)
    recorded = run.changes.names("steps")
    is_recorded = any(key == start or key.startswith(f"{start}[") for key in recorded for start in starts)
    return is_recorded or any(each.place is place and each.at[: len(at)] == at for each in run.scopes.values())


def _without_secrets(run: Interpreter, text: object, args: Value) -> str:
    """Return a text for people without the secret values of the run's input and of the arguments of its step."""
    names = None if run.identity is None else decode_metadata(run.identity).secrets
    return Redaction(names).text(str(text), run.trigger, args) if names else str(text)


_HTTP_REQUEST = BUILTINS["http_request"].uses
_ON_ERROR = Retry()
_MARKS = str.maketrans({mark: f"%{ord(mark):02X}" for mark in "%:~"})
"""Characters with a meaning in a child's id: its parent's id ends at the last colon."""


def enter_action(run: Interpreter, token: LiveToken, node: Action) -> None:
    """Request an action from the driver, or run a built-in step that needs no driver."""
    args = token.place.args.fill(TemplateData(run, token))
    run.changes.touch(token)
    if isinstance(node, StepNode) and node.summary:
        told = summary_line(_without_secrets(run, token.place.form("summary").fill(TemplateData(run, token)), args))
        token.value |= {} if told is None else {SUMMARY: told}
    builtin = builtin_of(node.uses) if isinstance(node, StepNode) else None
    if builtin is not None and builtin.name in _AT_ONCE:
        given = {builtin.main: args} if builtin.main and isinstance(args, str) else args
        _AT_ONCE[builtin.name](run, token, given)
        return
    if isinstance(node, StepNode) and node.key and not _is_first_call(run, token, node, args):
        return
    match node:
        case Subworkflow():
            _start_child(run, token, node, args)
        case ScriptNode():
            run.effects.append(_attempt(token, node, args, code=node.code, language=node.language))
        case _:
            run.effects.append(_attempt(token, node, args, uses=cast("StepNode", node).uses))


def _is_first_call(run: Interpreter, token: LiveToken, node: StepNode, args: Value) -> bool:
    """Return whether a call with a key of the user's own is to be made.

    It is not if one with the same key has completed: then its output is taken, or the call fails if it is another. While one
    is under way, the token waits for its end. A call that failed or was cancelled gave no result, so the next one is made.
    """
    # A further attempt of the call that has the key.
    if run.calls.get(token.value.get(CALL_KEY, "")) is token:
        return True
    given = token.place.form("key").fill(TemplateData(run, token))
    call_key = check_key(str(given) if type(given) is int else given, f"the key of {token.place.name!r}")
    check_key(f"key:{call_key}", f"the key of {token.place.name!r}")
    digest = sha256_hex(recode([node.uses, args]))
    first = run.first_calls.get(call_key)
    known = None if first is None else run.changes.step(first)
    if known is None:
        # Another token makes this call now: this one takes its output, or makes the call itself if that gives none.
        if call_key in run.calls:
            token.value[AFTER_CALL] = call_key
            run.call_waits.setdefault(call_key, []).append(token)
            return False
        token.value.pop(AFTER_CALL, None)
        token.value |= {CALL_KEY: call_key, CALL_DIGEST: digest}
        run.calls[call_key] = token
        return True
    if known.digest != digest:
        message = (
            f"key {call_key!r} stands for another call, of {first!r}, in this execution; give {token.place.name!r} another key"
        )
        error = trouble("Conflict", f"{message}, or the same arguments", Conflict.code)
        step_failed(run, token, AttemptFailed(token.id, token.key, error, ("Conflict",), is_final=True))
        return False
    output = recode(known.output)
    run.changes.record(
        token.key, token.place.name, StepStatus.COMPLETED, output, run.now_ms, 0, digest, call_key, token.value.get(SUMMARY)
    )
    run.done(token, output)
    return False


def attempt_of(token: LiveToken) -> int:
    """Return the number of the attempt that a token waits for."""
    return token.value.get("attempt", 0) + 1


def _attempt(token: LiveToken, node: Action, args: Value, *, uses: str = "", code: str = "", language: str = "") -> RunStep:
    place: RunPlace = "external-api" if uses == _HTTP_REQUEST else "worker"
    number = attempt_of(token)
    return RunStep(
        token.id,
        token.key,
        uses,
        args,
        number,
        node.timeout_seconds,
        code,
        language,
        token.slot == UNDO,
        place,
        token.value.get(CALL_KEY, ""),
        token.value.get(SUMMARY),
    )


def _start_child(run: Interpreter, token: LiveToken, node: Subworkflow, args: Value) -> None:
    child_id = _child_of_earlier_life(run, token)
    token.value |= {AGAIN: True} if child_id is not None else {}
    child_id = child_id or child_id_of(run.execution_id, _call(run, token), run.changes.limits.key_bytes)
    token.value |= {"child": child_id, "parent": run.execution_id}
    run.child_waits[child_id] = token
    if node.timeout_seconds is not None and not node.is_detached:
        run.wake_at(token, run.now_ms + round(node.timeout_seconds * 1000))
    run.effects.append(_starting(token, node, args, child_id))


def _child_of_earlier_life(run: Interpreter, token: LiveToken) -> str | None:
    """Return the child that failed here before the execution was retried. Going on with it is the first attempt of this life."""
    assert run.root is not None  # noqa: S101 - it has begun
    return run.root.value.get(CHILDREN, {}).get(token.key) if attempt_of(token) == 1 else None


def _call(run: Interpreter, token: LiveToken) -> str:
    """Return the part of a child's id that distinguishes it from all other children of this execution and of its earlier lives."""
    assert run.root is not None  # noqa: S101 - it has begun
    life, number = run.root.value.get(LIFE, 0), attempt_of(token)
    return token.key.translate(_MARKS) + (f"~{life}" if life else "") + (f"#{number}" if number > 1 else "")


def _starting(token: LiveToken, node: Subworkflow, args: Value, child_id: str) -> StartChild:
    rule, number = node.context, attempt_of(token)
    is_again = AGAIN in token.value
    return StartChild(token.id, token.key, child_id, node.workflow, node.version, args, rule, node.is_detached, number, is_again)


def resume_action(run: Interpreter, token: LiveToken, node: Action) -> None:
    """Request again what was running when the last driver stopped."""
    # A token between two attempts has a timer and nothing under way. This driver may know the step that the last one lacked.
    if token.value.get(RETRIES) is not None:
        return
    token.value.pop("missing", None)
    child_id = token.value.get("child")
    if isinstance(node, Subworkflow) and child_id is not None:
        args = token.place.args.fill(TemplateData(run, token))
        run.child_waits[child_id] = token
        run.effects.append(_starting(token, node, args, child_id))
    else:
        enter_action(run, token, node)


# Ends of attempts.


def step_completed(run: Interpreter, token: LiveToken, event: StepCompleted) -> None:
    """Handle the output of an attempt."""
    _complete(run, token, event.output, event.took_ms)


def _complete(run: Interpreter, token: LiveToken, output: bytes, took_ms: int = 0) -> None:
    node = cast("Action", token.place.node)
    digest, call_key = token.value.get(CALL_DIGEST), token.value.get(CALL_KEY)
    told = token.value.get(SUMMARY)
    run.changes.record(token.key, token.place.name, StepStatus.COMPLETED, output, run.now_ms, took_ms, digest, call_key, told)
    if call_key is not None:
        run.first_calls[call_key] = token.key
        end_call(run, token)
    run.changes.count_step()
    if node.compensate is not None:
        keep_undo(run, token)
    run.done(token, output)


def step_failed(run: Interpreter, token: LiveToken, event: AttemptFailed) -> None:
    """Handle a failed attempt: retry later, continue, or fail."""
    node = cast("Action", token.place.node)
    number = attempt_of(token)
    policy = node.retry or event.policy or run.plan.definition.retry or (_ON_ERROR if node.on_error == "retry" else None)
    if policy is not None and not event.is_final and policy.allows(number, (*event.names, event.error["kind"])):
        run.quiet(token)
        token.value |= {"attempt": number, "error": event.error, "took_ms": event.took_ms}
        # The next attempt starts another child, under an id of its own.
        token.value.pop("child", None)
        token.value.pop(AGAIN, None)
        asked = event.error.get("retry_after_ms")
        wait_ms = round(policy.delay(number, event.chance) * 1000) if asked is None else cast("int", asked)
        run.wake_at(token, run.now_ms + wait_ms, RETRIES)
        return
    end_call(run, token)
    error = {**event.error, "step": token.key}
    told = recode({"error": error, "attempts": number})
    summary = token.value.get(SUMMARY)
    run.changes.record(token.key, token.place.name, StepStatus.FAILED, told, run.now_ms, event.took_ms, summary=summary)
    if node.on_error == "continue":
        run.done(token, b"null")
    else:
        run.fail(token, error)


def step_missing(run: Interpreter, token: LiveToken, event: StepMissing) -> None:
    """Note in the token, which `progress` and the dashboard read, that a driver does not know the step."""
    token.value |= {"missing": event.uses, "looked": token.value.get("looked", 0) + 1}
    run.changes.touch(token)


def time_is_up(run: Interpreter, token: LiveToken, field: str) -> None:
    """Handle the timer of an action: the next attempt is due, or a child took too long."""
    node = cast("Action", token.place.node)
    if field == RETRIES:
        run.guarded(token, lambda: enter_action(run, token, node))
        return
    # No token waits for the child from here on, so that its late result changes nothing.
    child_id = token.value["child"]
    run.child_waits.pop(child_id, None)
    run.effects.append(CancelChild(child_id))
    message = f"child execution {child_id!r} took longer than {node.timeout_seconds:g} s, the timeout_seconds of its node"
    step_failed(run, token, AttemptFailed(token.id, token.key, trouble("TimeoutError", message), ("TimeoutError",)))


def cancel_step(run: Interpreter, token: LiveToken) -> None:
    """Cancel a step or a wait, and continue after it with null as its output."""
    stop(run, token)
    run.quiet(token)
    summary, token.value = token.value.get(SUMMARY), {}
    run.changes.record(token.key, token.place.name, StepStatus.CANCELLED, b"null", run.now_ms, summary=summary)
    run.done(token, b"null")


def child_started(run: Interpreter, token: LiveToken) -> None:
    """Handle the start of a child; a detached one completes its node."""
    node = cast("Subworkflow", token.place.node)
    if token.value.pop(AGAIN, False):  # it is not retried twice: if it fails again, that is its end in this life
        run.changes.touch(token)
    if node.is_detached:
        child_id = token.value["child"]
        run.child_waits.pop(child_id, None)
        _complete(run, token, recode(child_id))


def child_ended(run: Interpreter, token: LiveToken, event: ChildEnded) -> None:
    """Handle the result of a child."""
    run.child_waits.pop(event.child_id, None)
    match event.news:
        case {"status": "COMPLETED", "result": {"output": output}}:
            _take_back(run, cast("Subworkflow", token.place.node), event.news)
            _complete(run, token, recode(output))
            return
        case {"status": "CANCELLED"}:
            left = not_undone(event.news.get("result"))
            error = trouble("ExecutionCancelled", f"child execution {event.child_id!r} was cancelled{left}", "SW-401")
        case {"result": {"error": {"kind": kind, "message": message}} as result}:
            told = f"child execution {event.child_id!r} failed: {kind}: {message}{not_undone(result)}"
            error = {**trouble("ExecutionFailed", told, "SW-400"), "child_id": event.child_id}
        case _:
            error = trouble("NotFound", f"child execution {event.child_id!r} left no result", "SW-200")
    step_failed(run, token, AttemptFailed(token.id, token.key, error, (error["kind"],)))


def _take_back(run: Interpreter, node: Subworkflow, news: Mapping[str, Any]) -> None:
    """Take over the context of a child that shares it."""
    if node.context != "share":
        return
    variables: dict[str, Value] = news.get("variables") or {}
    run.changes.patch_context(news.get("context") or {})
    for name, value in variables.items():
        run.changes.set_variable(name, value)


# Built-in steps that end in the same transition.


def _set_variables(run: Interpreter, token: LiveToken, args: Value) -> None:
    if not isinstance(args, dict):
        raise InvalidInput(f"set_variables takes an object of values by name, not {type(args).__name__}")
    for name, value in cast("dict[str, Value]", args).items():
        run.changes.set_variable(name, value)
    _complete(run, token, b"null")


def _map_data(run: Interpreter, token: LiveToken, args: Value) -> None:
    _complete(run, token, canonical(args, run.changes.limits, what=f"the output of {token.place.name!r}"))


def _log(run: Interpreter, token: LiveToken, args: Value) -> None:
    given = _object(args, "log")
    level = str(given.get("level") or "info").lower()
    run.effects.append(Note(token.key, level, _without_secrets(run, given.get("message"), args), given.get("data")))
    _complete(run, token, b"null")


def _throw(run: Interpreter, token: LiveToken, args: Value) -> None:
    given = _object(args, "throw")
    error = trouble(str(given.get("kind") or "Thrown"), _without_secrets(run, given.get("message"), args))
    if given.get("data") is not None:
        error["data"] = given["data"]
    is_final = not given.get("is_retryable", False)
    step_failed(run, token, AttemptFailed(token.id, token.key, error, (error["kind"],), is_final=is_final))


def _validate(run: Interpreter, token: LiveToken, args: Value) -> None:
    given = _object(args, "validate")
    check_schema(given.get("value"), given.get("schema"), what="the value")
    _complete(run, token, canonical(given.get("value"), run.changes.limits, what=f"the output of {token.place.name!r}"))


def _cancel_scope(run: Interpreter, token: LiveToken, args: Value) -> None:
    name = _object(args, "cancel_scope").get("scope")
    aim = aim_at(run, token, name)
    error: Trouble = trouble("ExecutionCancelled", f"scope {name!r} was cancelled by step {token.key!r}", "SW-401")
    if not aim.is_around:
        _complete(run, token, recode(aim.answer))
    for target in aim.targets:
        if target is run.root or target.id in run.scopes:  # the scope cancelled before may have enclosed this one
            leave(run, target, "cancelled", error)


def _object(args: Value, what: str) -> dict[str, Value]:
    if not isinstance(args, dict):
        raise InvalidInput(f"{what} takes an object, not {type(args).__name__}")
    return cast("dict[str, Value]", args)


_AT_ONCE: dict[str, Callable[[Interpreter, LiveToken, Value], None]] = {
    "set_variables": _set_variables,
    "map_data": _map_data,
    "log": _log,
    "throw": _throw,
    "validate": _validate,
    "cancel_scope": _cancel_scope,
}
