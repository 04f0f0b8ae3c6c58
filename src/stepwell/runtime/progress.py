"""Progress: how far a run is, what it is doing now, what it waits for, and what may be answered. Read from its state alone."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from stepwell.clock import from_ms
from stepwell.flow.definition.node import Action, Approval, Deferred, Signal, Subworkflow, Wait
from stepwell.kernel.plan import Plan
from stepwell.kernel.token import ROOT, TIMES, UNDO
from stepwell.model.execution_state import ExecutionState
from stepwell.model.record import Token
from stepwell.model.status import Status
from stepwell.model.value import Value
from stepwell.runtime.estimate import estimate_of

__all__ = ["Offer", "Progress", "Waiting", "progress_of"]


class Waiting(msgspec.Struct, frozen=True):
    """Something that a run waits for."""

    step: str
    """The key of the node or call that waits."""
    kind: str
    """``time``, ``signal``, ``approval``, ``child``, ``retry``, or ``step`` for one that no worker has known yet."""
    name: str = ""
    """Of the signal, the child execution or the step."""
    until: datetime | None = None
    """When it ends by itself."""
    error: str | None = None
    """Why the attempt before a retry failed."""


class Offer(msgspec.Struct, frozen=True):
    """An answer that a run would take now: send it with ``run.signal(name, value)``."""

    name: str
    kind: str
    """``signal``, ``choice`` (one of several signals that decide) or ``approval``."""
    step: str
    title: str = ""
    approvers: tuple[str, ...] = ()
    details: Value = None


class Progress(msgspec.Struct, frozen=True):
    """How far a run is."""

    status: Status
    percent: float | None
    """The part of its definition that is over, with the rounds of loops and instances; None for a function, whose end is not
    known."""
    done: int
    """How many steps and waits are on record."""
    total: int | None
    """How many steps and waits it comes to, as far as is known by now: a loop counts with its rounds once it has begun, and a
    branch that was not chosen does not count. None for a function."""
    current: tuple[str, ...]
    """The steps that are being made."""
    waiting: tuple[Waiting, ...]
    offers: tuple[Offer, ...]


def progress_of(state: ExecutionState, plan: Plan | None) -> Progress:
    """The progress of a run; with a plan, that of its definition."""
    tokens = {token_id: token for token_id, token in state.tokens.items() if token_id != ROOT}
    if plan is None:
        return _of_function(state, tokens)
    live = [token for token in tokens.values() if not _is_dormant(token)]
    waiting = tuple(each for token in live for each in _waiting(plan, token))
    current = tuple(_key(token) for token in live if _is_running(plan, token))
    offers = tuple(each for token in live for each in _offers(plan, token))
    is_over = state.status is Status.COMPLETED
    estimate = estimate_of(plan, state.steps, live, state.loops)
    percent = 100.0 if is_over else round(100 * estimate.share, 1)
    total = estimate.done + (0 if is_over else estimate.left)
    return Progress(state.status, percent, estimate.done, total, current, waiting, offers)


def _is_dormant(token: Token) -> bool:
    return token.value.get("slot") == UNDO and not token.value.get("is_running")


def _key(token: Token) -> str:
    return token.node + "".join(f"[{index}]" for index in token.value["at"])


def _until(value: dict[str, Any]) -> datetime | None:
    times = [value[field] for field in TIMES if value.get(field) is not None]
    return from_ms(min(times)) if times else None


def _is_running(plan: Plan, token: Token) -> bool:
    node = plan.places[token.node].node
    is_waiting = any(field in token.value for field in ("retries_ms", "begins_ms", "missing", "left"))
    return isinstance(node, Action) and not isinstance(node, Subworkflow) and not is_waiting


def _waiting(plan: Plan, token: Token) -> list[Waiting]:
    value: dict[str, Any] = token.value
    key, until = _key(token), _until(value)
    if "left" in value:
        return []
    if "retries_ms" in value:
        return [Waiting(key, "retry", token.node, until, value["error"]["message"])]
    if "missing" in value:
        return [Waiting(key, "step", value["missing"])]
    if "begins_ms" in value:
        return [Waiting(key, "time", "", until)]
    match plan.places[token.node].node:
        case Wait():
            return [Waiting(key, "time", "", until)]
        case Signal(signal=name):
            return [Waiting(key, "signal", name, until)]
        case Deferred(branches=branches) if "chosen" not in value:
            return [Waiting(key, "signal", name, until) for name in branches]
        case Approval():
            return [Waiting(key, "approval", key, until)]
        case Subworkflow():
            return [Waiting(key, "child", value.get("child", ""), until)]
        case _:
            return []


def _offers(plan: Plan, token: Token) -> list[Offer]:
    value: dict[str, Any] = token.value
    place, key = plan.places[token.node], _key(token)
    if "left" in value or "begins_ms" in value:
        return []  # it has not begun: it waits for arrows of its graph, or for the next iteration
    match place.node:
        case Signal(signal=name):
            return [Offer(name, "signal", key)]
        case Deferred(branches=branches) if "chosen" not in value:
            return [Offer(name, "choice", key) for name in branches]
        case Approval():
            people = tuple(str(each) for each in value.get("approvers", ()))
            return [Offer(key, "approval", key, str(value.get("title", "")), people, value.get("details"))]
        case _:
            return []


def _of_function(state: ExecutionState, tokens: dict[str, Token]) -> Progress:
    """What is known of a function without running it: its calls that wait."""
    waiting: list[Waiting] = []
    offers: list[Offer] = []
    for key, token in tokens.items():
        value: dict[str, Any] = token.value or {}
        until = _until(value)
        match token.node:
            case "sleep":
                waiting.append(Waiting(key, "time", "", until))
            case "signal":
                waiting.append(Waiting(key, "signal", str(value.get("name", "")), until))
                offers.append(Offer(str(value.get("name", "")), "signal", key))
            case "child":
                waiting.append(Waiting(key, "child", str(value.get("execution_id", "")), until))
            case "retry":
                error: dict[str, Any] = value.get("error") or {}
                waiting.append(Waiting(key, "retry", key, until, error.get("message")))
            case _:
                pass
    percent = 100.0 if state.status is Status.COMPLETED else None
    return Progress(state.status, percent, len(state.steps), None, (), tuple(waiting), tuple(offers))
