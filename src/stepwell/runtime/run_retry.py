"""Retry of a failed execution: from the call that failed, with everything before it kept.

A function runs again up to its failed call, whose record is removed. An execution of a declared workflow has no tokens after its
end, but the commit that ended it removed them, so the revision before has them all. They are put back and the failed step is
reopened: steps that were recorded meanwhile do not run again, and no choice is made twice. A graph's node that failed earlier
lost its token then, and the nodes after it were skipped; both are put back as nodes that wait for their undecided edges.

A child execution that failed is retried in place, so that its completed steps are kept: the function's by the retry itself, those
of a declared workflow by the driver that starts children again, which knows how many may run at once. One that was cancelled or
compensated gives way to another child.

An execution from a queue item has no slot any more. Its retry sends the item back into the queue in the same commit, and the
execution waits for a slot of its item (``model/queue_lifecycle.py``), which ``queue/local_engine.py`` gives it. The child that
failed a function is retried at that moment, since it runs on its parent's slot; until then a token keeps the child's id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from stepwell.errors import Conflict, LeaseLost, NotFound
from stepwell.flow.definition.node import Action, Graph, Parallel, Subworkflow, continues_after_error
from stepwell.flow.definition.outline import Place
from stepwell.kernel.plan import Plan, key_of, last_of
from stepwell.kernel.token import AFTER_CALL, AGAIN, CALL_DIGEST, CALL_KEY, CHILDREN, CHOICES, CHOSEN, LIFE, NOT_UNDONE, ROOT
from stepwell.model.commit import Rest
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ExecutionState, State
from stepwell.model.external_engines import recorded_again
from stepwell.model.ids import NewId
from stepwell.model.mutation import AddToken, EnterScope, RemoveToken, ReopenStep, SetStatus
from stepwell.model.queue_item import ItemMark, ItemStatus
from stepwell.model.queue_lifecycle import waits_for_slot
from stepwell.model.record import COMPENSATION, Token, decode_token, encode_token
from stepwell.model.retention import check_has_payloads
from stepwell.model.status import Status, StepStatus
from stepwell.model.value import Value
from stepwell.pipeline.operations import Operation
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.inbox import CANCEL, CHILD, PAUSE, Message, messages, path_of, take
from stepwell.runtime.steps.outcome import was_given_up
from stepwell.state.executions import CachedExecution, CommitTerms, Executions, OpenTransaction

__all__ = ["RunRetry"]


_OF_AN_ATTEMPT = frozenset(
    {
        "attempt",
        "error",
        "took_ms",
        "retries_ms",
        "child",
        "parent",
        "missing",
        "looked",
        AGAIN,
        CALL_KEY,
        CALL_DIGEST,
        AFTER_CALL,
        CHILDREN,
    }
)
_PASSED = (StepStatus.COMPLETED, StepStatus.CANCELLED)


def _back(executions: Executions, definitions: DefinitionOperations, state: ExecutionState) -> Operation[_Back | None]:
    """Return what restores the tokens of a failed execution; None if it has no definition."""
    who = state.identity
    if state.tokens or not state.revision:
        return None
    try:
        before = yield from executions.load(who.execution_id, state.revision - 1)
    except NotFound:
        return None  # the revision was archived, or the execution comes from a snapshot
    if ROOT not in before.tokens:
        return None
    workflow = yield from definitions.load(who.workflow_id, who.version)
    return _Back(definitions.plan(workflow), before, state)


class _Back:
    """Restores an execution that has ended to the revision before its end."""

    def __init__(self, plan: Plan, before: ExecutionState, state: ExecutionState) -> None:
        self._plan, self._tokens, self._open_scopes = plan, before.tokens, _outside_in(before)
        self._execution_id = state.identity.execution_id
        self._steps = state.steps
        self._status = {key: step.status for key, step in state.steps.items()}
        result: dict[str, Any] = state.result or {}
        self._error = result.get("error")
        self._known = before.steps.keys()
        """The statuses of the steps before the last commit."""
        self._standing = {self._key(token) for token in self._tokens.values()}
        """The tokens before the last commit, by key."""
        self.not_undone = [token for token in self._tokens.values() if NOT_UNDONE in token.value]
        """The compensations that failed."""
        self._failed = {key for key, status in self._status.items() if status == StepStatus.FAILED and self._counts(key)}

    def failed_children(self) -> dict[str, str]:
        """Return the children whose failures are retried, by the key of their node."""
        records = {key: self._steps[key].output.get("error", {}) for key in self._failed if self._is_subworkflow(key)}
        return {key: error["child_id"] for key, error in records.items() if "child_id" in error}

    def other_children(self) -> dict[str, str]:
        """Return the children that were under way when the execution failed, by the key of their node."""
        own = [token for token in self._tokens.values() if token.value.get("parent") == self._execution_id]
        children = {self._key(token): token.value["child"] for token in own if "child" in token.value}
        return {key: child_id for key, child_id in children.items() if key not in self._failed}

    def batch(self, children: dict[str, str]) -> list[Planned]:
        """Return the mutations to commit.

        - ``children``: the children that go on, by the key of their node.
        """
        again = self._failed | self._skipped_in_vain()
        batch: list[Planned] = [ReopenStep(key) for key in again]
        batch += [EnterScope(scope_id, parent) for scope_id, parent in self._open_scopes]
        tokens = {token_id: token.replace(value=self._fresh(token)) for token_id, token in self._tokens.items()}
        root = tokens[ROOT]
        value: dict[str, Any] = root.value
        if children:
            value = {**value, CHILDREN: children, "parent": self._execution_id}
        if choices := self._choices():
            value = {**value, CHOICES: {**value.get(CHOICES, {}), **choices}}
        tokens[ROOT] = root.replace(value=value)
        for frame in self._tokens.values():
            if frame.token_id != ROOT and isinstance(self._plan.places[frame.node].node, Graph):
                self._put_nodes_back(frame, again, tokens)
        return batch + [AddToken(token_id, msgspec.Raw(encode_token(token))) for token_id, token in tokens.items()]

    def _choices(self) -> dict[str, Value]:
        """Return the choices of deferred choices that failed in an earlier commit than the last: their signals were taken then.

        A message that the last commit took is still in the inbox, and is delivered again.
        """
        found = {key: self._steps[key].output for key in self._failed if key in self._known}
        return {key: output[CHOSEN] for key, output in found.items() if CHOSEN in output}

    def compensation_again(self) -> list[Planned]:
        """Return the mutations to commit if something was compensated: only failed compensations can be retried."""
        root = self._tokens[ROOT]
        value: dict[str, Any] = root.value
        ending = value.get("ending", {"how": "failed", "error": self._error})
        batch: list[Planned] = []
        tokens = [root.replace(value={**self._fresh(root), "ending": ending, "due_ms": 0})]
        for undo in self.not_undone:
            value = undo.value
            batch.append(ReopenStep(self._key(undo)))
            told = {key: each for key, each in value.items() if key != NOT_UNDONE}
            tokens.append(undo.replace(scope="root", value={**told, "in": ROOT}))
        return batch + [AddToken(token.token_id, msgspec.Raw(encode_token(token))) for token in tokens]

    def is_undone(self) -> bool:
        """Return whether something was compensated that a retry would pass as done. A cancelled scope is passed as a whole."""
        if any("ending" in token.value for token in self._tokens.values()):
            return True
        return any(self._undoes(key) for key in self._status)

    def _undoes(self, key: str) -> bool:
        is_undo = False
        for place, around in self._around(key):
            is_undo = is_undo or isinstance(place.node, Action)  # everything inside an action compensates it
            if is_undo and self._status.get(around) == StepStatus.CANCELLED:
                return False
            if is_undo and around in self._failed:
                return True
        return is_undo and key not in self._known  # a compensation without a wait leaves no token

    # Places and keys.

    def _place(self, key: str) -> Place | None:
        return self._plan.places.get(key) or self._plan.places.get(key.partition("[")[0])

    def _is_subworkflow(self, key: str) -> bool:
        place = self._place(key)
        return place is not None and isinstance(place.node, Subworkflow)

    def _key(self, token: Token) -> str:
        return key_of(self._plan.places[token.node], tuple(token.value["at"]))

    def _around(self, key: str) -> Iterator[tuple[Place, str]]:
        """Return the places around a recorded key, from the inside out, with their keys in the same iterations."""
        place = self._place(key)
        if place is None:
            return
        at = _at_of(place, key)
        for around in place.ancestors():
            yield around, key_of(around, at[: len(self._plan.rounds[around.name])])

    def _counts(self, key: str) -> bool:
        """Return whether a failure is retried; a failure that the definition has passed over is not."""
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
        """Return a token's value without its attempts. An execution that timed out gets its whole time again."""
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
        """Return nodes that were skipped because of a failure that is retried, or that are decided again."""
        skipped = {key for key, status in self._status.items() if status == StepStatus.SKIPPED}
        found = {key for key in skipped if self._is_decided_again(key)}
        pending = [*self._failed, *found]
        for key in pending:  # grows during the loop: nodes that follow skipped ones
            after = {target for target in self._targets(key) if target in skipped} - found
            found |= after
            pending += after
        return found

    def _is_decided_again(self, key: str) -> bool:
        """Return whether a node's graph begins again as a whole, or an edge to the node was decided by the last commit."""
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
        """Let nodes of a graph wait for edges that are undecided again. An edge that stays decided is not decided again."""
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
                waits = {"left": 0, "taken": 1}  # it ended in the last commit: it is passed, and its edges are decided
            else:
                continue
            stands = {"in": frame.token_id, "slot": slot, "at": [*at], **waits}
            tokens[key] = Token(key, place.children[slot].name, frame.scope, stands)


