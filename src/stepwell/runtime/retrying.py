"""Retrying a failed execution of a declared workflow: its tokens are put back as they were before it failed.

An execution that has ended has no tokens. But the commit that ended it took them away, so the revision before has them all, at the
very places where they stood. They are put back, the step that failed is reopened, and the next session goes on from there: steps
that were recorded meanwhile are not made again, and no choice is made twice.

A node of a graph that failed earlier had its token taken away when it failed, and what follows from it was skipped. Both are put
back as they would stand, had it not ended: as nodes that wait for the arrows which are undecided again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from stepwell.errors import Conflict, NotFound
from stepwell.flow.definition.node import Action, Graph, Parallel
from stepwell.flow.definition.outline import Place
from stepwell.kernel.plan import Plan, key_of, last_of
from stepwell.kernel.token import LIFE, ROOT
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ExecutionState
from stepwell.model.mutation import AddToken, EnterScope, ReopenStep
from stepwell.model.record import Token, encode_token
from stepwell.model.status import StepStatus
from stepwell.pipeline.operations import Operation
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.state.executions import Executions

__all__ = ["restored"]

_OF_AN_ATTEMPT = frozenset({"attempt", "error", "retries_ms", "child", "parent", "missing", "looked"})
_PASSED = (StepStatus.COMPLETED, StepStatus.CANCELLED)


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
    workflow = yield from definitions.load(who.workflow_id, who.version)
    back = _Back(definitions.plan(workflow), before, state)
    if back.is_undone():
        raise Conflict(f"execution {who.execution_id!r} was compensated: what it did is undone; start another one")
    return back.batch()


class _Back:
    """The way back from an end to the revision before it."""

    def __init__(self, plan: Plan, before: ExecutionState, state: ExecutionState) -> None:
        self._plan, self._tokens, self._open_scopes = plan, before.tokens, _outside_in(before)
        self._status = {key: step.status for key, step in state.steps.items()}
        self._known = before.steps.keys()
        """What was recorded before the commit that ended it."""
        self._standing = {key_of(plan.places[token.node], tuple(token.value["at"])) for token in self._tokens.values()}
        """Where the tokens stood, by key."""
        self._failed = {key for key, status in self._status.items() if status == StepStatus.FAILED and self._counts(key)}

    def batch(self) -> list[Planned]:
        """What is to be committed."""
        again = self._failed | self._skipped_in_vain()
        batch: list[Planned] = [ReopenStep(key) for key in again]
        batch += [EnterScope(scope_id, parent) for scope_id, parent in self._open_scopes]
        tokens = {token_id: token.replace(value=self._fresh(token)) for token_id, token in self._tokens.items()}
        for frame in self._tokens.values():
            if frame.token_id != ROOT and isinstance(self._plan.places[frame.node].node, Graph):
                self._put_nodes_back(frame, again, tokens)
        return batch + [AddToken(token_id, msgspec.Raw(encode_token(token))) for token_id, token in tokens.items()]

    def is_undone(self) -> bool:
        """Whether something was undone that would be passed as done. A cancelled scope is passed as a whole."""
        if any("ending" in token.value for token in self._tokens.values()):
            return True
        return any(self._undoes(key) for key in self._status)

    def _undoes(self, key: str) -> bool:
        is_undo = False
        for place, around in self._around(key):
            is_undo = is_undo or isinstance(place.node, Action)  # all that is inside of an action undoes it
            if is_undo and self._status.get(around) == StepStatus.CANCELLED:
                return False
            if is_undo and around in self._failed:
                return True
        return is_undo and key not in self._known  # what is undone at once leaves no token that tells of it

    # Places and keys.

    def _place(self, key: str) -> Place | None:
        return self._plan.places.get(key) or self._plan.places.get(key.partition("[")[0])

    def _around(self, key: str) -> Iterator[tuple[Place, str]]:
        """The places around what is recorded under a key, from the inside out, and their keys in the same iterations."""
        place = self._place(key)
        if place is None:
            return
        at = _at_of(place, key)
        for around in place.ancestors():
            yield around, key_of(around, at[: len(self._plan.rounds[around.name])])

    def _counts(self, key: str) -> bool:
        """Whether a failure is to be tried again; what the definition has passed over is part of its way."""
        place = self._place(key)
        if place is None or getattr(place.node, "on_error", "") == "continue":
            return False
        for around, its_key in self._around(key):
            if self._status.get(its_key) in _PASSED or (isinstance(around.node, Parallel) and place.slot in around.node.optional):
                return False
            place = around
        return True

    # Tokens.

    def _fresh(self, token: Token) -> dict[str, Any]:
        """What a token remembers, without what was about attempts; an execution that took too long gets all the time it takes."""
        value: dict[str, Any] = token.value
        place = self._plan.places[token.node]
        fresh = {key: each for key, each in value.items() if key not in _OF_AN_ATTEMPT}
        if token.token_id == ROOT or isinstance(place.node, Action):
            fresh.pop("due_ms", None)
        if token.token_id == ROOT:
            fresh[LIFE] = value.get(LIFE, 0) + 1
        return fresh

    # Graphs.

    def _skipped_in_vain(self) -> set[str]:
        """Nodes that were skipped because of a failure that is tried again, or will be decided upon once more."""
        skipped = {key for key, status in self._status.items() if status == StepStatus.SKIPPED}
        found = {key for key in skipped if self._is_decided_again(key)}
        pending = [*self._failed, *found]
        for key in pending:  # grows as it goes: what follows from what was skipped
            after = {target for target in self._targets(key) if target in skipped} - found
            found |= after
            pending += after
        return found

    def _is_decided_again(self, key: str) -> bool:
        """Whether the graph of a node begins again as a whole, or what leads to this node ended in the commit of the end."""
        around = [its_key for _, its_key in self._around(key)]
        if not around or self._status.get(around[0]) in _PASSED:
            return False
        return key not in self._known or (around[0] not in self._standing and not self._failed.isdisjoint(around))

    def _targets(self, key: str) -> list[str]:
        place = self._place(key)
        if place is None or place.parent is None or not isinstance(place.parent.node, Graph):
            return []
        graph, at = place.parent, _at_of(place, key)
        return [key_of(graph.children[edge.target], at) for edge in self._plan.arrows(graph).out[place.slot]]

    def _put_nodes_back(self, frame: Token, again: set[str], tokens: dict[str, Token]) -> None:
        """Let the nodes of a graph wait for arrows that are undecided again; no arrow that stays decided is decided anew."""
        value: dict[str, Any] = frame.value
        place, at = self._plan.places[frame.node], tuple(value["at"])
        keys = {slot: key_of(child, at) for slot, child in place.children.items()}
        there = {token.value["slot"]: token.token_id for token in tokens.values() if token.value["in"] == frame.token_id}
        arrows = [edge for edges in self._plan.arrows(place).out.values() for edge in edges]
        undecided = Counter(edge.target for edge in arrows if keys[edge.source] in again and keys[edge.source] in self._known)
        for slot, key in keys.items():
            if slot in there:
                token = tokens[there[slot]]
                if "left" in token.value:
                    more = {"left": token.value["left"] + undecided[slot]}
                    tokens[token.token_id] = token.replace(value={**token.value, **more})
                continue
            last = key_of(last_of(place.children[slot]), at)
            if key in again and key in self._known:
                waits = {"left": undecided[slot], "taken": int(key in self._failed)}
            elif key not in again and last in self._status and last not in self._known:
                waits = {"left": 0, "taken": 1}  # it ended in the commit of the end: it is passed, and its arrows are decided
            else:
                continue
            stands = {"in": frame.token_id, "slot": slot, "at": [*at], **waits}
            tokens[key] = Token(key, place.children[slot].name, frame.scope, stands)


def _at_of(place: Place, key: str) -> tuple[int, ...]:
    """The iterations that are written at the end of a key."""
    written = key[len(place.name) :]
    return tuple(int(index) for index in written[1:-1].split("][")) if written else ()


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
