"""The turn of an execution that came from a queue item and is tried again: until its item is claimed, it is PENDING.

Nothing else makes such an execution PENDING, since its first commit says that it runs. So its status says that nobody may run it,
whoever has woken it; the commit that gives it its turn makes it RUNNING, and its item DISPATCHED.
"""

from __future__ import annotations

import msgspec

from stepwell.errors import ExecutionCancelled
from stepwell.model.draft import Planned, quoted
from stepwell.model.mutation import ExitScope, RemoveToken, SetResult, SetStatus
from stepwell.model.state import ONLY, State
from stepwell.model.status import Status
from stepwell.model.value import recode

__all__ = ["cancelled_in_wait", "waits_for_turn"]

_PENDING = quoted(Status.PENDING)
_RESULT = recode(
    {
        "error": {
            "kind": ExecutionCancelled.__name__,
            "message": "it was cancelled while it waited for its turn",
            "code": ExecutionCancelled.code,
        }
    }
)


def waits_for_turn(state: State) -> bool:
    """Whether an execution is to go on only when its item is claimed."""
    return state.sections["status"].get(ONLY) == _PENDING and state.identity.item_id is not None


def cancelled_in_wait(state: State) -> list[Planned]:
    """What ends such an execution, as it stands: none of its code runs, as for an item that is cancelled before it started."""
    batch: list[Planned] = [RemoveToken(token_id) for token_id in state.sections["tokens"]]
    batch += [ExitScope(scope_id) for scope_id in reversed(state.sections["scopes"]) if scope_id != "root"]
    return [*batch, SetResult(msgspec.Raw(_RESULT)), SetStatus(Status.CANCELLED)]
