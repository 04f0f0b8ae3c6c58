"""What happened in a run, read from its receipts: the changes of each commit that a person wants to hear of."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from stepwell.model.receipt import Receipt
from stepwell.model.value import Value

__all__ = ["RunEvent", "events_of"]


class RunEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One thing that happened. The names are those of the JSON that commands write."""

    event: str
    """``created``, ``status``, ``step``, ``attempt``, ``waiting``, ``variable``, ``loop``, ``cancelled``, ``reopened``,
    ``restored`` or ``result``."""
    execution_id: str
    revision: int
    at: datetime
    name: str = ""
    status: str = ""
    duration_ms: int | None = None
    detail: Value = None

    @property
    def began_at(self) -> datetime:
        """When it began, for a step."""
        return self.at - timedelta(milliseconds=self.duration_ms or 0)


def events_of(receipt: Receipt) -> Iterator[RunEvent]:
    """The events of one commit, in order."""
    for mutation in receipt.mutations:
        told = _told(mutation)
        if told is not None:
            at = told.pop("at", receipt.committed_at)
            yield RunEvent(execution_id=receipt.execution_id, revision=receipt.revision, at=at, **told)


def _told(mutation: dict[str, Any]) -> dict[str, Any] | None:
    match mutation:
        case {"type": "create", "metadata": {"workflow_id": workflow, "version": version}}:
            return {"event": "created", "name": workflow, "detail": {"version": version}}
        case {"type": "set_status", "status": status}:
            return {"event": "status", "status": status}
        case {"type": "record_step", "name": name, "step": step}:
            return _step(name, step)
        case {"type": "add_token" | "update_token", "token_id": name, "token": {"node": node, "value": value}}:
            return _token(name, node, value)
        case {"type": "set_variable", "name": name, "value": value}:
            return {"event": "variable", "name": name, "detail": value}
        case {"type": "set_loop", "loop_id": name, "loop": loop}:
            return {"event": "loop", "name": name, "detail": loop}
        case {"type": "cancel_scope", "scope_id": name}:
            return {"event": "cancelled", "name": name}
        case {"type": "reopen_step", "name": name}:
            return {"event": "reopened", "name": name}
        case {"type": "restore", "source": source, "revision": revision}:
            return {"event": "restored", "name": source, "detail": {"revision": revision}}
        case {"type": "set_result", "value": value}:
            return {"event": "result", "detail": value}
        case _:
            return None


def _step(name: str, step: dict[str, Any]) -> dict[str, Any]:
    return {
        "event": "step",
        "name": name,
        "status": step["status"],
        "duration_ms": step["duration_ms"],
        "detail": step["output"],
        "at": datetime.fromisoformat(step["executed_at"]),
    }


def _token(name: str, node: str, value: Any) -> dict[str, Any] | None:
    match value:
        case {"attempt": int(), "error": _}:
            return {"event": "attempt", "name": name, "detail": value}
        case {"due_ms": _} | {"execution_id": _} | {"title": _}:
            return {"event": "waiting", "name": name, "status": node, "detail": value}
        case _:
            return None
