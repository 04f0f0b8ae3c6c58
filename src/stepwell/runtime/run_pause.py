"""Pause and resume one execution: a message that stays in its inbox until it is resumed or cancelled.

Each lands in a commit of the execution, so that the history and its receipts say who paused it, when and why. The commit follows
the newest revision and needs no lease; the worker that runs the execution follows it, and looks into the inbox because of the
nudge (``runtime/sessions/session.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stepwell.clock import from_ms
from stepwell.errors import Conflict, ExecutionEnded, InvalidInput
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ExecutionState
from stepwell.model.mutation import WriteState
from stepwell.model.receipt import Receipt
from stepwell.model.scoped_operations import Delete
from stepwell.model.status import FINAL
from stepwell.model.value import canonical
from stepwell.pipeline.operations import Operation
from stepwell.runtime.cancellation import is_cancelling
from stepwell.runtime.inbox import CANCEL, PAUSE, Pause, messages, path_of, pause_in, put
from stepwell.state.executions import CommitTerms, Executions, is_driven_by_engine

__all__ = ["RunPause"]

_MOST_CONFLICTS = 20
"""How often to try again after another commit came first. One that always loses the race has met a loop."""


class RunPause:
    """Pauses and resumes one execution."""

    def __init__(self, executions: Executions, execution_id: str) -> None:
        self._executions, self.execution_id = executions, execution_id

    def pause(self, reason: object, by: object) -> Operation[Receipt]:
        """Record a pause; one that there is gets this reason. Return the receipt of the commit."""
        if not isinstance(reason, str) or not isinstance(by, str):
            raise InvalidInput(f"the reason of a pause, and who pauses, are text, not {reason!r} and {by!r}")
        head, now_ms = yield from self._executions.head_now(self.execution_id)
        value = msgspec.to_builtins(Pause(from_ms(now_ms), by, reason))
        canonical(value, self._executions.limits, what="the reason of a pause")
        message = put(self.execution_id, head.workspace_id, PAUSE, "", value, PAUSE)
        path = path_of(self.execution_id, head.workspace_id)

        def hold() -> Operation[Planned]:
            if any(each.kind == CANCEL for each in messages((yield from self._executions.scan(path)))):
                raise self._is_cancelled()
            return WriteState(message)

        return (yield from self._commit(hold, self._check_pausable))

    def resume(self) -> Operation[Receipt]:
        """Record that a paused execution goes on; return the receipt of the commit. Raise ``Conflict`` if it is not paused."""
        path = path_of(self.execution_id, (yield from self._executions.head(self.execution_id)).workspace_id)

        def lift() -> Operation[Planned]:
            if pause_in(messages((yield from self._executions.scan(path)))) is None:
                raise Conflict(f"execution {self.execution_id!r} is not paused")
            return WriteState(Delete(path, PAUSE))

        return (yield from self._commit(lift, self._check))

    def _commit(self, make: Callable[[], Operation[Planned]], check: Callable[[ExecutionState], None]) -> Operation[Receipt]:
        for attempts_left in reversed(range(_MOST_CONFLICTS)):
            session = yield from self._executions.begin(self.execution_id, CommitTerms(nudges=(self.execution_id,)))
            check(ExecutionState(session.live.state))
            mutation = yield from make()
            try:
                return (yield from self._executions.commit(session, [mutation]))
            except Conflict:
                if not attempts_left:
                    raise
        raise AssertionError  # the last round returns or raises

    def _check_pausable(self, state: ExecutionState) -> None:
        self._check(state)
        if is_cancelling(state):
            raise self._is_cancelled()

    def _is_cancelled(self) -> Conflict:
        return Conflict(f"execution {self.execution_id!r} is being cancelled, which a pause does not stop")

    def _check(self, state: ExecutionState) -> None:
        if state.status in FINAL:
            raise ExecutionEnded(
                f"execution {self.execution_id!r} has ended as {state.status}; there is nothing to pause or resume"
            )
        if not is_driven_by_engine(state.identity):
            raise InvalidInput(f"execution {self.execution_id!r} is driven by hand; whoever drives it can wait")
        if state.identity.engine is not None:
            raise InvalidInput(
                f"execution {self.execution_id!r} runs on {state.identity.engine}, which has no pause of one run; "
                "pause its workspace, so that nothing else starts, or cancel it"
            )