def _at_of(place: Place, key: str) -> tuple[int, ...]:
    """Return the iterations at the end of a key."""
    written = key[len(place.name) :]
    return tuple(int(index) for index in written[1:-1].split("][")) if written else ()


def _outside_in(before: ExecutionState) -> list[tuple[str, str]]:
    """Return the open scopes, each after the one around it."""
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


_WAITING = "turn"
"""The token of an execution that waits for its queue item, and the token's node. Its stored name is older than the word slot."""


class RunRetry:
    """Retries failed executions."""

    def __init__(self, executions: Executions, new_id: NewId, definitions: DefinitionOperations | None = None) -> None:
        self._executions, self._new_id, self._definitions = executions, new_id, definitions

    def retry(self, execution_id: str) -> Operation[None]:
        """Run a failed execution again: at once, or if it came from a queue item, when the item is claimed."""
        session = yield from self._executions.begin(execution_id)
        state = ExecutionState(session.live.state)
        session.terms = _terms(state)
        if waits_for_slot(session.live.state):
            # An execution whose item has ended would wait for ever, so the store refuses.
            yield from self._executions.commit(session, [])
            return
        if state.status is not Status.FAILED:
            raise Conflict(f"execution {execution_id!r} is {state.status}; only one that failed can be tried again")
        declared = yield from self._restored(state)
        batch: list[Planned] = [SetStatus(Status.PENDING), *(declared or (yield from self._reopened(state)))]
        batch += yield from self._old_messages(state, lambda each: each.kind == PAUSE)  # it ended while it was paused
        engine = state.identity.engine
        if engine is not None and state.identity.item_id is None:
            batch.append(recorded_again(engine, state.identity, session.revision + 1))
        child_id = _failed_child(state) if declared is None and state.identity.item_id is None else None
        if child_id is not None:
            # Before its parent, so that a crash in between leaves a parent that can be retried again.
            yield from self._retry_child(execution_id, child_id)
        yield from self._executions.commit(session, batch)

    def _restored(self, state: ExecutionState) -> Operation[list[Planned] | None]:
        """Return the mutations that restore a declared execution; None if it has no definition."""
        back = None if self._definitions is None else (yield from _back(self._executions, self._definitions, state))
        if back is None:
            return None
        execution_id = state.identity.execution_id
        if back.is_undone():
            if not back.not_undone:
                raise Conflict(f"execution {execution_id!r} was compensated: what it did is undone; start another one")
            return back.compensation_again()
        children: dict[str, str] = {}
        for key, child_id in back.failed_children().items():
            if (yield from self._goes_on(execution_id, child_id)):
                children[key] = child_id
        for key, child_id in back.other_children().items():  # requested to cancel, unless it had completed before
            if (yield from self._status(child_id)) == Status.COMPLETED:
                children[key] = child_id
        return [*back.batch(children), *(yield from self._old_news(children.values(), state))]

    def _reopened(self, state: ExecutionState) -> Operation[list[Planned]]:
        """Return the mutations that restore a function's execution to where it failed."""
        result: dict[str, Any] = state.result or {}
        error: dict[str, Any] = result.get("error", {})
        again: list[Planned] = []
        if "compensation" in result:
            again += _compensation_again(state, result)
        else:
            # Only the call that failed the run: the code has handled the other failures.
            again += [ReopenStep(name) for name in _failed(state, [error.get("step")])]
            # Calls that the code cancelled because of that failure run again, too.
            again += [ReopenStep(name) for name, step in state.steps.items() if was_given_up(step)]
        child_id = _failed_child(state)
        if child_id is not None and (yield from self._goes_on(state.identity.execution_id, child_id)):
            again += yield from self._old_news((child_id,), state)
            again.append(_call_of_child(state, error["step"], child_id))
            if state.identity.item_id is not None:
                again.append(AddToken(_WAITING, Raw(encode_token(Token(_WAITING, _WAITING, "root", {"child": child_id})))))
        return again

    # Children.

    def _old_news(self, children: Collection[str], state: ExecutionState) -> Operation[list[Planned]]:
        """Return the mutations that take the messages of children's ends: they run again, so the messages are not true any
        more."""
        if not children:
            return []
        return (yield from self._old_messages(state, lambda each: each.kind == CHILD and each.name in {*children}))

    def _old_messages(self, state: ExecutionState, is_old: Callable[[Message], bool]) -> Operation[list[Planned]]:
        execution_id, workspace_id = state.identity.execution_id, state.identity.workspace_id
        rows = yield from self._executions.scan(path_of(execution_id, workspace_id))
        return [take(execution_id, workspace_id, message) for message in messages(rows) if is_old(message)]

    def _goes_on(self, parent_id: str, child_id: str) -> Operation[bool]:
        """Return whether a child that failed goes on: it can be retried, or was. Else its parent starts another one.

        A fork has its original's record, but not its children.
        """
        try:
            check_has_payloads((yield from self._executions.newest(child_id)).state)
            child = yield from self._executions.load(child_id)
            if child.identity.parent_id != parent_id:
                return False
            if child.status is Status.FAILED and (yield from self._restored(child)) is None:
                yield from self._reopened(child)
        except (NotFound, Conflict):
            return False
        return child.status is not Status.CANCELLED

    def _status(self, execution_id: str) -> Operation[str | None]:
        try:
            return (yield from self._executions.head(execution_id)).status
        except NotFound:
            return None

    def _retry_child(self, parent_id: str, child_id: str) -> Operation[None]:
        """Retry a failed child in place, if that can be."""
        if (yield from self._goes_on(parent_id, child_id)) and (yield from self._status(child_id)) == Status.FAILED:
            yield from self.retry(child_id)

    # Continuing when the queue item is claimed.

    def go_on(self, live: CachedExecution, mark: ItemMark) -> Operation[None]:
        """Make an execution due and mark its queue item, in one commit. The child that failed it is retried first.

        A worker that was woken too early, and looks at the execution now, loses its lease by that.
        """
        identity = live.state.identity
        rest = Rest(wake_ms=0 if identity.engine is None else None)
        session = self._session_of_waiting(live, CommitTerms(rest=rest, mark=mark))
        batch: list[Planned] = [SetStatus(Status.RUNNING)]
        if identity.engine is not None:
            batch.append(recorded_again(identity.engine, identity, session.revision + 1))
        child_id = _child_of(live.state)
        if child_id is not None:
            yield from self._retry_child_at_slot(identity.execution_id, child_id)
            batch.append(RemoveToken(_WAITING))
        yield from self._executions.commit(session, batch)

    def _retry_child_at_slot(self, parent_id: str, child_id: str) -> Operation[None]:
        try:
            yield from self._retry_child(parent_id, child_id)
        except NotFound:
            return
        except Conflict as error:
            if error.expected is not None:  # another writer changed it at this moment
                raise

    def wait_on(self, live: CachedExecution, fence: int) -> Operation[None]:
        """Act on messages to an execution that waits for its queue item.

        A cancel request ends it. Otherwise it waits on, and its messages stay in the inbox.
        """
        rows = yield from self._executions.scan(path_of(live.execution_id, live.workspace_id))
        if any(message.kind == CANCEL for message in messages(rows)):
            yield from self._executions.end_waiting(live.execution_id)
            return
        # Tried once: another writer may have continued or ended it, and then it must not be put to rest.
        with suppress(Conflict, LeaseLost):
            yield from self._executions.commit(self._session_of_waiting(live, CommitTerms(fence=fence, rest=Rest())), [])

    def _session_of_waiting(self, live: CachedExecution, terms: CommitTerms) -> OpenTransaction:
        """Return a transaction on a state in which the execution waits; another thread may be catching the state up."""
        with live.lock:
            if not waits_for_slot(live.state):
                raise Conflict(f"execution {live.execution_id!r} waits for its slot no more")
            return OpenTransaction(live, terms, self._new_id)


