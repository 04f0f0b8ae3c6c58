"""Trying a failed execution again: from the call that failed, with everything before it kept.

One that came from a queue item has no slot any more. Its retry sends the item back into the queue, in the same commit, and the
execution waits for its item's turn (``model.turn``); ``queue.resuming`` has it go on. A child that failed it is retried when that
comes, since it runs on its parent's slot; until then a token says which one it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from msgspec import Raw

from stepwell.errors import Conflict, LeaseLost, NotFound
from stepwell.model.commit import Rest
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ExecutionState, State
from stepwell.model.ids import NewId
from stepwell.model.mutation import AddToken, RemoveToken, ReopenStep, SetStatus
from stepwell.model.queue_item import ItemMark, ItemStatus
from stepwell.model.queue_lifecycle import waits_for_turn
from stepwell.model.record import Token, decode_token, encode_token
from stepwell.model.status import Status, StepStatus
from stepwell.pipeline.operations import Operation
from stepwell.runtime.compensation import COMPENSATION
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.runtime.inbox import CANCEL, CHILD, letters, path_of, take
from stepwell.runtime.retrying import restored
from stepwell.state.executions import CachedExecution, CommitTerms, Executions, OpenTransaction

__all__ = ["RunRetry"]

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
        told = [letter for letter in letters(rows) if (letter.kind, letter.name) == (CHILD, child_id)]
        return [take(execution_id, workspace_id, letter) for letter in told]

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
        if any(letter.kind == CANCEL for letter in letters(rows)):
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
