"""Retry of a failed execution: from the call that failed, with everything before it kept.

A function runs again up to its failed call, whose record is removed. An execution of a declared workflow has no tokens after its
end, but the commit that ended it removed them, so the revision before has them all. They are put back and the failed step is
reopened: steps that were recorded meanwhile are not made again, and no choice is made twice. A graph's node that failed earlier
lost its token then, and the nodes after it were skipped; both are put back as nodes that wait for their undecided edges.

An execution from a queue item has no slot any more. Its retry sends the item back into the queue in the same commit, and the
execution waits for its item's turn (``model/queue_lifecycle.py``), which ``queue/local_engine.py`` gives it. A child that failed
it is retried at that moment, since it runs on its parent's slot; until then a token keeps the child's id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from stepwell.errors import Conflict, LeaseLost, NotFound
from stepwell.flow.definition.node import Action, Graph, Parallel, continues_after_error
from stepwell.flow.definition.outline import Place
from stepwell.kernel.plan import Plan, key_of, last_of
from stepwell.kernel.token import CHOICES, CHOSEN, LIFE, NOT_UNDONE, ROOT
from stepwell.model.commit import Rest
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ExecutionState, State
from stepwell.model.ids import NewId
from stepwell.model.mutation import AddToken, EnterScope, RemoveToken, ReopenStep, SetStatus
from stepwell.model.queue_item import ItemMark, ItemStatus
from stepwell.model.queue_lifecycle import waits_for_turn
from stepwell.model.record import Token, decode_token, encode_token
from stepwell.model.status import Status, StepStatus
from stepwell.model.value import Value
from stepwell.pipeline.operations import Operation
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.inbox import CANCEL, CHILD, messages, path_of, take
from stepwell.runtime.sessions.function_session import COMPENSATION
from stepwell.state.executions import CachedExecution, CommitTerms, Executions, OpenTransaction

__all__ = [
    "RunRetry",
    "restored",
]


_OF_AN_ATTEMPT = frozenset({"attempt", "error", "took_ms", "retries_ms", "child", "parent", "missing", "looked"})
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
    if not back.is_undone():
        return back.batch()
    if not back.not_undone:
        raise Conflict(f"execution {who.execution_id!r} was compensated: what it did is undone; start another one")
    return back.compensation_again()


class _Back:
    """The way back from an end to the revision before it."""

    def __init__(self, plan: Plan, before: ExecutionState, state: ExecutionState) -> None:
        self._plan, self._tokens, self._open_scopes = plan, before.tokens, _outside_in(before)
        self._steps = state.steps
        self._status = {key: step.status for key, step in state.steps.items()}
        result: dict[str, Any] = state.result or {}
        self._error = result.get("error")
        self._known = before.steps.keys()
        """What was recorded before the commit that ended it."""
        self._standing = {key_of(plan.places[token.node], tuple(token.value["at"])) for token in self._tokens.values()}
        """Where the tokens stood, by key."""
        self.not_undone = [token for token in self._tokens.values() if NOT_UNDONE in token.value]
        """The compensations that failed."""
        self._failed = {key for key, status in self._status.items() if status == StepStatus.FAILED and self._counts(key)}

    def batch(self) -> list[Planned]:
        """What is to be committed."""
        again = self._failed | self._skipped_in_vain()
        batch: list[Planned] = [ReopenStep(key) for key in again]
        batch += [EnterScope(scope_id, parent) for scope_id, parent in self._open_scopes]
        tokens = {token_id: token.replace(value=self._fresh(token)) for token_id, token in self._tokens.items()}
        if choices := self._choices():
            root = tokens[ROOT]
            value: dict[str, Any] = root.value
            tokens[ROOT] = root.replace(value={**value, CHOICES: {**value.get(CHOICES, {}), **choices}})
        for frame in self._tokens.values():
            if frame.token_id != ROOT and isinstance(self._plan.places[frame.node].node, Graph):
                self._put_nodes_back(frame, again, tokens)
        return batch + [AddToken(token_id, msgspec.Raw(encode_token(token))) for token_id, token in tokens.items()]

    def _choices(self) -> dict[str, Value]:
        """The choices of deferred ones that failed in an earlier commit than the end: their signals were taken then.

        A message that was taken in the commit of the end is in the inbox still, and is heard once more.
        """
        found = {key: self._steps[key].output for key in self._failed if key in self._known}
        return {key: output[CHOSEN] for key, output in found.items() if CHOSEN in output}

    def compensation_again(self) -> list[Planned]:
        """What is to be committed if something was undone: only the compensations that failed can be tried again."""
        root = self._tokens[ROOT]
        value: dict[str, Any] = root.value
        ending = value.get("ending", {"how": "failed", "error": self._error})
        batch: list[Planned] = []
        tokens = [root.replace(value={**self._fresh(root), "ending": ending, "due_ms": 0})]
        for undo in self.not_undone:
            value = undo.value
            batch.append(ReopenStep(key_of(self._plan.places[undo.node], tuple(value["at"]))))
            told = {key: each for key, each in value.items() if key != NOT_UNDONE}
            tokens.append(undo.replace(scope="root", value={**told, "in": ROOT}))
        return batch + [AddToken(token.token_id, msgspec.Raw(encode_token(token))) for token in tokens]

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
        if place is None or continues_after_error(place.node):
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
        return [key_of(graph.children[edge.target], at) for edge in self._plan.edges(graph).out[place.slot]]

    def _put_nodes_back(self, frame: Token, again: set[str], tokens: dict[str, Token]) -> None:
        """Let the nodes of a graph wait for arrows that are undecided again; no arrow that stays decided is decided anew."""
        value: dict[str, Any] = frame.value
        place, at = self._plan.places[frame.node], tuple(value["at"])
        keys = {slot: key_of(child, at) for slot, child in place.children.items()}
        there = {token.value["slot"]: token.token_id for token in tokens.values() if token.value["in"] == frame.token_id}
        arrows = [edge for edges in self._plan.edges(place).out.values() for edge in edges]
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


_TURN = "turn"
"""The token that waits for the turn, and its node."""


class RunRetry:
    """Operations on executions that failed, and are tried again."""

    def __init__(self, executions: Executions, new_id: NewId, definitions: DefinitionOperations | None = None) -> None:
        self._executions, self._new_id, self._definitions = executions, new_id, definitions

    def retry(self, execution_id: str) -> Operation[None]:
        """Have a failed execution run again: at once, or if it came from a queue item, when that has its turn."""
        session = yield from self._executions.begin(execution_id)
        state = ExecutionState(session.live.state)
        session.terms = _terms(state)
        if waits_for_turn(session.live.state):
            # If its item has ended without it, it would wait for ever. If not, the store refuses.
            yield from self._executions.commit(session, [])
            return
        if state.status is not Status.FAILED:
            raise Conflict(f"execution {execution_id!r} is {state.status}; only one that failed can be tried again")
        declared = None if self._definitions is None else (yield from restored(self._executions, self._definitions, state))
        if declared is None:
            declared = yield from self._reopened(state)
        yield from self._executions.commit(session, [SetStatus(Status.PENDING), *declared])

    def _reopened(self, state: ExecutionState) -> Operation[list[Planned]]:
        """What puts the execution of a function back to where it failed. Its child is retried before it, so that a crash in between
        leaves a parent that can be retried once more."""
        result: dict[str, Any] = state.result or {}
        error: dict[str, Any] = result.get("error", {})
        again: list[Planned] = []
        if "compensation" in result:
            again += _compensation_again(state, result)
        else:
            # Only the call that failed the run: failures that its code has handled are part of its way.
            again += [ReopenStep(name) for name in _failed(state, [error.get("step")])]
            # What its code gave up because of that, too: nobody may give it up this time.
            again += [ReopenStep(name) for name, step in state.steps.items() if step.status == StepStatus.SKIPPED]
        child_id = error.get("child_id")
        if child_id is not None:
            again += yield from self._old_news(child_id, state)
            if state.identity.item_id is None:
                yield from self._retry_child(child_id)
            else:
                again.append(AddToken(_TURN, Raw(encode_token(Token(_TURN, _TURN, "root", {"child": child_id})))))
        return again

    def _old_news(self, child_id: str, state: ExecutionState) -> Operation[list[Planned]]:
        """Take what a child told of its end: whoever saw the end without the message has left that, and it is true no more."""
        execution_id, workspace_id = state.identity.execution_id, state.identity.workspace_id
        rows = yield from self._executions.scan(path_of(execution_id, workspace_id))
        told = [message for message in messages(rows) if (message.kind, message.name) == (CHILD, child_id)]
        return [take(execution_id, workspace_id, message) for message in told]

    def _retry_child(self, child_id: str) -> Operation[None]:
        if (yield from self._executions.head(child_id)).status == Status.FAILED:
            yield from RunRetry(self._executions, self._new_id).retry(child_id)

    # The turn.

    def go_on(self, live: CachedExecution, mark: ItemMark) -> Operation[None]:
        """Give an execution its turn: it is due, and its item is marked, in one commit. The child that failed it goes before. A
        worker that was woken too early, and looks at it just now, loses its lease by that."""
        session = self._session_of_waiting(live, CommitTerms(rest=Rest(wake_ms=0), mark=mark))
        batch: list[Planned] = [SetStatus(Status.RUNNING)]
        child_id = _child_of(live.state)
        if child_id is not None:
            yield from self._retry_child_at_turn(child_id)
            batch.append(RemoveToken(_TURN))
        yield from self._executions.commit(session, batch)

    def _retry_child_at_turn(self, child_id: str) -> Operation[None]:
        """One that cannot be retried (it was compensated, or is gone) fails its parent once more, which tells people why."""
        try:
            yield from self._retry_child(child_id)
        except NotFound:
            return
        except Conflict as error:
            if error.expected is not None:  # somebody else wrote to it just now
                raise

    def wait_on(self, live: CachedExecution, fence: int) -> Operation[None]:
        """See to an execution that somebody has woken before its turn: it ends if that is asked for; else it waits on, and what it
        was sent stays in its inbox."""
        rows = yield from self._executions.scan(path_of(live.execution_id, live.workspace_id))
        if any(message.kind == CANCEL for message in messages(rows)):
            yield from self._executions.end_waiting(live.execution_id)
            return
        # Tried once: whoever was quicker has given it its turn, or ended it, and it must not be put to rest then.
        with suppress(Conflict, LeaseLost):
            yield from self._executions.commit(self._session_of_waiting(live, CommitTerms(fence=fence, rest=Rest())), [])

    def _session_of_waiting(self, live: CachedExecution, terms: CommitTerms) -> OpenTransaction:
        """A session that follows from a state in which the execution waits; others may be bringing the state up to a newer one."""
        with live.lock:
            if not waits_for_turn(live.state):
                raise Conflict(f"execution {live.execution_id!r} waits for its turn no more")
            return OpenTransaction(live, terms, self._new_id)


def _terms(state: ExecutionState) -> CommitTerms:
    """On what terms an execution is reopened: it is due, or its item waits again."""
    item_id = state.identity.item_id
    return (
        CommitTerms(rest=Rest(wake_ms=0))
        if item_id is None
        else CommitTerms(rest=Rest(), mark=ItemMark(item_id, ItemStatus.PENDING))
    )


def _child_of(state: State) -> str | None:
    """The child that is to be retried at the turn."""
    data = state.sections["tokens"].get(_TURN)
    value: Any = None if data is None else decode_token(data).value
    return None if value is None else value["child"]


def _compensation_again(state: ExecutionState, result: dict[str, Any]) -> list[Planned]:
    """Of a run that was compensated, only compensations can be tried again: what it did is undone."""
    undone, failed = result["compensation"]["undone"], result["compensation"]["failed"]
    if not failed:
        raise Conflict(f"execution {state.identity.execution_id!r} was compensated: what it did is undone; start another one")
    order = [*reversed(undone), *reversed(failed)]
    value = {"status": str(Status.FAILED), "error": result["error"], "order": order, "due_ms": None}
    token = encode_token(Token(COMPENSATION, "compensation", "root", value))
    return [*(ReopenStep(name) for name in _failed(state, failed)), AddToken(COMPENSATION, Raw(token))]


def _failed(state: ExecutionState, names: Iterable[str | None]) -> list[str]:
    steps = state.steps
    return [name for name in names if name in steps and steps[name].status == StepStatus.FAILED]
