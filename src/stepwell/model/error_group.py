"""Groups of failures: what makes two failures the same, and what a group says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, cast

from stepwell.model.execution_state import ExecutionState
from stepwell.model.plain_data import PlainRecord
from stepwell.model.status import StepStatus

__all__ = ["ErrorGroup", "Failure", "GroupStatus", "RetriedGroup", "failure_of", "normalised"]

GroupStatus = Literal["open", "resolved", "ignored"]
"""The decision about a group: open, resolved or ignored."""

_LONGEST = 300
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<name>.+)$', re.MULTILINE)
# Code of others: the frame that says most about a failure is the last one of the user's own code.
_FOREIGN = re.compile(r"[\\/](?:site-packages|dist-packages|lib[\\/]python[\d.]+|stepwell)[\\/]|^<frozen")
_CHAINED = "\n\nThe above exception was the direct cause of the following exception:\n\n"
# In this order: what is longest and most telling first.
_PARTS = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"'[^']{1,200}'|\"[^\"]{1,200}\""), "<text>"),
    (re.compile(r"(?<![A-Za-z_])[+-]?\d[\d_,]*(?:\.\d+)?"), "<n>"),
)


class Failure(PlainRecord, frozen=True):
    """A run that failed, and the parts of its fingerprint."""

    execution_id: str
    workflow_id: str
    version: int
    failed_at: datetime
    kind: str
    """The name of the error's class; of a step that failed, that of the step's own error."""
    message: str
    step: str
    """The name of the step that failed, without the number of the call; empty if it was no step."""
    frame: str
    """The last place in the user's own code, such as ``orders.py:charge``; empty if there is none."""

    @property
    def fingerprint(self) -> str:
        """The digest of class, normalised message, step and frame, which failures of one group share."""
        parts = (self.kind, normalised(self.message), self.step, self.frame)
        return sha256(b"\0".join(part.encode("utf-8", "replace") for part in parts)).hexdigest()[:16]


class ErrorGroup(PlainRecord, frozen=True, kw_only=True):
    """Failed runs with the same fingerprint."""

    fingerprint: str
    kind: str
    """The name of the error's class."""
    message: str
    """The message without what differs between failures: ids, times, numbers and quoted texts."""
    example: str
    """The message of the newest failure."""
    step: str
    """The step that failed; empty if it was none."""
    frame: str
    """The last place in the user's own code; empty if there is none."""
    count: int
    first_seen: datetime
    last_seen: datetime
    workflows: tuple[str, ...]
    executions: tuple[str, ...]
    """The newest ones first, at most a hundred."""
    hours: tuple[int, ...]
    """How many failed in each of the last 24 hours, the oldest hour first."""
    status: GroupStatus = "open"
    changed_by: str = ""
    """The person who resolved or ignored it, if a name was given."""
    reason: str = ""
    ignored_until: datetime | None = None
    """When it opens again by itself."""
    ignored_more: int | None = None
    """After how many further failures it opens again."""
    ignored_version: int | None = None
    """From which version of its workflow on a failure opens it again."""


class RetriedGroup(PlainRecord, frozen=True, kw_only=True):
    """The effect of retrying the runs of a group."""

    fingerprint: str
    retried: tuple[str, ...]
    """The runs that continue at the step that failed."""
    refused: dict[str, str]
    """Why a run was not retried, by its id."""


def normalised(message: str) -> str:
    """Return a message without what differs between failures of one kind."""
    text = " ".join(message[: 10 * _LONGEST].split())
    for pattern, name in _PARTS:
        text = pattern.sub(name, text)
    return text[:_LONGEST]


def failure_of(state: ExecutionState, failed_at: datetime) -> Failure:
    """Return the failure of a run that failed: of a step's error, what the step itself raised."""
    who = state.identity
    result = cast("dict[str, Any]", state.result or {})
    error: Mapping[str, Any] = result.get("error") or {}
    key = str(error.get("step") or "")
    step, inner = _step_of(state, key)
    told = inner or error
    traceback = str(told.get("traceback") or "").split(_CHAINED)[0]
    return Failure(
        execution_id=who.execution_id,
        workflow_id=who.workflow_id,
        version=who.version,
        failed_at=failed_at,
        kind=str(told.get("kind") or "Unknown"),
        message=str(told.get("message") or ""),
        step=step,
        frame=_frame_of(traceback),
    )


def _step_of(state: ExecutionState, key: str) -> tuple[str, Mapping[str, Any] | None]:
    """Return the name of the step that failed, and its error."""
    records = state.steps
    record = records.get(key)
    if record is None:
        failed = [each for each in records.values() if each.status == StepStatus.FAILED]
        record = max(failed, key=lambda each: each.executed_at, default=None) if key else None
    if record is None:
        return key, None
    match record.output:
        case {"error": {"kind": _}}:
            return record.node_name, cast("dict[str, Any]", record.output)["error"]
        case _:
            return record.node_name, None


def _frame_of(traceback: str) -> str:
    frames = [(match["file"], match["name"]) for match in _FRAME.finditer(traceback)]
    own = [(file, name) for file, name in frames if _FOREIGN.search(file) is None]
    if not own:
        return ""
    file, name = own[-1]
    base = re.split(r"[\\/]", file)[-1]
    return f"{base}:{name.strip()}"
