"""The reason why a run does not move: one answer, for people and for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stepwell.model.commit import Head
from stepwell.model.external_engines import TEMPORAL
from stepwell.model.plain_data import PlainRecord
from stepwell.model.status import FINAL, Status

if TYPE_CHECKING:
    from stepwell.runtime.progress import Progress, Waiting

__all__ = ["WaitingOn", "away", "waiting_on"]


class WaitingOn(PlainRecord, frozen=True):
    """The reason why a run does not move."""

    kind: str
    """``signal``, ``approval``, ``timer``, ``child``, ``retry``, ``capacity``, ``worker_missing`` or ``store_away``."""
    message: str
    """The same as a sentence."""
    name: str = ""
    """The name of the signal, the child execution, the missing step or workflow, or the workspace without a free slot."""
    step: str = ""
    """The key of the waiting node or call, if it is one."""
    until: datetime | None = None
    """When the wait ends by itself, such as the time of the next attempt; None if it does not."""
    error: str | None = None
    """The error of the attempt before a retry, or that of the store."""


# Of several waits, the one that says most about why nothing happens.
_NEVER = datetime.max.replace(tzinfo=UTC)
_ORDER = ("step", "retry", "approval", "signal", "child", "time")


def waiting_on(head: Head, progress: Progress, obstacle: str | None, now_ms: int) -> WaitingOn | None:
    """Return what a run waits for; None if it is under way or has ended.

    - ``head``: the execution's row.
    - ``progress``: its progress.
    - ``obstacle``: why this process cannot run it, if it cannot.
    - ``now_ms``: the store's time.
    """
    if head.status in FINAL or progress.current:
        return None
    if head.status == Status.PENDING and head.wake_ms is None:
        text = f"it waits for a free slot of workspace {head.workspace_id!r}; well.queue.why(item_id) says what holds it up"
        return WaitingOn("capacity", text, head.workspace_id)
    if obstacle is not None and head.holder == TEMPORAL and not progress.waiting:
        return WaitingOn("worker_missing", obstacle, head.workflow_id)
    is_held = head.holder is not None and (head.lease_until_ms or 0) > now_ms
    if not is_held and head.wake_ms is not None and head.wake_ms <= now_ms:
        text = obstacle or f"no worker has taken it yet; start one that has workflow {head.workflow_id!r}"
        return WaitingOn("worker_missing", text, head.workflow_id)
    if not progress.waiting:
        return None
    return _of_wait(min(progress.waiting, key=lambda each: (_ORDER.index(each.kind), each.until is None, each.until or _NEVER)))


def away(error: Exception) -> WaitingOn:
    """Return the answer for a run whose store cannot be asked."""
    return WaitingOn("store_away", "its store does not answer, so it cannot go on; nothing of it is lost", error=str(error))


def _of_wait(wait: Waiting) -> WaitingOn:
    until = "" if wait.until is None else f" until {wait.until:%Y-%m-%d %H:%M:%S} UTC"
    match wait.kind:
        case "step":
            text = f"it waits for a worker that has step {wait.name!r}; import the module that defines it"
            return WaitingOn("worker_missing", text, wait.name, wait.step)
        case "retry":
            text = f"it waits for the next attempt at {wait.name!r}{until}, after: {wait.error}"
            return WaitingOn("retry", text, wait.name, wait.step, wait.until, wait.error)
        case "time":
            return WaitingOn("timer", f"it waits{until}", "", wait.step, wait.until)
        case kind:
            return WaitingOn(kind, f"it waits for {kind} {wait.name!r}{until}", wait.name, wait.step, wait.until)