def _terms(state: ExecutionState) -> CommitTerms:
    """Return the terms on which an execution is reopened: it is due, or its queue item waits again."""
    item_id = state.identity.item_id
    return (
        CommitTerms(rest=Rest(wake_ms=0 if state.identity.engine is None else None))
        if item_id is None
        else CommitTerms(rest=Rest(), mark=ItemMark(item_id, ItemStatus.QUEUED))
    )


def _failed_child(state: ExecutionState) -> str | None:
    """Return the child whose failure ended a function; None if the function was compensated, so that only its undo goes on."""
    result: dict[str, Any] = state.result or {}
    return None if "compensation" in result else result.get("error", {}).get("child_id")


def _call_of_child(state: ExecutionState, key: str, child_id: str) -> Planned:
    """Return the mutation that lets a function's call wait for the child that it had."""
    value = {
        "position": state.steps[key].node_id,
        "execution_id": child_id,
        "parent_id": state.identity.execution_id,
        "due_ms": None,
    }
    return AddToken(key, Raw(encode_token(Token(key, "child", "root", value))))


def _child_of(state: State) -> str | None:
    """Return the id of the child to retry when the queue item is claimed."""
    data = state.sections["tokens"].get(_WAITING)
    value: Any = None if data is None else decode_token(data).value
    return None if value is None else value["child"]


def _compensation_again(state: ExecutionState, result: dict[str, Any]) -> list[Planned]:
    """Return the mutations that retry failed compensations: all else that a compensated run did is undone."""
    undone, failed = result["compensation"]["undone"], result["compensation"]["failed"]
    if not failed:
        raise Conflict(f"execution {state.identity.execution_id!r} was compensated: what it did is undone; start another one")
    order = [*reversed(undone), *reversed(failed)]
    value = {"status": str(Status.FAILED), "error": result["error"], "order": order, "due_ms": None}
    token = encode_token(Token(COMPENSATION, "compensation", "root", value))
    return [*(ReopenStep(name) for name in _failed(state, failed)), AddToken(COMPENSATION, Raw(token))]


def _failed(state: ExecutionState, names: Iterable[str | None]) -> list[str]:
    steps = state.steps
    return [name for name in names if name in steps and steps[name].status in (StepStatus.FAILED, StepStatus.CANCELLED)]
