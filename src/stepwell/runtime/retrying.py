"""Retrying a failed execution of a declared workflow: its tokens are put back as they were before it failed.

An execution that has ended has no tokens. But the commit that ended it took them away, so the revision before has them all, at the
very places where they stood. They are put back, the step that failed is reopened, and the next session goes on from there: steps
that were recorded meanwhile are not made again, and no choice is made twice.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepwell.errors import Conflict, NotFound
from stepwell.flow.node import Action, Parallel, Subworkflow
from stepwell.flow.outline import Place
from stepwell.kernel.plan import Plan
from stepwell.kernel.thread import ROOT
from stepwell.model.draft import Planned
from stepwell.model.mutation import AddToken, EnterScope, ReopenStep
from stepwell.model.record import StepOutput, Token, encode_token
from stepwell.model.state import ExecutionState
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.state.executions import Executions
from stepwell.state.operation import Operation

__all__ = ["restored"]

_OF_AN_ATTEMPT = frozenset({"attempt", "error", "retries_ms", "child", "parent", "missing", "looked"})


def restored(executions: Executions, definitions: DefinitionOperations, state: ExecutionState) -> Operation[list[Planned] | None]:
    """What puts the tokens of a failed execution back; None if it is not that of a declared workflow."""
    who = state.identity
    if state.tokens or not state.revision:
        return None
    try:
        before = yield from executions.load(who.execution_id, state.revision - 1)
    except NotFound:
        return None  # archived, or made by restoring a snapshot
    if ROOT not in before.tokens:
        return None
    if any("ending" in token.value for token in before.tokens.values()):
        raise Conflict(f"execution {who.execution_id!r} was compensated: what it did is undone; start another one")
    workflow = yield from definitions.load(who.workflow_id, who.version)
    return _back(definitions.plan(workflow), before, state)


def _back(plan: Plan, before: ExecutionState, state: ExecutionState) -> list[Planned]:
    failed = {key: step for key, step in state.steps.items() if step.status == "FAILED" and _counts(plan, key)}
    batch: list[Planned] = [ReopenStep(key) for key in failed]
    batch += [EnterScope(scope_id, parent) for scope_id, parent in _outside_in(before)]
    for token in before.tokens.values():
        value = _fresh(plan, token, failed)
        batch.append(AddToken(token.token_id, msgspec.Raw(encode_token(token.replace(value=value)))))
    return batch


def _fresh(plan: Plan, token: Token, failed: dict[str, StepOutput]) -> dict[str, Any]:
    """What a token remembers, without what was about attempts; an execution that took too long gets all the time that it takes."""
    value: dict[str, Any] = token.value
    place = plan.places[token.node]
    fresh = {key: each for key, each in value.items() if key not in _OF_AN_ATTEMPT}
    if token.token_id == ROOT or isinstance(place.node, Action):
        fresh.pop("due_ms", None)
    key = token.node + "".join(f"[{index}]" for index in value["at"])
    if isinstance(place.node, Subworkflow) and key in failed:
        fresh["attempt"] = failed[key].output["attempts"]  # so that it is another child
    return fresh


def _counts(plan: Plan, key: str) -> bool:
    """Whether a failure is to be tried again; what the definition has passed over is part of its way."""
    place: Place | None = plan.places.get(key) or plan.places.get(key.partition("[")[0])
    if place is None or getattr(place.node, "on_error", "") == "continue":
        return False
    while place is not None:
        around = place.parent
        if around is not None and isinstance(around.node, Parallel) and place.slot in around.node.optional:
            return False
        place = around
    return True


def _outside_in(before: ExecutionState) -> list[tuple[str, str]]:
    """The open scopes, each after the one around it."""
    inside: dict[str | None, list[str]] = {}
    for scope_id, scope in before.scopes.items():
        inside.setdefault(scope.parent, []).append(scope_id)
    ordered: list[tuple[str, str]] = []
    pending = ["root"]
    for parent in pending:
        for scope_id in inside.get(parent, ()):
            ordered.append((scope_id, parent))
            pending.append(scope_id)
    return ordered
