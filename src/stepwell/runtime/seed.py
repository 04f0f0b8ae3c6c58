"""What a child execution gets of its parent's context and variables, and what it gives back."""

from __future__ import annotations

import msgspec

from stepwell.flow.definition.node import ContextRule
from stepwell.kernel.pending_changes import PendingChanges
from stepwell.model.execution_state import ONLY, State
from stepwell.model.status import Status
from stepwell.model.value import Value, decode

__all__ = ["Seed", "news_of", "seed_of"]

_SHARES = "shares_context"
"""In the free metadata of a child that gives back what it has made of its parent's context."""


class Seed(msgspec.Struct, frozen=True):
    """What an execution begins with beside its input."""

    context: dict[str, Value] = {}
    variables: dict[str, Value] = {}
    metadata: dict[str, Value] = {}


def seed_of(rule: ContextRule, state: State) -> Seed:
    """What a child begins with: nothing; the context; or the context and variables, to keep or to give back."""
    if rule == "isolate":
        return Seed()
    context = _decoded(state, "context")
    if rule == "inherit":
        return Seed(context)
    return Seed(context, _decoded(state, "variables"), {_SHARES: True} if rule == "share" else {})


def news_of(board: PendingChanges, status: Status, result: dict[str, Value]) -> dict[str, Value]:
    """What a child tells its parent when it ends."""
    news: dict[str, Value] = {"status": str(status), "result": result}
    metadata = decode(board.get("metadata", ONLY) or b"{}")
    if metadata.get(_SHARES):
        variables = {name: value for name, value in board.mapping("variables").items() if not name.startswith("$")}
        news |= {"context": board.mapping("context"), "variables": variables}
    return news


def _decoded(state: State, section: str) -> dict[str, Value]:
    return {key: decode(data) for key, data in state.sections[section].items() if not key.startswith("$")}
